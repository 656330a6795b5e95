/* The device path against the double reference, for many shapes: device memory twice and host memory once must give the
 * same bits, and those must be within the policy's bound. A plain program for a machine that has nothing but a driver.
 *
 * Usage: gputest [random cases, default 240]. Exit code 77: there is no device. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilelamp/tilelamp.h"

enum { POISON_NONE, POISON_Q, POISON_K, POISON_V, POISON_KINDS };

typedef struct {
    int64_t batch, lq, lk;
    int32_t heads_q, heads_k, d, percent; /* INT8: 0 is HIGH, 100 is INT8, else ROUTED */
    tlamp_mask_kind mask;
    tlamp_tensor_layout layout;
    int32_t poison; /* a NaN in Q, K or V */
    uint32_t seed;
} test_case;

typedef struct {
    int64_t q, k, o, lse, words; /* elements */
    uint16_t *q_data, *k_data, *v_data;
    uint64_t *words_data;
} test_data;

static uint32_t state;

static double uniform(void) /* (-1, 1) */
{
    state = state * 1664525u + 1013904223u;
    return (double)(state >> 8) * 0x1p-23 - 1. + 0x1p-24;
}

static int64_t below(int64_t n) { return (int64_t)((uniform() + 1.) / 2. * (double)n); }

static void *allocate(int64_t count, size_t size)
{
    void *p = calloc((size_t)count + 1, size);
    if (!p) abort();
    return p;
}

static uint16_t *random_tensor(int64_t count)
{
    uint16_t *x = allocate(count, 2);
    for (int64_t i = 0; i < count; i++) x[i] = tlamp_f32_to_f16((float)((uniform() + uniform() + uniform()) * 1.2));
    return x;
}

static void must(tlamp_status s, const tlamp_error *err)
{
    if (!s) return;
    printf("%s: %s %s\n", tlamp_status_string(s), err->field, err->text);
    exit(1);
}

/* ------------------------------------------------------------------------------------------------ one case */

static const char *name_of(const test_case *c)
{
    static char name[200];
    static const char *const masks[] = {"", " causal", " causal-tl"}, *const poisons[] = {"", " NaN in q", " NaN in k",
                                                                                          " NaN in v"};
    (void)snprintf(name, sizeof name, "b%d hq%d hk%d q%d k%d d%d%s %s int8:%d%%%s seed:%u", (int)c->batch,
                   (int)c->heads_q, (int)c->heads_k, (int)c->lq, (int)c->lk, (int)c->d, masks[c->mask],
                   c->layout == TLAMP_TENSOR_BSHD ? "bshd" : "bhsd", (int)c->percent, poisons[c->poison], c->seed);
    return name;
}

static void make_data(test_data *t, const test_case *c, const tlamp_geometry *geometry)
{
    tlamp_error err = {.struct_size = sizeof err};
    state = c->seed;
    t->q = c->batch * c->heads_q * c->lq * c->d;
    t->k = c->batch * c->heads_k * c->lk * c->d;
    t->o = t->q;
    t->lse = c->batch * c->heads_q * c->lq;
    t->q_data = random_tensor(t->q);
    t->k_data = random_tensor(t->k);
    t->v_data = random_tensor(t->k);
    if (c->poison == POISON_Q && t->q) t->q_data[below(t->q)] = 0x7e00;
    if (c->poison == POISON_K && t->k) t->k_data[below(t->k)] = 0x7e00;
    if (c->poison == POISON_V && t->k) t->v_data[below(t->k)] = 0x7e00;
    const int64_t each = tlamp_layout_words(geometry), maps = c->batch * c->heads_k;
    t->words = each * maps;
    t->words_data = allocate(t->words, 8);
    for (int64_t m = 0; m < maps; m++) { /* every head a map of its own */
        tlamp_layout layout;
        tlamp_layout_init(&layout, sizeof layout);
        layout.kind = TLAMP_LAYOUT_ROW_RAND;
        layout.coverage = c->percent / 100.;
        layout.seed = c->seed + (uint32_t)m;
        must(tlamp_layout_build(&layout, geometry, t->words_data + m * each, each, NULL, &err), &err);
    }
}

static void *to_device(const void *data, size_t bytes)
{
    void *p = omp_target_alloc(bytes + 16, 0);
    if (!p || (data && omp_target_memcpy(p, data, bytes, 0, 0, 0, omp_get_initial_device()))) abort();
    return p;
}

static void from_device(void *to, void *from, size_t bytes)
{
    if (omp_target_memcpy(to, from, bytes, 0, 0, omp_get_initial_device(), 0)) abort();
}

/* Into o and lse on the host, which hold garbage before. */
static void run_case(const tlamp_problem *p, const tlamp_tensors *on_host, const test_data *t, tlamp_memory memory,
                     uint16_t *o, float *lse)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_tensors x = *on_host;
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.device = 0;
    exec.memory = memory;
    memset(o, 0xa5, (size_t)t->o * 2);
    memset(lse, 0xa5, (size_t)t->lse * 4);
    x.o = o;
    x.lse = lse;
    if (memory == TLAMP_MEMORY_HOST) {
        must(tlamp_attention(p, &x, &exec, &err), &err);
        return;
    }
    void *q = to_device(t->q_data, (size_t)t->q * 2), *k = to_device(t->k_data, (size_t)t->k * 2);
    void *v = to_device(t->v_data, (size_t)t->k * 2), *words = to_device(t->words_data, (size_t)t->words * 8);
    void *o_there = to_device(o, (size_t)t->o * 2), *lse_there = to_device(lse, (size_t)t->lse * 4);
    x.q = q;
    x.k = k;
    x.v = v;
    x.o = o_there;
    x.lse = lse_there;
    if (x.words) x.words = words;
    must(tlamp_attention(p, &x, &exec, &err), &err);
    from_device(o, o_there, (size_t)t->o * 2);
    from_device(lse, lse_there, (size_t)t->lse * 4);
    void *all[] = {q, k, v, words, o_there, lse_there};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) omp_target_free(all[i], 0);
}

typedef struct {
    double o, lse; /* error / bound */
} ratios;

/* What f16 P adds to the bound of a policy with f32 P: half an ulp of every weight, or half the smallest subnormal. The
 * sum of weights is at least 1. And tensor cores truncate where f32 rounds: twice the bound. */
static double allowed(double bound, double abs_pv, const test_case *c)
{
    return 2. * bound + 0x1p-11 * abs_pv * 1.01 + (double)c->lk * 0x1p-25 * 4.;
}

static int is_worse(double *ratio, double x, double reference, double allowed)
{
    if (isnan(reference) || isinf(reference)) return isnan(reference) ? !isnan(x) : x != reference;
    const double r = fabs(x - reference) / (allowed > 0 ? allowed : 1e-30);
    if (r > *ratio) *ratio = r;
    return !(r <= 1.);
}

static int64_t compare(const test_case *c, const tlamp_problem *p, const tlamp_tensors *x, const test_data *t,
                       const uint16_t *o, const float *lse, ratios *worst)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_reference_outputs r = {.struct_size = sizeof r};
    r.o = allocate(t->o, 8);
    r.o_bound = allocate(t->o, 8);
    r.abs_pv = allocate(t->o, 8);
    r.lse = allocate(t->lse, 8);
    r.lse_bound = allocate(t->lse, 8);
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    must(tlamp_reference(p, x, &r, &exec, &err), &err);
    int64_t bad = 0, first = -1;
    double first_value = 0, first_truth = 0, first_allowed = 0;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_q; h++)
            for (int64_t i = 0; i < c->lq; i++) {
                const int64_t row = b * c->lq + i, l = h * c->batch * c->lq + row;
                const double y = (double)lse[b * p->lse_stride.batch + h * p->lse_stride.head + i * p->lse_stride.seq];
                bad += is_worse(&worst->lse, y, r.lse[l], r.lse_bound[l] * 2. + 0x1p-20 * (1. + fabs(r.lse[l])));
                const uint16_t *o_row = o + b * p->o_stride.batch + h * p->o_stride.head + i * p->o_stride.seq;
                for (int64_t e = 0; e < c->d; e++) {
                    const int64_t at = (row * c->heads_q + h) * c->d + e;
                    const double limit = allowed(r.o_bound[at], r.abs_pv[at], c),
                                 value = (double)tlamp_f16_to_f32(o_row[e]);
                    if (!is_worse(&worst->o, value, r.o[at], limit)) continue;
                    if (!bad++ || first < 0) {
                        first = at;
                        first_value = value;
                        first_truth = r.o[at];
                        first_allowed = limit;
                    }
                }
            }
    if (bad)
        printf("FAIL %s\n     %lld elements out of bound; o[%lld] is %.6g, should be %.6g +- %.2g\n", name_of(c),
               (long long)bad, (long long)first, first_value, first_truth, first_allowed);
    free(r.o);
    free(r.o_bound);
    free(r.abs_pv);
    free(r.lse);
    free(r.lse_bound);
    return bad;
}

static int test(const test_case *c, ratios *worst)
{
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_policy policy;
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = c->percent == 0 ? TLAMP_POLICY_HIGH : c->percent == 100 ? TLAMP_POLICY_INT8 : TLAMP_POLICY_ROUTED;
    tlamp_problem p;
    tlamp_problem_init(&p, sizeof p);
    p.batch = c->batch;
    p.max_seqlen_q = c->lq;
    p.max_seqlen_k = c->lk;
    p.num_heads_q = c->heads_q;
    p.num_heads_k = c->heads_k;
    p.head_dim_qk = p.head_dim_v = c->d;
    p.q_dtype = p.k_dtype = p.v_dtype = p.o_dtype = TLAMP_F16;
    p.mask = c->mask;
    p.policy = &policy;
    must(tlamp_set_strides(&p, c->layout, &err), &err);

    tlamp_geometry geometry;
    tlamp_geometry_init(&geometry, sizeof geometry);
    geometry.seqlen_q = c->lq;
    geometry.seqlen_k = c->lk;
    geometry.mask = c->mask;
    test_data t;
    make_data(&t, c, &geometry);
    tlamp_tensors x;
    tlamp_tensors_init(&x, sizeof x);
    x.q = t.q_data;
    x.k = t.k_data;
    x.v = t.v_data;
    if (policy.kind == TLAMP_POLICY_ROUTED) {
        x.words = t.words_data;
        x.words_stride_row = 1;
        x.words_stride_head = tlamp_layout_words(&geometry);
        x.words_stride_batch = x.words_stride_head * c->heads_k;
    }

    uint16_t *o[3];
    float *lse[3];
    int differs = 0;
    for (int i = 0; i < 3; i++) {
        o[i] = allocate(t.o, 2);
        lse[i] = allocate(t.lse, 4);
        run_case(&p, &x, &t, i < 2 ? TLAMP_MEMORY_DEVICE : TLAMP_MEMORY_HOST, o[i], lse[i]);
        differs |= memcmp(o[0], o[i], (size_t)t.o * 2) != 0 || memcmp(lse[0], lse[i], (size_t)t.lse * 4) != 0;
    }
    if (differs) printf("FAIL %s\n     runs differ\n", name_of(c));
    const int bad = compare(c, &p, &x, &t, o[0], lse[0], worst) != 0;
    for (int i = 0; i < 3; i++) {
        free(o[i]);
        free(lse[i]);
    }
    free(t.q_data);
    free(t.k_data);
    free(t.v_data);
    free(t.words_data);
    return bad || differs;
}

/* ------------------------------------------------------------------------------------------------ all */

static test_case random_case(uint32_t seed)
{
    static const int64_t lengths[] = {1, 2, 17, 63, 64, 65, 127, 128, 129, 200, 256, 300};
    static const int32_t percents[] = {0, 50, 75, 100}, groups[] = {1, 1, 2, 4};
    state = seed * 2654435761u;
    (void)uniform();
    test_case c = {.seed = seed};
    c.batch = 1 + below(2);
    c.lq = lengths[below(12)];
    c.lk = lengths[below(12)];
    c.heads_k = 1 + (int32_t)below(2);
    c.heads_q = c.heads_k * groups[below(4)];
    c.d = below(2) ? 64 : 128;
    c.percent = percents[below(4)];
    c.mask = (tlamp_mask_kind)below(3);
    c.layout = below(2) ? TLAMP_TENSOR_BSHD : TLAMP_TENSOR_BHSD;
    c.poison = below(3) ? POISON_NONE : 1 + (int32_t)below(POISON_KINDS - 1);
    return c;
}

int main(int argc, char **argv)
{
    static const test_case picked[] = {
        {1, 130, 5000, 2, 1, 128, 50, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 1},
        {1, 130, 5000, 2, 1, 64, 75, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_NONE, 2},
        {1, 300, 12400, 1, 1, 128, 75, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 3},
        {1, 1024, 1024, 2, 2, 128, 100, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_NONE, 4},
        {1, 1024, 1024, 2, 2, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BHSD, POISON_NONE, 5},
        {1, 130, 0, 1, 1, 64, 100, TLAMP_MASK_NONE, TLAMP_TENSOR_BSHD, POISON_NONE, 6},
        {1, 0, 130, 1, 1, 64, 50, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 7},
        {0, 130, 130, 1, 1, 128, 0, TLAMP_MASK_CAUSAL, TLAMP_TENSOR_BSHD, POISON_NONE, 8},
    };
    enum { PICKED = sizeof picked / sizeof picked[0] };
    if (tlamp_num_devices() == 0) {
        puts("skipped: no device that this library has code for");
        return 77;
    }
    const int count = argc > 1 ? atoi(argv[1]) : 240;
    ratios worst[101] = {{0, 0}};
    int failed = 0;
    for (int i = 0; i < PICKED + count; i++) {
        const test_case c = i < PICKED ? picked[i] : random_case((uint32_t)(i - PICKED + 100));
        failed += test(&c, &worst[c.percent]);
        fflush(stdout);
    }
    for (int i = 0; i <= 100; i++)
        if (worst[i].o > 0 || worst[i].lse > 0)
            printf("int8 %3d %%: error / bound at most %.3f (o), %.3f (lse)\n", i, worst[i].o, worst[i].lse);
    printf("%d passed, %d failed\n", PICKED + count - failed, failed);
    return failed != 0;
}
