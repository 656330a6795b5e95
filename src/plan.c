#include "plan.h"

#include <string.h>

#include "device.h"
#include "dispatch.h"
#include "status.h"
#include "team.h"
#include "validate.h"
#include "work.h"

/* A task is at most this many rows: Q, scores and O of a task stay in a core's second-level cache. */
enum { MOST_TASK_TOKENS = 128 };

/* Automatic splits: of problems with up to so many query tokens a sequence and fewer KV heads in the batch, whose tasks are
 * few (more have work for every thread, and partial states would only cost memory); and always so many keys, however long
 * other sequences are. All of this is known to the plan: a row's bits depend on the plan and its own keys. */
enum { AUTO_SPLIT_TOKENS = 16, AUTO_SPLIT_HEADS = 64, AUTO_SPLIT_KEYS = 512 };

int32_t tl_splits(const tlamp_problem *p)
{
    int64_t parts = p->num_splits;
    if (p->num_splits == TLAMP_SPLITS_AUTO) {
        const int few = p->max_seqlen_q <= AUTO_SPLIT_TOKENS && p->batch < AUTO_SPLIT_HEADS &&
                        p->batch * p->num_heads_k < AUTO_SPLIT_HEADS && p->policy->kind != TLAMP_POLICY_LAMP;
        parts = few ? tl_ceil_div(p->max_seqlen_k, AUTO_SPLIT_KEYS) : 1;
    }
    const int32_t tile = p->policy->block_n < 64 ? p->policy->block_n : 64; /* a part has one tile at least */
    return (int32_t)tl_clamp64(tl_min64(parts, tl_ceil_div(p->max_seqlen_k, tile)), 1, INT32_MAX);
}

static tl_shape make_shape(const tlamp_problem *p, const tl_kernel *kernel)
{
    const tlamp_policy *policy = p->policy;
    tl_shape s = {.head_dim_qk = p->head_dim_qk, .head_dim_v = p->head_dim_v};
    s.q_dtype = p->q_dtype;
    s.k_dtype = p->k_dtype;
    s.v_dtype = p->v_dtype;
    s.heads_q = p->num_heads_q;
    s.heads_k = p->num_heads_k;
    s.group_heads = p->num_heads_k ? p->num_heads_q / p->num_heads_k : 0;
    const int lamp = policy->kind == TLAMP_POLICY_LAMP; /* decides by tiles of block_n keys, and per query head */
    s.tile_keys = policy->block_n < 64 || lamp ? policy->block_n : 64;
    const int x3 = policy->kind == TLAMP_POLICY_X3;
    s.high = policy->kind != TLAMP_POLICY_INT8 && !x3;
    s.int8 = policy->kind == TLAMP_POLICY_INT8 || policy->kind == TLAMP_POLICY_ROUTED || x3;
    s.code_planes = x3 ? 2 : 1;
    s.int8_values = policy->pv == TLAMP_PV_INT8;
    s.fly = policy->quantise == TLAMP_QUANTISE_FLY;
    /* Tokens: a part of one routing row. block_m divides 128 or is a multiple of it, so no task crosses a row's end. */
    s.part_tokens = policy->block_m < MOST_TASK_TOKENS ? policy->block_m : MOST_TASK_TOKENS;
    const int64_t tokens = tl_clamp64(p->max_seqlen_q, 1, s.part_tokens);
    s.task_tokens = (int32_t)tokens;
    if (kernel->one_block) s.task_tokens = (int32_t)tl_min64(tokens, lamp ? policy->lamp_b_q : kernel->max_rows);
    s.task_heads = lamp ? 1 : (int32_t)tl_clamp64(kernel->max_rows / s.task_tokens, 1, tl_max64(s.group_heads, 1));
    s.one_task = p->max_seqlen_q <= s.task_tokens && s.task_heads >= s.group_heads;
    s.policy = policy;
    s.splits = kernel->merge ? tl_splits(p) : 1;
    s.split_tiles = p->num_splits == TLAMP_SPLITS_AUTO ? AUTO_SPLIT_KEYS / s.tile_keys : 0;
    const int64_t keys = tl_round_up(tl_max64(p->max_seqlen_k, 1), 64);
    s.unit_keys = s.int8 || s.int8_values ? tl_min64(policy->quant_block_k, keys) : 64;
    s.seen = (s.int8 || s.int8_values) && (p->has_bool_mask || p->has_bias);
    s.mean = s.int8 && policy->smooth_k;
    s.packs = kernel->packed_bytes(&s, 1) > 0;
    s.heads_first = !s.packs && p->k_stride.head < p->k_stride.seq; /* a key's rows of all heads lie on one page */
    return s;
}

size_t tl_prepared_size(const tlamp_plan *plan, int64_t lk)
{
    tl_arena a = {NULL, 0};
    (void)tl_lay_out_prepared(&plan->shape, lk, &a);
    (void)tl_take(&a, (int64_t)plan->kernel->packed_bytes(&plan->shape, lk));
    return tl_mul_size(a.used, (size_t)plan->shape.heads_k);
}

tl_workspace tl_lay_out_workspace(const tlamp_plan *plan, int32_t workers, tl_arena *arena)
{
    tl_workspace w;
    w.sequences = tl_take_array(arena, plan->problem.batch, sizeof *w.sequences);
    w.counters = tl_take_array(arena, workers, TL_COUNTERS_STRIDE);
    w.prepared = tl_take_array(arena, 1, plan->prepared_bytes);
    w.scratch = tl_take_array(arena, workers, plan->scratch_bytes);
    w.done = tl_take_array(arena, plan->shape.packs ? plan->problem.batch * plan->shape.heads_k : 0, sizeof *w.done);
    w.partials = (tl_partials){NULL, NULL, NULL};
    if (plan->shape.splits > 1) {
        const tlamp_problem *p = &plan->problem;
        const size_t rows = tl_mul_size(p->varlen ? 1 : (size_t)p->batch,
                                        (size_t)(p->varlen ? p->total_q : p->max_seqlen_q));
        const size_t parts = tl_mul_size(tl_mul_size(rows, (size_t)plan->shape.heads_q), (size_t)plan->shape.splits);
        const size_t bytes = tl_mul_size(parts, sizeof(float));
        w.partials.o = tl_take_array(arena, plan->shape.head_dim_v, bytes);
        w.partials.m = tl_take_array(arena, 1, bytes);
        w.partials.l = tl_take_array(arena, 1, bytes);
    }
    return w;
}

static void use_kernel(tlamp_plan *plan)
{
    plan->shape = make_shape(&plan->problem, plan->kernel);
    plan->prepared_bytes = tl_prepared_size(plan, plan->problem.max_seqlen_k);
    plan->scratch_bytes = plan->kernel->scratch_bytes(&plan->shape);
}

void tl_plan_with_kernel(tlamp_plan *to, const tlamp_plan *plan, const tl_kernel *kernel)
{
    *to = *plan;
    to->problem.policy = &to->policy;
    to->problem.num_splits = 1; /* devices do not split keys */
    to->kernel = kernel;
    use_kernel(to);
}

static tlamp_status make_plan(tlamp_plan *plan, const tlamp_problem *problem, tlamp_error *err)
{
    tlamp_status s = tl_validate_problem(&plan->problem, &plan->policy, problem, err);
    if (!s) s = tl_choose_kernel(&plan->kernel, &plan->pv, &plan->problem, err);
    if (s) return s;
    use_kernel(plan);
    return TLAMP_OK;
}

tlamp_status tlamp_supported(const tlamp_problem *problem, tlamp_error *err)
{
    tlamp_plan plan;
    return make_plan(&plan, problem, err);
}

size_t tlamp_plan_size(void) { return sizeof(tlamp_plan); }

tlamp_status tlamp_plan_init(tlamp_plan **plan, void *memory, size_t bytes, const tlamp_problem *problem,
                             tlamp_error *err)
{
    if (!plan || !memory) return tl_fail(err, TLAMP_INVALID_ARGUMENT, plan ? "memory" : "plan", "is NULL");
    if ((uintptr_t)memory % TLAMP_WORKSPACE_ALIGN)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "memory", "must be aligned to %d", TLAMP_WORKSPACE_ALIGN);
    if (bytes < sizeof(tlamp_plan))
        return tl_fail(err, TLAMP_WORKSPACE_TOO_SMALL, "bytes", "%zu: a plan needs %zu (tlamp_plan_size)", bytes,
                       sizeof(tlamp_plan));
    tlamp_plan *p = memory;
    memset(p, 0, sizeof *p);
    const tlamp_status s = make_plan(p, problem, err);
    if (!s) *plan = p;
    return s;
}

tlamp_status tlamp_plan_create(tlamp_plan **plan, const tlamp_problem *problem, const tlamp_allocator *allocator,
                               tlamp_error *err)
{
    if (!plan) return tl_fail(err, TLAMP_INVALID_ARGUMENT, "plan", "is NULL");
    if (allocator && !allocator->alloc != !allocator->free)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "allocator", "alloc and free come together");
    const tlamp_allocator memory = tl_allocator(allocator);
    tlamp_plan *p = memory.alloc(memory.context, sizeof *p, TLAMP_WORKSPACE_ALIGN);
    if (!p) return tl_fail(err, TLAMP_OUT_OF_MEMORY, "allocator", "no memory for a plan of %zu bytes", sizeof *p);
    tlamp_plan *made;
    const tlamp_status s = tlamp_plan_init(&made, p, sizeof *p, problem, err);
    if (s) {
        memory.free(memory.context, p);
        return s;
    }
    p->allocator = memory;
    p->allocated = 1;
    *plan = p;
    return TLAMP_OK;
}

void tlamp_plan_destroy(tlamp_plan *plan)
{
    if (!plan || !plan->allocated) return;
    const tlamp_allocator memory = plan->allocator;
    memory.free(memory.context, plan);
}

size_t tlamp_plan_workspace_size(const tlamp_plan *plan, int32_t num_threads)
{
    if (!plan) return 0;
    tlamp_exec exec = {.struct_size = sizeof exec, .num_threads = num_threads < 0 ? 0 : num_threads};
    tl_arena a = {NULL, 0};
    (void)tl_lay_out_workspace(plan, tl_team_workers(&exec), &a);
    return a.used;
}

size_t tlamp_plan_device_workspace_size(const tlamp_plan *plan) { return plan ? tl_device_workspace_bytes(plan) : 0; }

tlamp_pv tlamp_plan_pv(const tlamp_plan *plan) { return plan ? plan->pv : TLAMP_PV_AUTO; }

const char *tlamp_plan_kernel_name(const tlamp_plan *plan) { return plan ? plan->kernel->name : ""; }

const char *tlamp_plan_device_kernel_name(const tlamp_plan *plan) { return plan ? tl_device_kernel_name(plan) : ""; }
