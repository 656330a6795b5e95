/* Table 5 counts bytes: of the operands, of what quantise-once keeps beside them, and of one tile on the chip. The paper's
 * figures follow from shapes alone; ours are those shapes, and what a plan asks for as workspace. */
#include "tables.h"

#include <math.h>

enum { HEADS_Q = 32, HEADS_K = 8, LENGTH = 8192, DIM = 128 };
enum { QUERIES = LENGTH * HEADS_Q, KEYS = LENGTH * HEADS_K }; /* rows of all heads */
static const double KIB = 1024, MIB = 1024 * 1024;
#define NONE ((double)NAN)

/* Bytes of the workspace under a policy, and of its part that grows with the number of threads. */
typedef struct bytes {
    double once, per_thread;
    const char *kernel;
} bytes;

static int workspace(const tlamp_policy *policy, bytes *w, fault *f)
{
    tlamp_problem p;
    tlamp_plan *plan;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_problem_init(&p, sizeof p);
    p.max_seqlen_q = p.max_seqlen_k = LENGTH;
    p.num_heads_q = HEADS_Q;
    p.num_heads_k = HEADS_K;
    p.head_dim_qk = p.head_dim_v = DIM;
    p.q_dtype = p.k_dtype = p.v_dtype = p.o_dtype = TLAMP_F16;
    p.mask = TLAMP_MASK_CAUSAL;
    p.policy = policy;
    if (tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, &err) || tlamp_plan_create(&plan, &p, NULL, &err))
        return fault_from_library(f, &err);
    const double one = (double)tlamp_plan_workspace_size(plan, 1), two = (double)tlamp_plan_workspace_size(plan, 2);
    *w = (bytes){2 * one - two, two - one, tlamp_plan_kernel_name(plan)};
    tlamp_plan_destroy(plan);
    return DONE;
}

/* paper: in the table's unit; ours: in bytes. */
static void add_row(grid *g, const char *label, double paper, double ours, double unit)
{
    double *cells = grid_row(g, "%s", label);
    cells[0] = paper;
    cells[1] = ours / unit;
}

/* Codes and scales of quantise-once, by shape: one scale for 128 queries and for 64 keys of a head. */
static double codes(int scale_bytes)
{
    return (double)((QUERIES + KEYS) * DIM + (QUERIES / 128 + KEYS / 64) * scale_bytes);
}

static int resident(const options *o, fault *f)
{
    tlamp_policy high, once, fly;
    bytes of_high, of_once, of_fly;
    tlamp_policy_init(&high, sizeof high);
    once = high;
    once.kind = TLAMP_POLICY_ROUTED;
    fly = once;
    fly.quantise = TLAMP_QUANTISE_FLY;
    int code = workspace(&high, &of_high, f);
    if (!code) code = workspace(&once, &of_once, f);
    if (!code) code = workspace(&fly, &of_fly, f);
    if (code) return code;

    const double operands = (double)(2 * DIM * (QUERIES + 2 * KEYS));
    grid g;
    grid_init(&g, "MiB", "Table 5, resident: Hq = 32, Hk = 8, L = 8192, d = 128, f16");
    grid_column(&g, GRID_FIXED, "paper");
    grid_column(&g, GRID_FIXED, "ours");
    add_row(&g, "q, k and v", 96, operands, MIB);
    add_row(&g, "with codes and f16 scales, by shape", 136.01, operands + codes(2), MIB);
    add_row(&g, "with codes and f32 scales, by shape", NONE, operands + codes(4), MIB);
    add_row(&g, "with workspace, high", NONE, operands + of_high.once, MIB);
    add_row(&g, "with workspace, quantise once", NONE, operands + of_once.once, MIB);
    add_row(&g, "with workspace, on the fly", NONE, operands + of_fly.once, MIB);
    add_row(&g, "and for each thread: high", NONE, of_high.per_thread, MIB);
    add_row(&g, "and for each thread: quantise once", NONE, of_once.per_thread, MIB);
    add_row(&g, "and for each thread: on the fly", NONE, of_fly.per_thread, MIB);
    grid_note(&g, "Workspace: tlamp_plan_workspace_size, kernel %s.", of_once.kernel);
    grid_note(&g,
              "It holds what the kernel wants packed of K and V (scalar: K's codes and scales). Queries are quantised "
              "by the thread that uses them, so that Q's codes are never stored whole.");
    return tables_publish(o, &g, f);
}

static int on_chip(const options *o, fault *f)
{
    const double q = (double)(128 * DIM), k = (double)(64 * DIM); /* elements of a tile of Q or O, and of K */
    grid g;
    grid_init(&g, "KiB", "Table 5, one tile");
    grid_column(&g, GRID_FIXED, "paper");
    grid_column(&g, GRID_FIXED, "128 x 64 tile");
    add_row(&g, "read for INT8 scores, codes", 16.25, k + 4, KIB);
    add_row(&g, "read for INT8 scores, on the fly", 32, k * 2, KIB);
    add_row(&g, "accumulators, FP16 state", 32, q * 2, KIB);
    add_row(&g, "accumulators, FP32 state", 64, q * 4, KIB);
    grid_note(&g, "By shape: the key tile that a query tile reads, and O.");
    grid_note(&g, "The paper's reads fit 128 keys, or 64 queries with 64 keys.");
    return tables_publish(o, &g, f);
}

int table_5(const options *o, fault *f)
{
    const int code = resident(o, f);
    return code ? code : on_chip(o, f);
}
