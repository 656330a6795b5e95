/* Kernels that read K and V in place (cpu/few_*.c) quantise keys in registers: with the scales, the codes and so the bits of
 * those that pack them. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "plan.h"
#include "tilelamp/tilelamp.h"

#define TL_KERNEL(symbol, isa, features) extern const tl_kernel symbol;
#include "kernels.def"
#undef TL_KERNEL

static const tl_kernel *const kernels[] = {
#define TL_KERNEL(symbol, isa, features) &symbol,
#include "kernels.def"
#undef TL_KERNEL
};

static const tl_kernel *find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (strcmp(kernels[i]->name, name) == 0) return kernels[i];
    return NULL;
}

static int is_available(const char *name)
{
    tlamp_kernel_info info[64];
    for (int i = 0; i < 64; i++) info[i].struct_size = sizeof info[i];
    const int32_t count = tlamp_kernels(info, 64);
    for (int32_t i = 0; i < count && i < 64; i++)
        if (strcmp(info[i].name, name) == 0) return info[i].available;
    return 0;
}

/* ---- problems */

enum { HEADS_Q = 8, HEADS_K = 2, LQ = 3, LK = 300, D = 72, ROW = 80 /* numbers from one row to the next */ };

typedef struct {
    const char *what;
    tlamp_dtype dtype;
    tlamp_pv pv;
    int causal, nan_seen, nan_hidden;
    int codes; /* V is INT8 */
    int how;   /* keys are quantised: SMOOTH | ... */
} variant;

enum { SMOOTH = 1, TOKEN = 2, ROTATED = 4, X3 = 8 };

static const variant variants[] = {
    {"f32", TLAMP_F32, TLAMP_PV_F32, 0, 0, 0, 0, 0},
    {"f16", TLAMP_F16, TLAMP_PV_F32, 0, 0, 0, 0, 0},
    {"bf16", TLAMP_BF16, TLAMP_PV_F32, 0, 0, 0, 0, 0},
    {"f16, causal", TLAMP_F16, TLAMP_PV_F32, 1, 0, 0, 0, 0},
    {"f32, a key left out", TLAMP_F32, TLAMP_PV_F32, 0, 1, 0, 0, 0},
    {"f16, a key left out", TLAMP_F16, TLAMP_PV_F32, 1, 1, 0, 0, 0},
    {"bf16, a NaN hidden from all rows", TLAMP_BF16, TLAMP_PV_F32, 1, 0, 1, 0, 0},
    {"bf16, P V in bf16", TLAMP_BF16, TLAMP_PV_BF16, 1, 1, 0, 0, 0},
    {"f32, P V in bf16", TLAMP_F32, TLAMP_PV_BF16, 1, 1, 0, 0, 0},
    {"f16, P V in bf16", TLAMP_F16, TLAMP_PV_BF16, 0, 0, 0, 0, 0},
    {"f16, V in INT8", TLAMP_F16, TLAMP_PV_F32, 1, 0, 0, 1, 0},
    {"f16, V in INT8, P V in bf16", TLAMP_F16, TLAMP_PV_BF16, 1, 0, 0, 1, 0},
    {"f32, smoothed", TLAMP_F32, TLAMP_PV_F32, 1, 0, 0, 0, SMOOTH},
    {"f16, smoothed, a key left out", TLAMP_F16, TLAMP_PV_BF16, 1, 1, 0, 0, SMOOTH},
    {"bf16, a scale for each token", TLAMP_BF16, TLAMP_PV_F32, 1, 1, 0, 0, TOKEN},
    {"f32, rotated", TLAMP_F32, TLAMP_PV_F32, 1, 0, 1, 0, ROTATED},
    {"f16, all of it", TLAMP_F16, TLAMP_PV_F32, 1, 0, 1, 0, SMOOTH | TOKEN | ROTATED},
    {"f16, P V in INT8", TLAMP_F16, TLAMP_PV_INT8, 1, 1, 0, 0, 0},
    {"f32, X3", TLAMP_F32, TLAMP_PV_F32, 1, 1, 0, 0, X3},
    {"f16, X3 and all of it", TLAMP_F16, TLAMP_PV_BF16, 1, 0, 1, 0, X3 | SMOOTH | TOKEN | ROTATED},
};

typedef struct {
    void *q, *k, *v;
    float *o, *lse;
    tlamp_counters counters;
    const float *v_scale;
} data;

static size_t bytes_of(tlamp_dtype t) { return t == TLAMP_F32 ? 4 : t == TLAMP_INT8 ? 1 : 2; }

static void put(void *to, size_t i, float x, tlamp_dtype t)
{
    if (t == TLAMP_F32)
        ((float *)to)[i] = x;
    else if (t == TLAMP_INT8)
        ((int8_t *)to)[i] = (int8_t)(x * 18.f);
    else
        ((uint16_t *)to)[i] = t == TLAMP_F16 ? tlamp_f32_to_f16(x) : tlamp_f32_to_bf16(x);
}

static void *make(size_t rows, tlamp_dtype t, uint32_t seed)
{
    void *x = malloc(rows * ROW * bytes_of(t));
    cr_assert(x != NULL);
    for (size_t i = 0; i < rows * ROW; i++) {
        seed = seed * 1664525u + 1013904223u;
        put(x, i, ((float)(seed >> 8) / 8388608.f - 1.f) * (float)(1 + i / ROW % 7), t);
    }
    return x;
}

static void run(data *r, const tlamp_plan *plan, const tl_kernel *kernel, int32_t threads)
{
    tlamp_plan other;
    tl_plan_with_kernel(&other, plan, kernel);
    const tlamp_tensors t = {.struct_size = sizeof t,
                             .q = r->q,
                             .k = r->k,
                             .v = r->v,
                             .v_scale = r->v_scale,
                             .o = r->o,
                             .lse = r->lse,
                             .counters = &r->counters};
    tlamp_exec exec;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = threads;
    r->counters = (tlamp_counters){.struct_size = sizeof r->counters};
    cr_assert_eq(tlamp_execute(&other, &t, &exec, NULL, 0, &err), TLAMP_OK, "%s: %s", err.field, err.text);
}

/* [key block][KV head] of V's codes: most make numbers that bf16 must round. */
static const float scales[(LK + 63) / 64 * HEADS_K] = {0.1f, 0.3f, 1.f / 3, 0.25f, 0.7f, 1.f, 3.f, 0.011f, 5.f, 1.1f};

static void compare(const variant *w, const char *few_name, const char *packed_name)
{
    const tl_kernel *few = find(few_name), *packed = find(packed_name);
    if (!few || !packed || !is_available(few_name) || !is_available(packed_name)) return;
    tlamp_policy policy;
    tlamp_problem p;
    tlamp_plan *plan;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = w->how & X3 ? TLAMP_POLICY_X3 : TLAMP_POLICY_INT8;
    policy.pv = w->pv;
    policy.smooth_k = (w->how & SMOOTH) != 0;
    policy.hadamard = (w->how & ROTATED) != 0;
    if (w->how & TOKEN) policy.scales = TLAMP_SCALES_TOKEN;
    tlamp_problem_init(&p, sizeof p);
    p.batch = 1;
    p.max_seqlen_q = w->how & X3 || w->pv == TLAMP_PV_INT8 ? 2 : LQ; /* which are up to 8 rows */
    p.max_seqlen_k = LK;
    p.num_heads_q = HEADS_Q;
    p.num_heads_k = HEADS_K;
    p.head_dim_qk = w->how & ROTATED ? 64 : D;
    p.head_dim_v = D;
    p.q_dtype = p.k_dtype = p.v_dtype = w->dtype;
    if (w->codes) p.v_dtype = TLAMP_INT8;
    p.o_dtype = TLAMP_F32;
    p.policy = &policy;
    p.mask = w->causal ? TLAMP_MASK_CAUSAL : TLAMP_MASK_NONE;
    p.window_right = w->nan_hidden ? -1 : p.window_right;
    p.window_left = w->nan_hidden ? 100 : p.window_left; /* the first keys are seen by no row */
    (void)tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, NULL);
    p.q_stride.seq = HEADS_Q * ROW;
    p.k_stride.seq = p.v_stride.seq = HEADS_K * ROW;
    p.q_stride.head = p.k_stride.head = p.v_stride.head = ROW;
    cr_assert_eq(tlamp_plan_create(&plan, &p, NULL, &err), TLAMP_OK, "%s: %s", err.field, err.text);
    cr_assert(few->supports(&plan->problem), "%s does not run %s", few_name, w->what);

    data a = {make((size_t)LQ * HEADS_Q, w->dtype, 1),
              make((size_t)LK * HEADS_K, w->dtype, 2),
              make((size_t)LK * HEADS_K, p.v_dtype, 3),
              calloc((size_t)LQ * HEADS_Q * D, sizeof(float)),
              calloc((size_t)LQ * HEADS_Q, sizeof(float)),
              {0},
              w->codes ? scales : NULL};
    data b = a;
    b.o = calloc((size_t)LQ * HEADS_Q * D, sizeof(float));
    b.lse = calloc((size_t)LQ * HEADS_Q, sizeof(float));
    cr_assert(a.o && a.lse && b.o && b.lse);
    if (w->nan_seen) put(a.k, (size_t)(LK - 40) * HEADS_K * ROW + 5, NAN, w->dtype);
    if (w->nan_hidden) put(a.k, (size_t)140 * HEADS_K * ROW + 5, NAN, w->dtype);
    run(&a, plan, few, 1);
    run(&b, plan, packed, 2);
    cr_assert_eq(memcmp(a.o, b.o, (size_t)LQ * HEADS_Q * D * sizeof(float)), 0, "%s: O of %s", few_name, w->what);
    cr_assert_eq(memcmp(a.lse, b.lse, (size_t)LQ * HEADS_Q * sizeof(float)), 0, "%s: LSE of %s", few_name, w->what);
    cr_assert_eq(a.counters.nonfinite_tokens, b.counters.nonfinite_tokens, "%s: %s", few_name, w->what);
    cr_assert_eq(a.counters.nonfinite_tokens, w->nan_seen);
    free(a.q);
    free(a.k);
    free(a.v);
    free(a.o);
    free(a.lse);
    free(b.o);
    free(b.lse);
    tlamp_plan_destroy(plan);
}

/* [instruction set][P V in f32, bf16, INT8]: the kernel in place, and the one that packs */
enum { SETS = 3, NARROW = 1 };
static const char *const pairs[SETS][3][2] = {
    {{"tlamp_fwd_few_dx__avx2", "tlamp_fwd_pv32_dx__avx2"},
     {"tlamp_fwd_few_pv16_dx__avx2", "tlamp_fwd_pv16_dx__avx2"},
     {"tlamp_fwd_few_pv8_dx__avx2", "tlamp_fwd_pv8_dx__avx2"}},
    {{"tlamp_fwd_few_dx__avx512", "tlamp_fwd_pv32_dx__avx512"},
     {"tlamp_fwd_few_pv16_dx__avx512", "tlamp_fwd_pv16_dx__avx512"},
     {"tlamp_fwd_few_pv8_dx__avx512", "tlamp_fwd_pv8_dx__avx512"}},
    {{"tlamp_fwd_few_dx__avx512vnni", "tlamp_fwd_pv32_dx__avx512vnni"},
     {"tlamp_fwd_few_pv16_dx__avx512vnni", "tlamp_fwd_pv16_dx__avx512vnni"},
     {"tlamp_fwd_few_pv8_dx__avx512vnni", "tlamp_fwd_pv8_dx__avx512vnni"}},
};

Test(few_rows, codes_in_registers_have_the_bits_of_packed_ones)
{
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        for (size_t j = 0; j < SETS; j++) {
            const tlamp_pv pv = variants[i].pv;
            const char *const *pair = pairs[j][pv == TLAMP_PV_INT8 ? 2 : pv == TLAMP_PV_BF16 ? NARROW : 0];
            compare(&variants[i], pair[0], pair[1]);
        }
}

/* Numbers above the largest of bf16 are not rounded to it, nor is Inf made a number. */
Test(few_rows, values_that_bf16_does_not_hold_stay_what_they_are)
{
    static const float values[] = {0x1.fffffep127f, -0x1.ffp127f, INFINITY, 1.f};
    float q = 0.f, k = 0.f, v[4], o[4];
    uint16_t v16[4];
    memcpy(v, values, sizeof v);
    for (int i = 0; i < 4; i++) v16[i] = tlamp_f32_to_f16(values[i]);
    for (size_t j = 0; j < 2 * SETS; j++) {
        const char *name = pairs[j / 2][NARROW][0];
        const int half = j % 2;
        const tl_kernel *kernel = find(name);
        if (!kernel || !is_available(name)) continue;
        tlamp_policy policy;
        tlamp_problem p;
        tlamp_plan *plan;
        tlamp_policy_init(&policy, sizeof policy);
        policy.pv = TLAMP_PV_BF16;
        tlamp_problem_init(&p, sizeof p);
        p.batch = p.max_seqlen_q = p.max_seqlen_k = p.num_heads_q = p.num_heads_k = p.head_dim_qk = 1;
        p.head_dim_v = 4;
        p.q_dtype = p.k_dtype = p.o_dtype = TLAMP_F32;
        p.v_dtype = half ? TLAMP_F16 : TLAMP_F32;
        p.policy = &policy;
        (void)tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, NULL);
        cr_assert_eq(tlamp_plan_create(&plan, &p, NULL, NULL), TLAMP_OK);
        data a = {&q, &k, half ? (void *)v16 : (void *)v, o, NULL, {0}, NULL};
        run(&a, plan, kernel, 1);
        for (int i = half ? 2 : 0; i < 4; i++)
            cr_assert_eq(o[i], values[i], "%s: %a for V = %a", name, (double)o[i], (double)values[i]);
        tlamp_plan_destroy(plan);
    }
}
