/* The INT8 scores of every kernel are exact: they equal a scalar int32 GEMM and oneDNN's dnnl_gemm_s8s8s32 (CASES B24).
 *
 * Scores are read through the public interface without a rounding: scales are powers of two, softmax_scale is 1, and the
 * bias of a pair is minus its product. If, and only if, the kernel's product is that integer, the logit is exactly 0, and
 * with V the identity every weight is exactly 1 / Lk.
 *
 * Without VNNI oneDNN adds pairs of products in saturating 16 bits, so that full-range codes are compared with it only
 * where the processor has VNNI; codes of 7 bits everywhere. */
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/guard.h"
#include "support/ladder.h"
#include "tilelamp/tilelamp.h"

static tally counts;

static void expect(int ok, const char *what, int lq, int lk, int d)
{
    if (ok) {
        counts.passed++;
        return;
    }
    counts.failed++;
    printf("FAIL %s: q%d k%d d%d, %s\n", what, lq, lk, d, tlamp_isa());
}

/* ------------------------------------------------------------------------------------------------ codes and products */

typedef struct gemm {
    int lq, lk, d;
    int8_t *q, *k;    /* [lq][d], [lk][d] */
    int32_t *product; /* [lq][lk] */
} gemm;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Codes of -limit .. limit. The first column is +-limit, so that the largest magnitude of every token is known; a block of
 * keys may have it only with a minus. */
static void fill_random(int8_t *x, int n, int d, int limit, uint32_t seed)
{
    for (int i = 0; i < n; i++)
        for (int c = 0; c < d; c++) {
            const int code = (int)(next_random(&seed) % (uint32_t)(2 * limit + 1)) - limit;
            x[i * d + c] = (int8_t)(c == 0 ? -limit : code);
        }
}

static void fill_constant(int8_t *x, int n, int d, int value)
{
    for (int i = 0; i < n * d; i++) x[i] = (int8_t)value;
}

static void multiply(gemm *g)
{
    for (int i = 0; i < g->lq; i++)
        for (int j = 0; j < g->lk; j++) {
            int32_t sum = 0;
            for (int c = 0; c < g->d; c++) sum += g->q[i * g->d + c] * g->k[j * g->d + c];
            g->product[i * g->lk + j] = sum;
        }
}

static int dnnl_agrees(const gemm *g)
{
    const int32_t zero = 0;
    int32_t *c = new_zeros((size_t)(g->lq * g->lk), sizeof *c);
    const dnnl_status_t status = dnnl_gemm_s8s8s32('N', 'T', 'F', g->lq, g->lk, g->d, 1.f, g->q, g->d, 0, g->k, g->d, 0,
                                                   0.f, c, g->lk, &zero);
    const int same = status == dnnl_success && memcmp(c, g->product, sizeof *c * (size_t)(g->lq * g->lk)) == 0;
    free(c);
    return same;
}

static int dnnl_is_exact(void)
{
    switch ((int)dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
    case dnnl_cpu_isa_avx:
    case dnnl_cpu_isa_avx2:
    case dnnl_cpu_isa_avx512_mic:
    case dnnl_cpu_isa_avx512_mic_4ops:
    case dnnl_cpu_isa_avx512_core: return 0;
    default: return 1;
    }
}

/* ------------------------------------------------------------------------------------------------ the library */

/* Where the library takes codes from. */
typedef enum { FROM_F32, FROM_F32_TOKEN, FROM_CODES } source;
static const char *const source_names[] = {"quantised by block", "quantised by token", "the caller's codes"};

typedef struct call {
    tlamp_policy policy;
    tlamp_problem problem;
    tlamp_tensors tensors;
    float *q, *k, *v, *o, *bias, *scales;
} call;

/* 2^-3 and 2^2 times the codes: amax / 127 is exactly that power of two. */
static float *to_floats(const int8_t *x, int count, float scale)
{
    float *y = new_zeros((size_t)count, sizeof *y);
    for (int i = 0; i < count; i++) y[i] = (float)x[i] * scale;
    return y;
}

static void call_begin(call *a, const gemm *g, source from)
{
    const int most = g->lq > g->lk ? g->lq : g->lk;
    const float q_scale = from == FROM_CODES ? 1.f : 0.125f, k_scale = from == FROM_CODES ? 1.f : 4.f;
    *a = (call){.q = to_floats(g->q, g->lq * g->d, q_scale), .k = to_floats(g->k, g->lk * g->d, k_scale)};
    a->v = new_zeros((size_t)(g->lk * g->lk), sizeof *a->v);
    a->o = new_zeros((size_t)(g->lq * g->lk), sizeof *a->o);
    a->bias = new_zeros((size_t)(g->lq * g->lk), sizeof *a->bias);
    a->scales = new_zeros((size_t)most, sizeof *a->scales);
    for (int j = 0; j < g->lk; j++) a->v[j * g->lk + j] = 1;
    for (int i = 0; i < g->lq * g->lk; i++) a->bias[i] = -(float)g->product[i] * q_scale * k_scale;
    for (int i = 0; i < most; i++) a->scales[i] = 1;
}

static void call_end(call *a)
{
    float *const all[] = {a->q, a->k, a->v, a->o, a->bias, a->scales};
    for (int i = 0; i < 6; i++) free(all[i]);
}

static tlamp_status execute(call *a, const gemm *g, source from)
{
    tlamp_policy_init(&a->policy, sizeof a->policy);
    tlamp_problem_init(&a->problem, sizeof a->problem);
    tlamp_tensors_init(&a->tensors, sizeof a->tensors);
    tlamp_problem *p = &a->problem;
    tlamp_tensors *t = &a->tensors;
    a->policy.kind = TLAMP_POLICY_INT8;
    a->policy.scales = from == FROM_F32_TOKEN ? TLAMP_SCALES_TOKEN : TLAMP_SCALES_BLOCK;
    p->policy = &a->policy;
    p->max_seqlen_q = g->lq;
    p->max_seqlen_k = p->head_dim_v = g->lk;
    p->num_heads_q = p->num_heads_k = 1;
    p->head_dim_qk = g->d;
    p->softmax_scale = 1;
    p->has_bias = 1;
    p->bias_stride = (tlamp_score_strides){0, 0, g->lk, 1};
    t->q = a->q;
    t->k = a->k;
    t->v = a->v;
    t->o = a->o;
    t->bias = a->bias;
    if (from == FROM_CODES) {
        p->q_dtype = p->k_dtype = TLAMP_INT8;
        t->q = g->q;
        t->k = g->k;
        t->q_scale = t->k_scale = a->scales;
    }
    const tlamp_status status = tlamp_set_strides(p, TLAMP_TENSOR_BSHD, NULL);
    return status ? status : tlamp_attention(p, t, NULL, NULL);
}

static void library_agrees(const gemm *g, source from)
{
    call a;
    call_begin(&a, g, from);
    const tlamp_status status = execute(&a, g, from);
    int same = status == TLAMP_OK;
    for (int i = 0; i < g->lq * g->lk && same; i++) same = a.o[i] == 1.f / (float)g->lk;
    expect(same || status == TLAMP_UNSUPPORTED, source_names[from], g->lq, g->lk, g->d);
    call_end(&a);
}

/* ------------------------------------------------------------------------------------------------ cases */

static void run_shape(int lq, int lk, int d)
{
    gemm g = {lq,
              lk,
              d,
              new_zeros((size_t)(lq * d), 1),
              new_zeros((size_t)(lk * d), 1),
              new_zeros((size_t)(lq * lk), sizeof(int32_t))};
    const int exact = dnnl_is_exact();

    fill_random(g.q, lq, d, 127, 1);
    fill_random(g.k, lk, d, 127, 2);
    multiply(&g);
    if (exact) expect(dnnl_agrees(&g), "oneDNN, codes of 8 bits", lq, lk, d);
    for (source from = FROM_F32; from <= FROM_CODES; from++) library_agrees(&g, from);

    for (int sign = -1; sign <= 1; sign += 2) {
        fill_constant(g.q, lq, d, 127);
        fill_constant(g.k, lk, d, 127 * sign);
        multiply(&g);
        if (exact) expect(dnnl_agrees(&g), "oneDNN, all +-127", lq, lk, d);
        for (source from = FROM_F32; from <= FROM_CODES; from++) library_agrees(&g, from);
    }

    fill_random(g.q, lq, d, 63, 3);
    fill_random(g.k, lk, d, 63, 4);
    multiply(&g);
    expect(dnnl_agrees(&g), "oneDNN, codes of 7 bits", lq, lk, d);
    library_agrees(&g, FROM_CODES);
    free(g.q);
    free(g.k);
    free(g.product);
}

/* The sum of d products of 127 and 127 must be a float: d up to 1040. */
static tally run_all(void *context)
{
    static const int dims[] = {1,  2,  3,  4,  5,  8,   15,  16,  17,  31,  32,  33,  40,  63,
                               64, 65, 72, 80, 96, 112, 128, 192, 255, 256, 257, 512, 1024};
    static const int lengths[][2] = {{1, 1}, {5, 7}, {1, 65}, {37, 64}, {64, 129}, {130, 70}};
    (void)context;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; j++)
            run_shape(lengths[j][0], lengths[j][1], dims[i]);
    return counts;
}

int main(void)
{
    const tally n = ladder_run(NULL, run_all, NULL);
    const int exact = dnnl_is_exact();
    printf("%lld passed, %lld failed\n", (long long)n.passed, (long long)n.failed);
    if (n.failed) return 1;
    if (exact) return 0;
    puts("skipped: oneDNN with codes of 8 bits, which it adds exactly only on processors with VNNI; all else passed");
    return 77;
}
