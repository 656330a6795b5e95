/* tlamp_reference against the known faults of docs/cases.md and against a second, independent computation. */
#include <criterion/criterion.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tilelamp/tilelamp.h"

/* --------------------------------------------------------------------------------------------- one small problem */

enum { MOST = 1 << 16 };

/* f32, dense [batch, seq, head, dim] unless a test says otherwise. */
typedef struct {
    tlamp_problem p;
    tlamp_tensors t;
    tlamp_reference_outputs out;
    float *q, *k, *v;
    double *o, *lse, *weights, *abs_pv, *o_bound, *lse_bound;
} fixture;

static double *doubles(size_t n)
{
    double *x = malloc((n + 1) * sizeof *x);
    cr_assert(x);
    for (size_t i = 0; i < n + 1; i++) x[i] = -7777;
    return x;
}

static float *floats(size_t n)
{
    float *x = calloc(n + 1, sizeof *x);
    cr_assert(x);
    return x;
}

static fixture make(int64_t batch, int32_t hq, int32_t hk, int64_t lq, int64_t lk, int32_t d, int32_t dv)
{
    fixture f = {0};
    tlamp_problem_init(&f.p, sizeof f.p);
    tlamp_tensors_init(&f.t, sizeof f.t);
    f.p.batch = batch;
    f.p.num_heads_q = hq;
    f.p.num_heads_k = hk;
    f.p.max_seqlen_q = lq;
    f.p.max_seqlen_k = lk;
    f.p.head_dim_qk = d;
    f.p.head_dim_v = dv;
    f.p.softmax_scale = 1;
    cr_assert_eq(tlamp_set_strides(&f.p, TLAMP_TENSOR_BSHD, NULL), TLAMP_OK);
    const size_t rows = (size_t)(batch * lq * hq), keys = (size_t)(batch * lk * hk);
    f.t.q = f.q = floats(rows * (size_t)d);
    f.t.k = f.k = floats(keys * (size_t)d);
    f.t.v = f.v = floats(keys * (size_t)dv);
    f.t.o = f.q; /* required, but not written by the reference */
    f.o = doubles(rows * (size_t)dv);
    f.abs_pv = doubles(rows * (size_t)dv);
    f.o_bound = doubles(rows * (size_t)dv);
    f.lse = doubles(rows);
    f.lse_bound = doubles(rows);
    f.weights = doubles(rows * (size_t)lk);
    f.out = (tlamp_reference_outputs){sizeof f.out, f.o, f.lse, f.weights, f.abs_pv, f.o_bound, f.lse_bound, 0};
    return f;
}

static void run(fixture *f)
{
    tlamp_error err = {.struct_size = sizeof err};
    const tlamp_status status = tlamp_reference(&f->p, &f->t, &f->out, NULL, &err);
    cr_assert_eq(status, TLAMP_OK, "%s: %s", err.field, err.text);
}

static void drop(fixture *f)
{
    free(f->q);
    free(f->k);
    free(f->v);
    free(f->o);
    free(f->lse);
    free(f->weights);
    free(f->abs_pv);
    free(f->o_bound);
    free(f->lse_bound);
}

static void set(float *to, size_t n, float value)
{
    for (size_t i = 0; i < n; i++) to[i] = value;
}

static void count_up(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = (float)i;
}

#define NEAR(actual, expected, tolerance)                                                                              \
    cr_assert_float_eq(actual, expected, tolerance, "%s = %.9g, not %.9g", #actual, (double)(actual),                  \
                       (double)(expected))
#define SAME(actual, expected) cr_assert((actual) == (expected), "%s = %.17g", #actual, (double)(actual))

/* --------------------------------------------------------------------------------------------- A. masks, empty rows */

Test(reference, b01_row_without_keys)
{
    fixture f = make(1, 1, 1, 4, 4, 2, 2);
    uint8_t mask[16];
    memset(mask, 1, sizeof mask);
    memset(mask + 4, 0, 4);
    f.p.has_bool_mask = 1;
    f.p.bool_mask_stride = (tlamp_score_strides){0, 0, 4, 1};
    f.t.bool_mask = mask;
    set(f.v, 8, 1);
    run(&f);
    for (int i = 0; i < 4; i++) {
        SAME(f.o[2 * i], i == 1 ? 0 : 1);
        if (i == 1)
            SAME(f.lse[i], -HUGE_VAL);
        else
            NEAR(f.lse[i], log(4), 1e-12);
        for (int j = 0; j < 4; j++) SAME(f.weights[4 * i + j], i == 1 ? 0 : .25);
    }
    SAME(f.o_bound[2], 0);
    SAME(f.lse_bound[1], 0);
    drop(&f);
}

Test(reference, b01_bottom_right_more_rows_than_keys)
{
    fixture f = make(1, 1, 1, 5, 2, 2, 1);
    f.p.mask = TLAMP_MASK_CAUSAL;
    set(f.v, 2, 1);
    run(&f);
    for (int i = 0; i < 5; i++) SAME(f.o[i], i < 3 ? 0 : 1);
    for (int i = 0; i < 3; i++) SAME(f.lse[i], -HUGE_VAL);
    SAME(f.lse[3], 0);
    NEAR(f.lse[4], 0.693147, 1e-6);
    drop(&f);
}

Test(reference, b02_band)
{
    for (int32_t d = 1; d <= 4; d += 3) {
        fixture f = make(1, 1, 1, 640, 640, d, 1);
        f.p.mask = TLAMP_MASK_CAUSAL;
        f.p.window_left = 9;
        set(f.v, 640, 1);
        run(&f);
        for (int i = 0; i < 640; i++) NEAR(f.o[i], 1, 1e-15);
        drop(&f);
    }
}

Test(reference, b04_very_negative_logits)
{
    fixture f = make(1, 1, 1, 1, 2, 1, 1);
    const uint8_t mask[2] = {1, 0};
    f.p.has_bool_mask = 1;
    f.p.bool_mask_stride = (tlamp_score_strides){0, 0, 0, 1};
    f.t.bool_mask = mask;
    f.q[0] = -20000;
    f.k[0] = 1;
    f.v[0] = 1;
    f.v[1] = 100;
    run(&f);
    SAME(f.o[0], 1);
    SAME(f.lse[0], -20000);
    drop(&f);

    const float levels[5] = {-1e3f, -4.9e4f, -5.1e4f, -2.45e5f, -1e9f};
    for (int n = 0; n < 5; n++) {
        f = make(1, 1, 1, 1, 64, 128, 1);
        set(f.q, 128, 1);
        for (size_t j = 0; j < 64; j++) set(f.k + 128 * j, 128, (levels[n] + (j == 0 ? 5000.f : 0)) / 128);
        count_up(f.v, 64);
        f.v[0] = 100;
        run(&f);
        SAME(f.o[0], 100);
        drop(&f);
    }

    f = make(1, 1, 1, 1, 64, 1, 1);
    f.q[0] = 1;
    set(f.k, 64, -2.45e5f);
    count_up(f.v, 64);
    run(&f);
    NEAR(f.o[0], 31.5, 1e-12);
    NEAR(f.lse[0], -2.45e5 + log(64), 1e-9);
    drop(&f);
}

Test(reference, b07_almost_minus_infinity)
{
    float bias[8];
    set(bias, 8, -FLT_MAX);
    bias[6] = 0;
    fixture f = make(1, 1, 1, 2, 4, 1, 1);
    f.p.has_bias = 1;
    f.p.bias_stride = (tlamp_score_strides){0, 0, 4, 1};
    f.t.bias = bias;
    count_up(f.v, 4);
    run(&f);
    SAME(f.o[0], 1.5); /* uniform: a finite bias hides nothing */
    SAME(f.lse[0], -(double)FLT_MAX);
    SAME(f.o[1], 2);
    SAME(f.lse[1], 0);
    cr_assert(f.o_bound[0] >= 0 && f.o_bound[0] < 10);
    cr_assert(f.o_bound[1] < 1e-4);
    set(f.q, 2, -1e16f); /* scores of -1e32 beside it */
    set(f.k, 4, 1e16f);
    run(&f);
    SAME(f.o[0], 1.5);
    SAME(f.o[1], 2);
    drop(&f);
}

Test(reference, b08_alignment)
{
    fixture f = make(1, 1, 1, 2, 5, 1, 1);
    f.p.mask = TLAMP_MASK_CAUSAL;
    count_up(f.v, 5);
    run(&f);
    NEAR(f.o[0], 1.5, 1e-12);
    NEAR(f.o[1], 2.0, 1e-12);
    NEAR(f.lse[0], 1.386294, 1e-6);
    NEAR(f.lse[1], 1.609438, 1e-6);
    f.p.mask = TLAMP_MASK_CAUSAL_TOP_LEFT;
    run(&f);
    SAME(f.o[0], 0);
    SAME(f.o[1], .5);
    drop(&f);

    f = make(1, 1, 1, 3, 128, 1, 1);
    f.p.mask = TLAMP_MASK_CAUSAL;
    count_up(f.v, 128);
    run(&f);
    for (int i = 0; i < 3; i++) NEAR(f.o[i], 62.5 + .5 * i, 1e-12);
    drop(&f);
}

Test(reference, b09_window)
{
    fixture f = make(1, 1, 1, 6, 6, 1, 1);
    const double expected[6] = {0, .5, 1, 2, 3, 4};
    f.p.mask = TLAMP_MASK_CAUSAL;
    f.p.window_left = 2;
    count_up(f.v, 6);
    run(&f);
    for (int i = 0; i < 6; i++) NEAR(f.o[i], expected[i], 1e-12);
    f.p.window_left = 5; /* as good as none */
    run(&f);
    for (int i = 0; i < 6; i++) NEAR(f.o[i], .5 * i, 1e-12);
    f.p.window_left = f.p.window_right = INT64_MAX;
    f.p.mask = TLAMP_MASK_NONE;
    run(&f);
    for (int i = 0; i < 6; i++) NEAR(f.o[i], 2.5, 1e-12);
    f.p.window_left = -3;
    cr_assert_eq(tlamp_reference(&f.p, &f.t, &f.out, NULL, NULL), TLAMP_INVALID_ARGUMENT);
    drop(&f);

    f = make(1, 1, 1, 129, 64, 1, 1); /* row i sees i - 97 .. i - 1 */
    f.p.window_left = 32;
    f.p.window_right = 64;
    run(&f);
    for (int i = 0; i < 129; i++) cr_assert_eq(f.lse[i] == -HUGE_VAL, i == 0, "row %d", i);
    drop(&f);
}

Test(reference, b10_softcap)
{
    fixture f = make(1, 1, 1, 1, 1, 1, 1);
    f.q[0] = 8;
    f.k[0] = 1;
    f.p.softmax_scale = .5f;
    f.p.softcap = 2;
    run(&f);
    NEAR(f.lse[0], 1.928055, 1e-6);
    drop(&f);

    const uint8_t mask[2] = {1, 0};
    f = make(1, 1, 1, 1, 2, 1, 1);
    f.p.softcap = 1;
    f.p.has_bool_mask = 1;
    f.p.bool_mask_stride = (tlamp_score_strides){0, 0, 0, 1};
    f.t.bool_mask = mask;
    run(&f);
    SAME(f.weights[0], 1);
    SAME(f.weights[1], 0);
    f.p.has_bool_mask = 0;
    f.p.softcap = 50;
    f.q[0] = 1e4f;
    f.k[0] = 1;
    f.k[1] = -1;
    run(&f);
    NEAR(f.lse[0], 50, 1e-12);
    NEAR(f.weights[1], exp(-100), 1e-50);
    drop(&f);
}

Test(reference, b11_sinks)
{
    float sinks[2] = {.5f, 100};
    fixture f = make(1, 2, 1, 2, 3, 1, 1);
    f.p.has_sinks = 1;
    f.t.sinks = sinks;
    f.p.mask = TLAMP_MASK_NONE;
    set(f.v, 3, 1);
    run(&f);
    for (int i = 0; i < 2; i++) { /* every row of a head has its head's sink */
        NEAR(f.o[2 * i], 0.645339, 1e-6);
        NEAR(f.lse[i], 1.536592, 1e-6);
        NEAR(f.lse[2 + i], 100, 1e-12);
        cr_assert(f.o[2 * i + 1] > 1.1e-43 && f.o[2 * i + 1] < 1.2e-43);
    }
    f.p.window_right = 0;
    f.p.window_left = 0;
    f.p.max_seqlen_k = 0; /* no keys at all */
    run(&f);
    for (int i = 0; i < 4; i++) SAME(f.o[i], 0);
    for (int i = 0; i < 4; i++) SAME(f.lse[i], (double)sinks[i / 2]);
    for (int i = 0; i < 4; i++) SAME(f.o_bound[i], 0);
    sinks[0] = -INFINITY;
    f.p.max_seqlen_k = 3;
    f.p.window_left = f.p.window_right = -1;
    run(&f);
    SAME(f.o[0], 1);
    NEAR(f.lse[0], log(3), 1e-12);
    drop(&f);
}

/* --------------------------------------------------------------------------------------------- B. shapes */

Test(reference, b17_gqa)
{
    fixture f = make(1, 6, 2, 1, 1, 1, 1);
    count_up(f.v, 2);
    run(&f);
    for (int h = 0; h < 6; h++) SAME(f.o[h], h / 3);
    f.p.num_heads_q = 3;
    cr_assert_eq(tlamp_reference(&f.p, &f.t, &f.out, NULL, NULL), TLAMP_INVALID_ARGUMENT);
    for (int h = 0; h < 6; h++) SAME(f.o[h], h / 3);
    drop(&f);
}

Test(reference, packed_rows_and_unowned_rows)
{
    const int32_t cu_q[4] = {0, 2, 2, 3}, cu_k[4] = {0, 1, 4, 4};
    fixture f = make(1, 1, 1, 4, 5, 1, 1); /* 4 rows of which 3 are owned, 5 keys of which 4 */
    f.p.varlen = 1;
    f.p.batch = 3;
    f.p.total_q = 4;
    f.p.total_k = 5;
    f.p.max_seqlen_q = 2;
    f.p.max_seqlen_k = 3;
    f.t.cu_seqlens_q = cu_q;
    f.t.cu_seqlens_k = cu_k;
    count_up(f.v, 5);
    f.v[0] = 9;
    run(&f);
    SAME(f.o[0], 9);
    SAME(f.o[1], 9);
    SAME(f.o[2], 0); /* its sequence has no keys */
    SAME(f.lse[2], -HUGE_VAL);
    SAME(f.o[3], -7777); /* nobody's */
    SAME(f.lse[3], -7777);
    SAME(f.lse_bound[3], -7777);
    SAME(f.weights[9], -7777);
    for (int j = 0; j < 3; j++) SAME(f.weights[j], j == 0 ? 1 : 0);
    drop(&f);
}

/* --------------------------------------------------------------------------------------------- C. numerics */

Test(reference, b20_large)
{
    fixture f = make(1, 1, 1, 1, 1, 64, 1);
    f.p.softmax_scale = 0;
    set(f.q, 64, 133120);
    set(f.k, 64, 133120);
    f.v[0] = 133120;
    run(&f);
    NEAR(f.lse[0], 1.4177e11, 1e7);
    SAME(f.o[0], 133120);
    cr_assert(f.o_bound[0] < 1);
    drop(&f);

    f = make(1, 1, 1, 1, 3, 1, 1); /* one logit of 1e30, others -1e30 */
    f.q[0] = 1e15f;
    set(f.k, 3, -1e15f);
    f.k[1] = 1e15f;
    count_up(f.v, 3);
    run(&f);
    SAME(f.o[0], 1);
    drop(&f);
}

Test(reference, b25_natural_log)
{
    fixture f = make(1, 2, 1, 3, 2, 1, 1);
    run(&f);
    for (int i = 0; i < 6; i++) NEAR(f.lse[i], 0.693147, 1e-6);
    for (int i = 0; i < 3; i++) f.q[2 * i] = f.q[2 * i + 1] = 0;
    set(f.k, 2, 1);
    for (int i = 0; i < 3; i++)
        for (int h = 0; h < 2; h++) f.q[2 * i + h] = (float)(10 * h + i); /* [head][row] */
    run(&f);
    for (int i = 0; i < 6; i++) NEAR(f.lse[i], 10 * (i / 3) + i % 3 + log(2), 1e-12);
    drop(&f);
}

/* --------------------------------------------------------------------------------------------- NaN and Inf */

Test(reference, hidden_keys_may_hold_anything)
{
    for (int how = 0; how < 3; how++) {
        float bias[6] = {0, 0, -INFINITY, 0, 0, -INFINITY};
        const uint8_t mask[6] = {1, 1, 0, 1, 1, 0};
        const int32_t used = 2;
        fixture f = make(1, 1, 1, 2, 3, 2, 2);
        f.p.has_bias = how == 0;
        f.p.has_bool_mask = how == 1;
        f.p.has_seqused_k = how == 2;
        f.p.bias_stride = f.p.bool_mask_stride = (tlamp_score_strides){0, 0, 3, 1};
        f.t.bias = bias;
        f.t.bool_mask = mask;
        f.t.seqused_k = &used;
        set(f.k + 4, 2, NAN);
        set(f.v + 4, 2, NAN);
        f.v[1] = 2;
        run(&f);
        for (int i = 0; i < 2; i++) {
            SAME(f.o[2 * i], 0);
            SAME(f.o[2 * i + 1], 1);
            SAME(f.weights[3 * i + 2], 0);
            cr_assert(f.o_bound[2 * i] < 1e-4 && f.lse_bound[i] < 1e-4);
        }
        drop(&f);
    }
}

Test(reference, nan_in_k_reaches_the_rows_that_see_it)
{
    fixture f = make(1, 1, 1, 3, 3, 2, 2);
    f.p.mask = TLAMP_MASK_CAUSAL;
    f.k[3] = NAN; /* key 1 */
    set(f.v, 6, 1);
    run(&f);
    SAME(f.o[0], 1);
    for (int i = 2; i < 6; i++) cr_assert(isnan(f.o[i]) && isnan(f.o_bound[i]) && isnan(f.abs_pv[i]));
    for (int i = 1; i < 3; i++) cr_assert(isnan(f.lse[i]) && isnan(f.lse_bound[i]));
    SAME(f.weights[5], 0); /* row 1 does not see key 2 */
    drop(&f);
}

Test(reference, infinite_logits)
{
    fixture f = make(1, 1, 1, 1, 2, 1, 1);
    f.q[0] = 1;
    f.k[1] = INFINITY;
    run(&f);
    cr_assert(isnan(f.o[0]) && isnan(f.lse[0]));
    f.k[1] = -INFINITY; /* weight 0 */
    f.v[0] = 3;
    run(&f);
    SAME(f.o[0], 3);
    SAME(f.lse[0], 0);
    f.k[0] = -INFINITY; /* every logit: as good as empty, whatever V holds */
    f.v[0] = NAN;
    run(&f);
    SAME(f.o[0], 0);
    SAME(f.lse[0], -HUGE_VAL);
    drop(&f);
}

Test(reference, nonfinite_values_stay_in_their_column)
{
    fixture f = make(1, 1, 1, 1, 2, 1, 4);
    f.v[0] = NAN;
    f.v[1] = INFINITY;
    f.v[2] = -INFINITY;
    f.v[3] = 4;
    run(&f);
    cr_assert(isnan(f.o[0]));
    SAME(f.o[1], HUGE_VAL);
    SAME(f.o[2], -HUGE_VAL);
    SAME(f.o[3], 2);
    for (int c = 0; c < 3; c++) cr_assert(isnan(f.o_bound[c]));
    cr_assert(f.o_bound[3] < 1e-4);
    f.v[5] = -INFINITY; /* Inf - Inf */
    run(&f);
    cr_assert(isnan(f.o[1]));
    f.v[5] = 0;
    f.q[0] = 1;
    f.k[1] = 1000; /* the weight of key 0 underflows: 0 * Inf, 0 * NaN */
    run(&f);
    for (int c = 0; c < 3; c++) cr_assert(isnan(f.o[c]));
    SAME(f.o[3], 0);
    drop(&f);
}

/* --------------------------------------------------------------------------------------------- a second computation */

static uint64_t random_state;

static double uniform(void) /* [0, 1) */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) * 0x1p-53;
}

static int64_t draw(int64_t n) { return (int64_t)(uniform() * (double)n); } /* 0 .. n-1 */
static double normal(void)
{
    return uniform() + uniform() + uniform() + uniform() - uniform() - uniform() - uniform() - uniform();
}

/* A tensor of random numbers in any dtype, and the same numbers as doubles. */
typedef struct {
    void *data;
    double *value;
    tlamp_dtype dtype;
} noise;

static noise make_noise(tlamp_dtype dtype)
{
    noise n = {malloc(MOST * sizeof(float)), malloc(MOST * sizeof(double)), dtype};
    cr_assert(n.data && n.value);
    for (int i = 0; i < MOST; i++) {
        const float x = (float)normal();
        if (dtype == TLAMP_F32) ((float *)n.data)[i] = x;
        if (dtype == TLAMP_F16) ((uint16_t *)n.data)[i] = tlamp_f32_to_f16(x);
        if (dtype == TLAMP_BF16) ((uint16_t *)n.data)[i] = tlamp_f32_to_bf16(x);
        n.value[i] = (double)x;
        if (dtype == TLAMP_F16) n.value[i] = (double)tlamp_f16_to_f32(((uint16_t *)n.data)[i]);
        if (dtype == TLAMP_BF16) n.value[i] = (double)tlamp_bf16_to_f32(((uint16_t *)n.data)[i]);
    }
    return n;
}

static void drop_noise(noise n)
{
    free(n.data);
    free(n.value);
}

/* Strides that keep `middle` +- reach inside the tensor: any sign, sometimes 0. */
static int64_t stride_for(int64_t length)
{
    return length > 1 ? (draw(3) ? 1 : -1) * draw(MOST / 16 / length) : draw(9);
}

static tlamp_strides random_strides(int64_t batch, int64_t seq, int64_t heads)
{
    return (tlamp_strides){stride_for(batch), stride_for(seq), stride_for(heads), 1};
}

static tlamp_score_strides random_score_strides(int64_t batch, int64_t heads, int64_t lq, int64_t lk)
{
    return (tlamp_score_strides){stride_for(batch), stride_for(heads), stride_for(lq), stride_for(lk)};
}

static const void *middle(const noise *n)
{
    return (const char *)n->data + (MOST / 2) * (n->dtype == TLAMP_F32 ? 4 : 2);
}

/* One pair by another route than the reference's: keys that a row sees as an interval, the logit in long double. */
typedef struct {
    const tlamp_problem *p;
    const tlamp_tensors *t;
    const noise *q, *k, *v, *bias;
    int64_t b, lq, lk, q_token, k_token;
} view;

static int sees(const view *w, int32_t head, int64_t i, int64_t j)
{
    const int64_t end_of_row = i + (w->p->mask == TLAMP_MASK_CAUSAL_TOP_LEFT ? 0 : w->lk - w->lq);
    int64_t first = 0, last = w->lk - 1;
    if (w->p->window_left >= 0 && end_of_row - w->p->window_left > first) first = end_of_row - w->p->window_left;
    if (w->p->window_right >= 0 && end_of_row + w->p->window_right < last) last = end_of_row + w->p->window_right;
    if (w->p->mask && end_of_row < last) last = end_of_row;
    if (j < first || j > last) return 0;
    const tlamp_score_strides *s = &w->p->bool_mask_stride;
    return !w->p->has_bool_mask || w->t->bool_mask[w->b * s->batch + head * s->head + i * s->q + j * s->k];
}

static long double logit(const view *w, int32_t head, int64_t i, int64_t j)
{
    const tlamp_problem *p = w->p;
    const int64_t b = p->varlen ? 0 : w->b, head_k = head * p->num_heads_k / p->num_heads_q;
    const double *q = w->q->value + MOST / 2 + b * p->q_stride.batch + (w->q_token + i) * p->q_stride.seq +
                      head * p->q_stride.head;
    const double *k = w->k->value + MOST / 2 + b * p->k_stride.batch + (w->k_token + j) * p->k_stride.seq +
                      head_k * p->k_stride.head;
    long double s = 0;
    for (int32_t c = 0; c < p->head_dim_qk; c++) s += (long double)q[c] * (long double)k[c];
    s *= p->softmax_scale > 0 ? (long double)p->softmax_scale : 1 / sqrtl((long double)p->head_dim_qk);
    if (p->softcap > 0) s = (long double)p->softcap * tanhl(s / (long double)p->softcap);
    const tlamp_score_strides *bs = &p->bias_stride;
    if (p->has_bias)
        s += (long double)w->bias->value[MOST / 2 + w->b * bs->batch + head * bs->head + i * bs->q + j * bs->k];
    if (p->has_alibi)
        s -= (long double)w->t->alibi_slopes[w->b * p->alibi_batch_stride + head] * llabs(i + w->lk - w->lq - j);
    return s;
}

static void check_row(const view *w, int32_t head, int64_t i, const double *o, double lse, const double *weights)
{
    const tlamp_problem *p = w->p;
    const int64_t b = p->varlen ? 0 : w->b, head_k = head * p->num_heads_k / p->num_heads_q;
    long double total = p->has_sinks ? expl((long double)w->t->sinks[head]) : 0;
    for (int64_t j = 0; j < w->lk; j++) total += sees(w, head, i, j) ? expl(logit(w, head, i, j)) : 0;
    if (total > 0)
        NEAR(lse, (double)logl(total), 1e-6);
    else
        SAME(lse, -HUGE_VAL);
    for (int64_t j = 0; j < p->max_seqlen_k; j++) {
        const double expected = j < w->lk && sees(w, head, i, j) ? (double)(expl(logit(w, head, i, j)) / total) : 0;
        NEAR(weights[j], expected, 1e-6 * expected);
    }
    for (int32_t c = 0; c < p->head_dim_v; c++) {
        long double sum = 0;
        for (int64_t j = 0; j < w->lk; j++) {
            if (!sees(w, head, i, j)) continue;
            const double *v = w->v->value + MOST / 2 + b * p->v_stride.batch + (w->k_token + j) * p->v_stride.seq +
                              head_k * p->v_stride.head;
            sum += expl(logit(w, head, i, j)) / total * (long double)v[c];
        }
        NEAR(o[c], (double)sum, 1e-6);
    }
}

static tlamp_exec on_threads(int32_t n)
{
    tlamp_exec e;
    tlamp_exec_init(&e, sizeof e);
    e.num_threads = n;
    return e;
}

static void random_problem(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    const int64_t batch = 1 + draw(3);
    const int32_t hk = 1 + (int32_t)draw(2), hq = hk * (1 + (int32_t)draw(3));
    fixture f = make(batch, hq, hk, 1 + draw(9), 1 + draw(20), 1 + (int32_t)draw(9), 1 + (int32_t)draw(5));
    tlamp_problem *p = &f.p;
    const int64_t lq = p->max_seqlen_q, lk = p->max_seqlen_k;
    int32_t cu_q[4] = {0}, cu_k[4] = {0}, used[3];
    float slopes[32], sinks[8];
    for (int64_t b = 0; b < batch; b++) {
        cu_q[b + 1] = cu_q[b] + (int32_t)draw(lq + 1);
        cu_k[b + 1] = cu_k[b] + (int32_t)draw(lk + 1);
        used[b] = (int32_t)draw((draw(2) ? lk : 3) + 1);
    }
    for (int i = 0; i < 32; i++) slopes[i] = (float)uniform();
    for (int i = 0; i < 8; i++) sinks[i] = (float)normal();

    p->varlen = draw(3) == 0;
    p->total_q = batch * lq;
    p->total_k = batch * lk;
    p->softmax_scale = draw(2) ? 0 : (float)uniform() + .1f;
    p->softcap = draw(2) ? 0 : 2 * (float)uniform() + .1f;
    p->mask = (tlamp_mask_kind)draw(3);
    p->window_left = draw(2) ? -1 : draw(8);
    p->window_right = draw(2) ? -1 : draw(8);
    p->has_seqused_k = draw(2) == 0;
    p->has_bool_mask = draw(2) == 0;
    p->has_bias = draw(2) == 0;
    p->has_alibi = draw(2) == 0;
    p->has_sinks = draw(2) == 0;
    p->alibi_batch_stride = draw(2) ? 0 : 8;
    const int64_t tokens_q = p->varlen ? p->total_q : lq, tokens_k = p->varlen ? p->total_k : lk;
    p->q_stride = random_strides(batch, tokens_q, hq);
    p->k_stride = random_strides(batch, tokens_k, hk);
    p->v_stride = random_strides(batch, tokens_k, hk);
    p->bias_stride = random_score_strides(batch, hq, lq, lk);
    p->bool_mask_stride = random_score_strides(batch, hq, lq, lk);
    noise q = make_noise((tlamp_dtype)draw(3)), k = make_noise((tlamp_dtype)draw(3));
    noise v = make_noise((tlamp_dtype)draw(3)), bias = make_noise((tlamp_dtype)draw(3));
    uint8_t *mask = malloc(MOST);
    cr_assert(mask);
    for (int i = 0; i < MOST; i++) mask[i] = draw(3) != 0;
    p->q_dtype = q.dtype;
    p->k_dtype = k.dtype;
    p->v_dtype = v.dtype;
    p->bias_dtype = bias.dtype;
    f.t.q = middle(&q);
    f.t.k = middle(&k);
    f.t.v = middle(&v);
    f.t.bias = middle(&bias);
    f.t.bool_mask = mask + MOST / 2;
    f.t.cu_seqlens_q = cu_q;
    f.t.cu_seqlens_k = cu_k;
    f.t.alibi_slopes = slopes;
    f.t.sinks = sinks;
    f.t.seqused_k = used;
    for (int64_t b = 0; b < batch; b++) {
        const int32_t length = p->varlen ? cu_k[b + 1] - cu_k[b] : (int32_t)lk;
        if (used[b] > length) used[b] = length;
    }
    run(&f);

    const int64_t rows = p->varlen ? p->total_q : batch * lq;
    for (int64_t b = 0; b < batch; b++) {
        view w = {p, &f.t, &q, &k, &v, &bias, b, lq, lk, 0, 0};
        if (p->varlen) {
            w.q_token = cu_q[b];
            w.k_token = cu_k[b];
            w.lq = cu_q[b + 1] - cu_q[b];
            w.lk = cu_k[b + 1] - cu_k[b];
        }
        if (p->has_seqused_k) w.lk = used[b];
        for (int64_t i = 0; i < w.lq; i++)
            for (int32_t h = 0; h < hq; h++) {
                const int64_t r = p->varlen ? w.q_token + i : b * lq + i;
                check_row(&w, h, i, f.o + (r * hq + h) * p->head_dim_v, f.lse[h * rows + r],
                          f.weights + (h * rows + r) * lk);
            }
    }

    /* The same bits from another number of threads. */
    const tlamp_exec exec = on_threads(3);
    const size_t n = (size_t)(rows * hq);
    double *o = doubles(n * (size_t)p->head_dim_v), *o_bound = doubles(n * (size_t)p->head_dim_v), *lse = doubles(n);
    const tlamp_reference_outputs out = {sizeof out, o, lse, NULL, NULL, o_bound, NULL, 0};
    cr_assert_eq(tlamp_reference(p, &f.t, &out, &exec, NULL), TLAMP_OK);
    cr_assert_eq(memcmp(o, f.o, n * (size_t)p->head_dim_v * sizeof *o), 0);
    cr_assert_eq(memcmp(o_bound, f.o_bound, n * (size_t)p->head_dim_v * sizeof *o), 0);
    cr_assert_eq(memcmp(lse, f.lse, n * sizeof *lse), 0);

    free(o);
    free(o_bound);
    free(lse);
    free(mask);
    drop_noise(q);
    drop_noise(k);
    drop_noise(v);
    drop_noise(bias);
    drop(&f);
}

Test(reference, random_problems)
{
    for (uint64_t seed = 0; seed < 300; seed++) random_problem(seed);
}

/* --------------------------------------------------------------------------------------------- the call */

Test(reference, sizes_of_zero)
{
    fixture f = make(1, 2, 1, 2, 0, 1, 1);
    run(&f);
    for (int i = 0; i < 4; i++) SAME(f.o[i], 0);
    for (int i = 0; i < 4; i++) SAME(f.lse[i], -HUGE_VAL);
    f.p.max_seqlen_q = 0;
    run(&f);
    f.p.batch = 0;
    run(&f);
    f.p.batch = 1;
    f.p.num_heads_q = f.p.num_heads_k = 0;
    run(&f);
    drop(&f);
}

/* Codes with scales are the numbers scale * code, for packed sequences too, whose blocks begin anew. */
Test(reference, codes_of_the_callers)
{
    enum { TOKENS = 300, HQ = 4, HK = 2, W = 5, BLOCKS = TOKENS }; /* at most one block per token */
    const int32_t cu_q[3] = {0, 140, TOKENS}, cu_k[3] = {0, 70, TOKENS};
    static int8_t codes[3][TOKENS * HQ * W];
    static float scales[3][BLOCKS * HQ];
    for (int x = 0; x < 3; x++) {
        for (int i = 0; i < TOKENS * HQ * W; i++) codes[x][i] = (int8_t)(draw(255) - 127);
        for (int i = 0; i < BLOCKS * HQ; i++) scales[x][i] = (float)uniform() * .02f;
    }
    for (int per_token = 0; per_token < 2; per_token++) {
        fixture f = make(1, HQ, HK, TOKENS, TOKENS, W, W);
        tlamp_policy policy;
        tlamp_policy_init(&policy, sizeof policy);
        policy.scales = per_token ? TLAMP_SCALES_TOKEN : TLAMP_SCALES_BLOCK;
        f.p.policy = &policy;
        f.p.varlen = 1;
        f.p.batch = 2;
        f.p.total_q = f.p.total_k = TOKENS;
        f.t.cu_seqlens_q = cu_q;
        f.t.cu_seqlens_k = cu_k;
        for (int b = 0, q_blocks = 0, k_blocks = 0; b < 2; b++) {
            const int lq = cu_q[b + 1] - cu_q[b], lk = cu_k[b + 1] - cu_k[b];
            const int per_q = per_token ? 1 : 128, per_k = per_token ? 1 : 64;
            for (int i = 0; i < lq * HQ * W; i++) {
                const int at = cu_q[b] * HQ * W + i, block = q_blocks + i / (HQ * W) / per_q;
                f.q[at] = scales[0][block * HQ + i / W % HQ] * (float)codes[0][at];
            }
            for (int i = 0; i < lk * HK * W; i++) {
                const int at = cu_k[b] * HK * W + i, scale = (k_blocks + i / (HK * W) / per_k) * HK + i / W % HK;
                f.k[at] = scales[1][scale] * (float)codes[1][at];
                f.v[at] = scales[2][scale] * (float)codes[2][at];
            }
            q_blocks += (lq + per_q - 1) / per_q;
            k_blocks += (lk + per_k - 1) / per_k;
        }
        run(&f);
        double *o = doubles(TOKENS * HQ * W);
        const tlamp_reference_outputs out = {sizeof out, o, NULL, NULL, NULL, NULL, NULL, 0};
        f.p.q_dtype = f.p.k_dtype = f.p.v_dtype = TLAMP_INT8;
        f.t.q = codes[0];
        f.t.k = codes[1];
        f.t.v = codes[2];
        f.t.q_scale = scales[0];
        f.t.k_scale = scales[1];
        f.t.v_scale = scales[2];
        cr_assert_eq(tlamp_reference(&f.p, &f.t, &out, NULL, NULL), TLAMP_OK);
        for (int i = 0; i < TOKENS * HQ * W; i++) NEAR(o[i], f.o[i], 1e-6); /* f32 rounds scale * code */
        free(o);
        drop(&f);
    }
}

/* A sample holds the bits of the whole, and nothing else is written. */
Test(reference, row_step)
{
    enum { L = 150, H = 4, W = 8, STEP = 7 };
    fixture all = make(2, H, 2, L, L, W, W);
    tlamp_policy policy;
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = TLAMP_POLICY_INT8;
    policy.smooth_k = 1;
    all.p.policy = &policy;
    all.p.mask = TLAMP_MASK_CAUSAL;
    for (int i = 0; i < 2 * L * H * W; i++) all.q[i] = (float)uniform();
    for (int i = 0; i < 2 * L * 2 * W; i++) all.k[i] = (float)uniform(), all.v[i] = (float)uniform();
    fixture some = make(2, H, 2, L, L, W, W);
    run(&all);
    some.p = all.p;
    some.t = all.t;
    some.out.row_step = STEP;
    run(&some);
    for (int64_t r = 0; r < 2 * L; r++)
        for (int64_t h = 0; h < H; h++) {
            const bool sampled = (r + h) % STEP == 0;
            const int64_t at = (r * H + h) * W, lse = h * 2 * L + r;
            for (int64_t c = at; c < at + W; c++) {
                SAME(some.o[c], sampled ? all.o[c] : -7777);
                SAME(some.abs_pv[c], sampled ? all.abs_pv[c] : -7777);
                SAME(some.o_bound[c], sampled ? all.o_bound[c] : -7777);
            }
            SAME(some.lse[lse], sampled ? all.lse[lse] : -7777);
            SAME(some.lse_bound[lse], sampled ? all.lse_bound[lse] : -7777);
            SAME(some.weights[lse * L], sampled ? all.weights[lse * L] : -7777);
        }
    some.out.row_step = -1;
    cr_assert_eq(tlamp_reference(&some.p, &some.t, &some.out, NULL, NULL), TLAMP_INVALID_ARGUMENT);
    drop(&all);
    drop(&some);
}

Test(reference, what_it_does_not_do)
{
    fixture f = make(1, 1, 1, 1, 1, 1, 1);
    tlamp_exec exec = on_threads(1);
    exec.memory = TLAMP_MEMORY_DEVICE;
    cr_assert_eq(tlamp_reference(&f.p, &f.t, &f.out, &exec, NULL), TLAMP_UNSUPPORTED);
    cr_assert_eq(tlamp_reference(&f.p, &f.t, NULL, NULL, NULL), TLAMP_INVALID_ARGUMENT);
    f.p.page_size = 64;
    cr_assert_eq(tlamp_reference(&f.p, &f.t, &f.out, NULL, NULL), TLAMP_UNSUPPORTED);
    f.p.page_size = 0;
    tlamp_policy policy;
    tlamp_policy_init(&policy, sizeof policy);
    policy.kind = TLAMP_POLICY_TOLERANCE; /* a valid policy that is not bounded here */
    policy.tolerance = 0.1f;
    f.p.policy = &policy;
    run(&f);
    SAME(f.o_bound[0], HUGE_VAL);
    SAME(f.lse_bound[0], HUGE_VAL);
    drop(&f);
}
