/* core/bound.h: that its bounds are bounds, on inputs made to break them, and that they are not useless. Then the whole
 * chain: o_bound and lse_bound of tlamp_reference against what the library computes. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/bound.h"
#include "core/quantize.h"
#include "tilelamp/tilelamp.h"

static uint64_t random_state = 1;

static double uniform(void) /* [0, 1) */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) * 0x1p-53;
}

static int64_t draw(int64_t n) { return (int64_t)(uniform() * (double)n); } /* 0 .. n-1 */

static double normal(void) { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }

/* ---------------------------------------------------------------------------------------------- the functions */

Test(bound, expm1_from_above)
{
    cr_assert(tl_expm1_upper(0) == 0);
    for (float x = 1e-37f; x < 88.7f; x *= 1.0003f) {
        const double exact = expm1((double)x), bound = (double)tl_expm1_upper(x);
        cr_assert(bound >= exact, "x = %g", (double)x);
        cr_assert(x > 80 || bound <= exact * (1 + 1e-5) * exp(1.5e-6 * pow((double)x, 3)), "x = %g: %g", (double)x,
                  bound / exact);
    }
    cr_assert(isinf(tl_expm1_upper(90)) && isinf(tl_expm1_upper(INFINITY)) && isnan(tl_expm1_upper(NAN)));
}

Test(bound, gamma)
{
    for (double n = 1; n < 1e7; n *= 1.7) {
        const float nf = (float)n;
        const double nu = (double)nf * 0x1p-24;
        cr_assert(nu >= 0.5 ? isinf(tl_gamma(nf)) : (double)tl_gamma(nf) >= nu / (1 - nu));
    }
}

/* Weights p in total 1, each off by a factor in [1 / (1 + w), 1 + w]: phi is the largest half L1 distance of that. */
Test(bound, phi_is_above_every_perturbation_and_is_reached)
{
    double closest = 0;
    for (int trial = 0; trial < 400000; trial++) {
        const int n = 2 + (int)draw(9);
        double p[16], e[16], a = 0, w = 0, sum = 0, hat = 0, half = 0;
        const double scale = pow(10, -4 + 5 * uniform());
        for (int i = 0; i < n; i++) sum += p[i] = pow(uniform(), 4);
        for (int i = 0; i < n; i++) {
            const double eps = draw(4) ? scale * uniform() : draw(2) ? scale : 0;
            p[i] /= sum;
            a += p[i] * expm1(eps);
            w = fmax(w, expm1(eps));
            hat += e[i] = p[i] * exp(draw(3) ? draw(2) ? eps : -eps : eps * (2 * uniform() - 1));
        }
        for (int i = 0; i < n; i++) half += fabs(e[i] / hat - p[i]) / 2;
        const float fa = (float)(a * (1 + 0x1p-22)), fw = (float)(w * (1 + 0x1p-22));
        const double bound = (double)tl_half_l1(fa, fw);
        cr_assert(half <= bound * (1 + 1e-12) + 1e-14, "%d weights, a = %g, w = %g: %.17g > %.17g", n, a, w, half,
                  bound);
        cr_assert(fabs(log(hat)) <= log1p(a) * (1 + 1e-12) + 1e-14); /* LSE */
        cr_assert(bound <= (double)fa * (1 + 1e-5) && bound <= 1);
        if (bound > 1e-9) closest = fmax(closest, half / bound);
    }
    cr_assert(closest > .99, "%g", closest);
}

Test(bound, phi_rises)
{
    for (float w = 1e-6f; w < 1e6f; w *= 3)
        for (float a = w * 1e-3f; a * 1.01f < w; a *= 1.01f) {
            cr_assert(tl_phi(a * 1.01f, w) >= tl_phi(a, w) * (1 - 0x1p-20f));
            cr_assert(tl_phi(a, w * 1.01f) >= tl_phi(a, w) * (1 - 0x1p-20f));
        }
}

Test(bound, half_l1_at_the_ends)
{
    cr_assert(tl_half_l1(0, 0) == 0);
    cr_assert(tl_half_l1(INFINITY, INFINITY) == 1);
    cr_assert(tl_half_l1(.25f, INFINITY) == .25f); /* a far key with a huge error and no weight */
    cr_assert(isnan(tl_half_l1(NAN, 1)) && isnan(tl_half_l1(1, NAN)));
    for (float eps = 1e-6f; eps < 80; eps *= 1.3f) {
        const float w = tl_expm1_upper(eps);
        cr_assert((double)tl_half_l1(w, w) >= tanh((double)eps / 2) * (1 - 1e-15));
        cr_assert((double)tl_half_l1(w, w) <= tanh((double)eps / 2) * 1.02);
    }
}

/* ---------------------------------------------------------------------------------------------- INT8 logits (C1) */

enum { D = 128, BLOCK = 8 };

typedef float block[BLOCK][D];

typedef enum { GAUSSIAN, OUTLIERS, TIES, TINY, HUGE_Q, WIDE, CONSTANT, NEAR_ZERO_BLOCK, EXACT, KINDS } data_kind;

/* A block of tokens of one operand. The two operands of a pair have opposite sizes where that is hard. */
static void fill(block x, data_kind kind, int is_key)
{
    const double row = pow(10, 4 * uniform() - 2);
    for (int t = 0; t < BLOCK; t++)
        for (int c = 0; c < D; c++) {
            const double z = normal();
            switch (kind) {
            case OUTLIERS: x[t][c] = (float)(z * (c % 31 == 3 ? 60 : 1)); break;
            case TIES: x[t][c] = (float)((double)draw(127) + .5) * (draw(2) ? 1 : -1) * (c == 0 ? 0.f : 1.f); break;
            case TINY: x[t][c] = (float)z * (is_key ? 1e18f : 1e-19f); break;
            case HUGE_Q: x[t][c] = (float)z * (is_key ? 1e-30f : 1e17f); break;
            case WIDE: x[t][c] = (float)(z * pow(10, -6 * uniform()) * row); break;
            case CONSTANT: x[t][c] = is_key ? 10.f : 1.f; break;
            case NEAR_ZERO_BLOCK: x[t][c] = (float)z * (is_key ? 1e30f : 1e-36f); break;
            case EXACT: x[t][c] = (float)(draw(255) - 127); break;
            default: x[t][c] = (float)z; break;
            }
        }
    if (kind == TIES) /* delta is 1 exactly: every other value lies between two codes */
        for (int t = 0; t < BLOCK; t++) x[t][0] = 127;
}

static float amax_of(block x)
{
    float amax = 0;
    for (int t = 0; t < BLOCK; t++) amax = fmaxf(amax, tl_row_amax(x[t], D));
    return amax;
}

static tl_token token_of(const float *x, tl_quant z, float amax)
{
    double l1 = 0, code_norm = 0, residual = 0, norm = 0;
    for (int c = 0; c < D; c++) {
        const double code = tl_code(x[c], z.inverse), e = (double)x[c] - (double)z.scale * code;
        l1 += fabs(code);
        code_norm += code * code;
        residual += e * e;
        norm += (double)x[c] * (double)x[c];
    }
    const float delta = z.scale > 0 ? z.scale : 2 * amax;
    return (tl_token){delta, (float)l1, (float)sqrt(norm), z.scale * (float)sqrt(code_norm), (float)sqrt(residual), 0};
}

/* The logit as a kernel computes it. */
static float int8_logit(const float *q, tl_quant zq, const float *k, tl_quant zk, float scale)
{
    int32_t sum = 0;
    for (int c = 0; c < D; c++) sum += tl_code(q[c], zq.inverse) * tl_code(k[c], zk.inverse);
    return (float)sum * (zq.scale * zk.scale) * scale;
}

Test(bound, int8_logits)
{
    const float scale = 0.08838834764f;
    int64_t pairs = 0;
    for (int trial = 0; trial < 4500; trial++) {
        const data_kind kind = (data_kind)(trial % KINDS);
        static block q, k;
        fill(q, kind, 0);
        fill(k, kind, 1);
        const float aq = amax_of(q), ak = amax_of(k);
        const int f16 = kind < TINY && trial / KINDS % 2;
        const tl_quant zq = f16 ? tl_quant_make_f16(aq) : tl_quant_make(aq);
        const tl_quant zk = f16 ? tl_quant_make_f16(ak) : tl_quant_make(ak);
        double error = 0, bound = 0;
        for (int i = 0; i < BLOCK; i++)
            for (int j = 0; j < BLOCK; j++) {
                const tl_token tq = token_of(q[i], zq, aq), tk = token_of(k[j], zk, ak);
                double exact = 0;
                for (int c = 0; c < D; c++) exact += (double)q[i][c] * (double)k[j][c];
                const double e = fabs(exact * (double)scale - (double)int8_logit(q[i], zq, k[j], zk, scale));
                const double eps = (double)tl_epsilon_int8(&tq, &tk, D, TL_SLACK, scale) +
                                   (double)tl_epsilon_underflow(tq.norm, tk.norm, D, scale);
                cr_assert(e <= eps, "kind %d: error %g, bound %g", (int)kind, e, eps);
                error += e;
                bound += eps;
                pairs++;
            }
        /* C1: about 20 times the typical error. */
        if (kind == GAUSSIAN || kind == OUTLIERS)
            cr_assert(bound > 5 * error && bound < 60 * error, "%g", bound / error);
    }
    cr_assert(pairs >= 200000);
}

/* ---- X3: two planes (E) */

typedef struct {
    float delta; /* of the second plane */
    int32_t first[D], second[D];
    tl_token token;
} planes;

static planes planes_of(const float *x, tl_quant z, float amax)
{
    planes p = {.delta = z.scale / TL_PLANE_STEPS};
    double norm = 0, codes = 0, residual = 0, second = 0;
    for (int c = 0; c < D; c++) {
        p.first[c] = tl_code(x[c], z.inverse);
        p.second[c] = tl_second_code(x[c], p.first[c], z);
        const double code = 254 * p.first[c] + p.second[c], e = (double)x[c] - (double)z.scale / 254 * code;
        norm += (double)x[c] * (double)x[c];
        codes += code * code;
        residual += e * e;
        second += (double)(p.second[c] * p.second[c]);
    }
    const double delta = (double)z.scale / 254;
    p.token = (tl_token){z.scale > 0 ? (float)delta : 2 * amax,
                         INFINITY,
                         (float)sqrt(norm),
                         (float)(delta * sqrt(codes)),
                         (float)sqrt(residual),
                         (float)(delta * sqrt(second))};
    return p;
}

/* The logit as a kernel computes it. */
static float x3_logit(const planes *q, tl_quant zq, const planes *k, tl_quant zk, float scale)
{
    int32_t sum = 0;
    for (int c = 0; c < D; c++)
        sum += 254 * q->first[c] * k->first[c] + q->first[c] * k->second[c] + q->second[c] * k->first[c];
    return (float)sum * (zq.scale * (1.f / 254)) * zk.scale * scale;
}

Test(bound, x3_logits)
{
    const float scale = 0.08838834764f;
    for (int trial = 0; trial < 2700; trial++) {
        const data_kind kind = (data_kind)(trial % KINDS);
        static block q, k;
        static planes pq[BLOCK], pk[BLOCK];
        fill(q, kind, 0);
        fill(k, kind, 1);
        const float aq = amax_of(q), ak = amax_of(k);
        const tl_quant zq = tl_quant_make(aq), zk = tl_quant_make(ak);
        for (int t = 0; t < BLOCK; t++) {
            pq[t] = planes_of(q[t], zq, aq);
            pk[t] = planes_of(k[t], zk, ak);
        }
        double error = 0, bound = 0, int8 = 0;
        for (int i = 0; i < BLOCK; i++)
            for (int j = 0; j < BLOCK; j++) {
                const tl_token tq = token_of(q[i], zq, aq), tk = token_of(k[j], zk, ak);
                double exact = 0;
                for (int c = 0; c < D; c++) exact += (double)q[i][c] * (double)k[j][c];
                const double e = fabs(exact * (double)scale - (double)x3_logit(&pq[i], zq, &pk[j], zk, scale));
                const double eps = (double)tl_epsilon_int8(&pq[i].token, &pk[j].token, D, TL_SLACK, scale) +
                                   (double)tl_epsilon_underflow(tq.norm, tk.norm, D, scale);
                cr_assert(e <= eps, "kind %d: error %g, bound %g", (int)kind, e, eps);
                error += e;
                bound += eps;
                int8 += (double)tl_epsilon_int8(&tq, &tk, D, TL_SLACK, scale);
            }
        if (kind == GAUSSIAN || kind == OUTLIERS)
            cr_assert(bound > 5 * error && bound < 60 * error && bound < int8 / (kind == GAUSSIAN ? 80 : 15), "%g, %g",
                      bound / error, int8 / bound);
    }
}

/* Residuals and second planes of one sign, along the other operand. */
Test(bound, x3_logits_at_their_worst)
{
    double closest = 0;
    for (int trial = 0; trial < 2000; trial++) {
        float q[D];
        const double push = .5 - pow(10, -1 - 2 * uniform());
        const float x = (float)(100 + ((double)draw(126) + push) / 254);
        for (int c = 0; c < D; c++) q[c] = draw(2) ? x : -x;
        q[0] = 127;
        const tl_quant z = tl_quant_make(127);
        const planes p = planes_of(q, z, 127);
        double exact = 0;
        for (int c = 0; c < D; c++) exact += (double)q[c] * (double)q[c];
        const double e = fabs(exact - (double)x3_logit(&p, z, &p, z, 1));
        const double eps = (double)tl_epsilon_int8(&p.token, &p.token, D, TL_SLACK, 1);
        cr_assert(e <= eps);
        closest = fmax(closest, e / eps);
    }
    cr_assert(closest > .9 && closest <= 1, "%g", closest);
}

/* Residuals aligned with the other operand: the error that Hoelder and Cauchy-Schwarz allow, nearly. */
Test(bound, int8_logits_at_their_worst)
{
    float q[D], k[D];
    double closest = 0;
    for (int trial = 0; trial < 2000; trial++) {
        const float push = .5f - (float)pow(10, -1 - 6 * uniform());
        for (int c = 0; c < D; c++) {
            const float sign = draw(2) ? 1.f : -1.f, other = draw(2) ? 1.f : -1.f;
            q[c] = sign * (100 + push);
            k[c] = other * (100 + (sign * other > 0 ? push : push));
        }
        for (int c = 1; c < D; c++) k[c] = q[c];
        q[0] = k[0] = 127;
        const tl_quant z = tl_quant_make(127);
        const tl_token tq = token_of(q, z, 127), tk = token_of(k, z, 127);
        double exact = 0;
        for (int c = 0; c < D; c++) exact += (double)q[c] * (double)k[c];
        const double e = fabs(exact - (double)int8_logit(q, z, k, z, 1));
        const double eps = (double)tl_epsilon_int8(&tq, &tk, D, TL_SLACK, 1);
        cr_assert(e <= eps);
        closest = fmax(closest, e / eps);
    }
    cr_assert(closest > .9 && closest <= 1, "%g", closest);
}

Test(bound, a_nonfinite_norm_reaches_the_bound)
{
    const tl_token good = {.01f, 100, 1, 1, .01f, 0};
    tl_token bad = good;
    bad.norm = INFINITY;
    cr_assert(!(tl_epsilon_int8(&good, &bad, D, TL_SLACK, 1) < INFINITY));
    bad.norm = NAN;
    cr_assert(isnan(tl_epsilon_int8(&good, &bad, D, TL_SLACK, 1)) &&
              isnan(tl_epsilon_int8(&bad, &good, D, TL_SLACK, 1)));
}

/* ---------------------------------------------------------------------------------------------- f32 logits */

Test(bound, high_logits)
{
    double closest = 0;
    for (int trial = 0; trial < 20000; trial++) {
        const int d = 1 + (int)draw(D);
        float sum = 0;
        double exact = 0, magnitudes = 0;
        const int drift = (int)draw(2); /* one sign: rounding errors pile up */
        for (int c = 0; c < d; c++) {
            const float q = (float)(drift ? uniform() : normal()), k = (float)(drift ? uniform() : normal());
            sum += q * k;
            exact += (double)q * (double)k;
            magnitudes += fabs((double)q * (double)k);
        }
        const double e = fabs((double)sum - exact), eps = (double)tl_epsilon_high((float)magnitudes, d, 1);
        cr_assert(e <= eps);
        closest = fmax(closest, e / eps);
    }
    cr_assert(closest > 1e-2, "%g", closest);
}

/* ---------------------------------------------------------------------------------------------- the whole chain */

typedef struct {
    tlamp_problem p;
    tlamp_policy policy;
    tlamp_tensors t;
    float *q, *k, *v, *bias, *lse, *o, *slopes, *sinks;
    uint8_t *mask;
    uint64_t *words;
} attention;

static float *floats(int64_t n)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    cr_assert(x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)normal();
    return x;
}

static attention make(int32_t hq, int32_t hk, int64_t lq, int64_t lk, int32_t d, int32_t dv)
{
    attention a = {.q = floats(hq * lq * d),
                   .k = floats(hk * lk * d),
                   .v = floats(hk * lk * dv),
                   .bias = floats(lq * lk),
                   .o = floats(hq * lq * dv),
                   .lse = floats(hq * lq),
                   .slopes = floats(8),
                   .sinks = floats(8),
                   .mask = malloc((size_t)(lq * lk)),
                   .words = malloc(64 * sizeof *a.words)};
    cr_assert(a.mask && a.words);
    tlamp_problem_init(&a.p, sizeof a.p);
    tlamp_policy_init(&a.policy, sizeof a.policy);
    tlamp_tensors_init(&a.t, sizeof a.t);
    a.p.num_heads_q = hq;
    a.p.num_heads_k = hk;
    a.p.max_seqlen_q = lq;
    a.p.max_seqlen_k = lk;
    a.p.head_dim_qk = d;
    a.p.head_dim_v = dv;
    cr_assert_eq(tlamp_set_strides(&a.p, TLAMP_TENSOR_BSHD, NULL), TLAMP_OK);
    a.p.bias_stride = a.p.bool_mask_stride = (tlamp_score_strides){0, 0, lk, 1};
    for (int64_t i = 0; i < lq * lk; i++) a.mask[i] = draw(4) != 0;
    for (int i = 0; i < 64; i++) a.words[i] = (uint64_t)draw(1 << 16);
    for (int i = 0; i < 8; i++) a.slopes[i] = (float)uniform() * .1f;
    a.t.q = a.q;
    a.t.k = a.k;
    a.t.v = a.v;
    a.t.o = a.o;
    a.t.lse = a.lse;
    a.t.bias = a.bias;
    a.t.bool_mask = a.mask;
    a.t.words = a.words;
    a.t.words_stride_row = a.p.words_per_row;
    a.t.alibi_slopes = a.slopes;
    a.t.sinks = a.sinks;
    a.policy.pv = TLAMP_PV_F32; /* AUTO may be bf16, whose bound is wider */
    return a;
}

static void drop(attention *a)
{
    free(a->q);
    free(a->k);
    free(a->v);
    free(a->o);
    free(a->lse);
    free(a->bias);
    free(a->slopes);
    free(a->sinks);
    free(a->mask);
    free(a->words);
}

static double value_of(const attention *a, int64_t i)
{
    switch (a->p.o_dtype) {
    case TLAMP_F16: return (double)tlamp_f16_to_f32(((const uint16_t *)(const void *)a->o)[i]);
    case TLAMP_BF16: return (double)tlamp_bf16_to_f32(((const uint16_t *)(const void *)a->o)[i]);
    default: return (double)a->o[i];
    }
}

/* err / bound: the largest, and of means. */
typedef struct {
    double largest, mean, lse;
} ratio;

static ratio compare(attention *a)
{
    a->p.policy = &a->policy;
    tlamp_error err = {.struct_size = sizeof err};
    cr_assert_eq(tlamp_attention(&a->p, &a->t, NULL, &err), TLAMP_OK, "%s: %s", err.field, err.text);
    const int64_t rows = a->p.num_heads_q * a->p.max_seqlen_q, n = rows * a->p.head_dim_v;
    double *o = malloc((size_t)n * 2 * sizeof *o), *lse = malloc((size_t)rows * 2 * sizeof *lse);
    cr_assert(o && lse);
    double *o_bound = o + n, *lse_bound = lse + rows;
    const tlamp_reference_outputs out = {sizeof out, o, lse, NULL, NULL, o_bound, lse_bound, 0};
    cr_assert_eq(tlamp_reference(&a->p, &a->t, &out, NULL, &err), TLAMP_OK, "%s: %s", err.field, err.text);
    ratio r = {0, 0, 0};
    double errors = 0, bounds = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs(value_of(a, i) - o[i]);
        if (isnan(o[i])) {
            cr_assert(isnan(value_of(a, i)) && isnan(o_bound[i]), "element %lld is %g", (long long)i, value_of(a, i));
            continue;
        }
        if (isinf(o[i])) {
            cr_assert(value_of(a, i) == o[i], "element %lld is %g, not %g", (long long)i, value_of(a, i), o[i]);
            continue;
        }
        cr_assert(e <= o_bound[i], "element %lld: %.9g, exact %.9g, bound %g", (long long)i, value_of(a, i), o[i],
                  o_bound[i]);
        errors += e;
        bounds += o_bound[i];
        if (e > 0) r.largest = fmax(r.largest, e / o_bound[i]);
    }
    for (int64_t i = 0; i < rows; i++) {
        const double e = (double)a->lse[i] == lse[i] ? 0 : fabs((double)a->lse[i] - lse[i]);
        if (isnan(lse[i])) {
            cr_assert(isnan(a->lse[i]) && isnan(lse_bound[i]));
            continue;
        }
        cr_assert(e <= lse_bound[i], "lse %lld: %.9g, exact %.9g, bound %g", (long long)i, (double)a->lse[i], lse[i],
                  lse_bound[i]);
        if (e > 0) r.lse = fmax(r.lse, e / lse_bound[i]);
    }
    r.mean = errors / bounds;
    free(o);
    free(lse);
    return r;
}

/* The same key and value, whose sums are rounded the same way again and again: 1.4 counts as 1.5 from a sum of 2^22 on. */
static attention millions_of_keys(int64_t keys, float value)
{
    attention a = make(1, 1, 1, 1, 1, 1);
    a.q[0] = 0;
    a.v[0] = value;
    a.p.max_seqlen_k = keys;
    a.p.k_stride.seq = a.p.v_stride.seq = 0;
    a.p.num_splits = 1;
    return a;
}

/* They stagnate at 2^24: the bound promises nothing long before. */
Test(bound, of_sums_of_millions_of_keys)
{
    attention a = millions_of_keys(5 << 20, 1.4f);
    a.p.policy = &a.policy;
    const ratio r = compare(&a);
    cr_assert(r.largest > 0.01, "%g", r.largest);
    drop(&a);
    for (int i = 0; i < 2; i++) {
        double bound;
        const tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, &bound, NULL, 0};
        attention b = millions_of_keys(6 << 20, i ? 1.4f : 0.f);
        b.p.policy = &b.policy;
        cr_assert_eq(tlamp_reference(&b.p, &b.t, &out, NULL, NULL), TLAMP_OK);
        cr_assert(isinf(bound), "%g", bound);
        drop(&b);
    }
}

static void gaussian_attention(tlamp_policy_kind kind, tlamp_scales scales, tlamp_pv pv)
{
    attention a = make(2, 1, 200, 300, 64, 32);
    a.p.mask = TLAMP_MASK_CAUSAL;
    a.policy.kind = kind;
    a.policy.scales = scales;
    a.policy.hadamard = scales == 2;
    a.policy.pv = pv;
    const ratio r = compare(&a);
    cr_log_info("policy %d, scales %d, pv %d: err / bound %.3g largest, %.3g mean, %.3g lse", kind, scales, pv,
                r.largest, r.mean, r.lse);
    cr_assert(r.largest > 1e-3 && r.mean > 1e-4);
    drop(&a);
}

Test(bound, holds_and_is_not_useless_on_gaussian_data)
{
    for (int policy = 0; policy <= TLAMP_POLICY_X3; policy++)
        for (int scales = 0; scales < 3; scales++)
            for (int pv = TLAMP_PV_F32; pv <= TLAMP_PV_BF16; pv++) gaussian_attention(policy, scales, pv);
}

/* Every weight but one lies just below the middle between two numbers of bf16, and so does every value: all are rounded the
 * same way, and the bound is reached but for the one. */
Test(bound, bf16_values_reach_it)
{
    attention a = make(1, 1, 1, 64, 1, 4);
    a.policy.pv = TLAMP_PV_BF16;
    a.p.softmax_scale = 1;
    a.q[0] = 1;
    for (int j = 0; j < 64; j++) {
        a.k[j] = j ? logf(0.5f + 0.45f * 0x1p-8f) : 0; /* P: 1, and the others */
        for (int c = 0; c < 4; c++) a.v[4 * j + c] = 1 + 0.999f * 0x1p-8f;
    }
    const ratio r = compare(&a);
    cr_assert(r.largest > 0.8, "%g", r.largest);
    drop(&a);
}

/* AUTO is what a plan says it is. */
Test(bound, of_auto)
{
    double bound[3];
    for (int pv = TLAMP_PV_AUTO; pv <= TLAMP_PV_BF16; pv++) {
        random_state = 9;
        attention a = make(1, 1, 1, 40, 16, 1);
        a.policy.kind = TLAMP_POLICY_INT8;
        a.policy.pv = pv;
        a.p.policy = &a.policy;
        const tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, &bound[pv], NULL, 0};
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        tlamp_plan *plan;
        cr_assert_eq(tlamp_plan_create(&plan, &a.p, NULL, NULL), TLAMP_OK);
        const tlamp_pv is = tlamp_plan_pv(plan);
        tlamp_plan_destroy(plan);
        if (pv != TLAMP_PV_AUTO) cr_assert_eq(is, pv);
        if (pv == TLAMP_PV_BF16) cr_assert(bound[TLAMP_PV_F32] < bound[TLAMP_PV_BF16]);
        drop(&a);
    }
    cr_assert(bound[TLAMP_PV_AUTO] == bound[TLAMP_PV_F32] || bound[TLAMP_PV_AUTO] == bound[TLAMP_PV_BF16]);
}

static void random_attention(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    const int32_t hk = 1 + (int32_t)draw(2), hq = hk * (1 + (int32_t)draw(2));
    const int hadamard = draw(3) == 0;
    const int32_t d = hadamard ? 1 << draw(8) : 1 + (int32_t)draw(80);
    attention a = make(hq, hk, 1 + draw(140), 1 + draw(200), d, 1 + (int32_t)draw(20));
    tlamp_problem *p = &a.p;
    a.policy.kind = (tlamp_policy_kind)draw(4); /* HIGH, INT8, ROUTED, X3 */
    a.policy.hadamard = hadamard;
    a.policy.scales = (tlamp_scales)draw(3);
    a.policy.smooth_k = draw(3) == 0;
    a.policy.block_n = 16 << draw(3);
    a.policy.block_m = 16 << draw(4);
    a.policy.pv = (tlamp_pv)draw(3);
    p->words_per_row = 1;
    p->o_dtype = (tlamp_dtype)draw(3);
    p->softmax_scale = draw(3) ? 0 : (float)uniform();
    p->softcap = draw(2) ? 0 : (float)pow(10, 2 * uniform() - .5);
    p->mask = (tlamp_mask_kind)draw(3);
    p->window_left = draw(2) ? -1 : draw(90);
    p->window_right = draw(2) ? -1 : draw(90);
    p->has_bool_mask = draw(3) == 0;
    p->has_bias = draw(3) == 0;
    p->has_alibi = draw(3) == 0;
    p->has_sinks = draw(3) == 0;
    const double gain = pow(10, 3 * uniform() - 1.5), shift = draw(3) ? 0 : 30 * normal();
    const int64_t lk = p->max_seqlen_k, nk = hk * lk * d, nq = hq * p->max_seqlen_q * d;
    for (int64_t i = 0; i < nk; i++) a.k[i] = (float)((double)a.k[i] * gain + (i % d == 0 ? shift : 0));
    if (draw(4) == 0) a.k[draw(nk)] = NAN;
    if (draw(4) == 0) a.q[draw(nq)] = draw(2) ? NAN : INFINITY;
    if (draw(4) == 0) a.k[draw(nk)] *= 1e4f;
    if (p->has_bias && draw(2))
        for (int i = 0; i < 20; i++) a.bias[draw(p->max_seqlen_q * lk)] = draw(2) ? -INFINITY : -3.4e38f;
    (void)compare(&a);
    drop(&a);
}

Test(bound, holds_on_random_problems)
{
    for (uint64_t seed = 0; seed < 600; seed++) random_attention(seed);
}

/* What a policy costs, by what it should: X3 near f32, INT8 far from it, the rotation better than none where one channel is far
 * larger than the others. */
Test(bound, of_x3_and_of_the_rotation)
{
    double mean[4], error[4];
    for (int how = 0; how < 4; how++) { /* HIGH, X3 and INT8 rotated, INT8 */
        random_state = 5;
        attention a = make(1, 1, 70, 300, 64, 16);
        for (int64_t j = 0; j < 300; j++) a.k[64 * j + 7] *= 50;
        a.policy.kind = how == 0 ? TLAMP_POLICY_HIGH : how == 1 ? TLAMP_POLICY_X3 : TLAMP_POLICY_INT8;
        a.policy.scales = TLAMP_SCALES_TOKEN;
        a.policy.hadamard = how == 1 || how == 2;
        (void)compare(&a);
        double *b = malloc(2 * 70 * 16 * sizeof *b);
        cr_assert(b);
        const tlamp_reference_outputs out = {sizeof out, b + 70 * 16, NULL, NULL, NULL, b, NULL, 0};
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        mean[how] = error[how] = 0;
        for (int i = 0; i < 70 * 16; i++) {
            mean[how] += b[i];
            error[how] += fabs(value_of(&a, i) - b[70 * 16 + i]);
        }
        free(b);
        drop(&a);
    }
    cr_assert(mean[0] < mean[1] / 3 && mean[1] < mean[2] / 20 && mean[2] < mean[3], "%g, %g, %g, %g", mean[0], mean[1],
              mean[2], mean[3]);
    cr_assert(error[1] < error[2] / 50 && error[2] < error[3] / 2, "%g, %g, %g, %g", error[0], error[1], error[2],
              error[3]);
}

/* K with one huge, nearly constant channel: smoothing must shrink the bound, and it must hold. */
Test(bound, smoothing)
{
    double mean[2];
    for (int smooth = 0; smooth < 2; smooth++) {
        random_state = 5;
        attention a = make(1, 1, 70, 300, 64, 16);
        for (int64_t j = 0; j < 300; j++) a.k[64 * j + 7] += 1000;
        a.policy.kind = TLAMP_POLICY_INT8;
        a.policy.smooth_k = smooth;
        (void)compare(&a);
        double *b = malloc(70 * 16 * sizeof *b);
        cr_assert(b);
        const tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, b, NULL, 0};
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        mean[smooth] = 0;
        for (int i = 0; i < 70 * 16; i++) mean[smooth] += b[i];
        free(b);
        drop(&a);
    }
    cr_assert(mean[1] < mean[0] / 2, "%g, %g", mean[0], mean[1]);
}

/* What no row sees does not reach the bound; a bad element that one row sees does not spoil another's. */
Test(bound, hidden_elements_do_not_matter)
{
    double bounds[2][40];
    for (int bad = 0; bad < 2; bad++) {
        random_state = 9;
        attention a = make(1, 1, 4, 70, 16, 10);
        a.policy.kind = TLAMP_POLICY_INT8;
        a.p.has_bool_mask = 1;
        for (int64_t i = 0; i < 4; i++)
            for (int64_t j = 0; j < 70; j++) a.mask[70 * i + j] = i != 2 && j != 5; /* row 2 and key 5 */
        for (int c = 0; c < 16 && bad; c++) {
            a.k[16 * 5 + c] = c % 2 ? NAN : 3e38f;
            a.q[16 * 2 + c] = c % 2 ? 1e30f : INFINITY;
        }
        const tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, bounds[bad], NULL, 0};
        a.p.policy = &a.policy;
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        drop(&a);
    }
    cr_assert_eq(memcmp(bounds[0], bounds[1], sizeof bounds[0]), 0);
    for (int i = 0; i < 40; i++) cr_assert(i / 10 == 2 ? bounds[0][i] == 0 : bounds[0][i] > 0 && bounds[0][i] < 10);
}

/* Words decide: the bound of a high row is the HIGH policy's. */
Test(bound, routing)
{
    double bounds[3][64 * 4];
    for (int how = 0; how < 3; how++) { /* HIGH, ROUTED with row 1 INT8, INT8 */
        random_state = 11;
        attention a = make(1, 1, 64, 200, 32, 4);
        a.policy.kind = how == 0 ? TLAMP_POLICY_HIGH : how == 1 ? TLAMP_POLICY_ROUTED : TLAMP_POLICY_INT8;
        a.policy.block_m = 16;
        for (int m = 0; m < 4; m++) a.words[m] = m == 1 ? 0xf : 0;
        const tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, bounds[how], NULL, 0};
        a.p.policy = &a.policy;
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        drop(&a);
    }
    for (int i = 0; i < 64 * 4; i++) {
        const int int8 = i / (16 * 4) == 1;
        cr_assert_eq(bounds[1][i], bounds[int8 ? 2 : 0][i], "element %d", i);
        cr_assert(bounds[2][i] > 20 * bounds[0][i]);
    }
}

/* Codes of the caller's have no quantisation error: what is left is rounding. */
Test(bound, codes_of_the_callers)
{
    static int8_t codes[2][200 * 64];
    float scales[2][4], sum[3] = {0, 0, 0};
    attention a = make(1, 1, 100, 200, 64, 1);
    for (int i = 0; i < 2 * 200 * 64; i++) codes[i % 2][i / 2] = (int8_t)(draw(255) - 127);
    for (int i = 0; i < 8; i++) scales[i % 2][i / 2] = .02f;
    for (int i = 0; i < 100 * 64; i++) a.q[i] = (float)(.02 * (codes[0][i] + .9 * (uniform() - .5)));
    for (int i = 0; i < 200 * 64; i++) a.k[i] = (float)(.02 * (codes[1][i] + .9 * (uniform() - .5)));
    for (int how = 0; how < 3; how++) { /* nothing given, K given, both given */
        double bounds[100];
        const tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, bounds, NULL, 0};
        a.policy.kind = TLAMP_POLICY_INT8;
        a.p.policy = &a.policy;
        a.p.q_dtype = how == 2 ? TLAMP_INT8 : TLAMP_F32;
        a.p.k_dtype = how >= 1 ? TLAMP_INT8 : TLAMP_F32;
        a.t.q = how == 2 ? (const void *)codes[0] : a.q;
        a.t.k = how >= 1 ? (const void *)codes[1] : a.k;
        a.t.q_scale = scales[0];
        a.t.k_scale = scales[1];
        a.p.softmax_scale = .02f;
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        (void)compare(&a);
        for (int i = 0; i < 100; i++) sum[how] += (float)bounds[i];
    }
    cr_assert(sum[1] < .7f * sum[0] && sum[2] < .01f * sum[1], "%g %g %g", (double)sum[0], (double)sum[1],
              (double)sum[2]);
    drop(&a);
}

/* A scale that is NaN or Inf makes such elements: exactly the rows that see them, and the columns of V, are NaN or Inf. One
 * too small for its inverse is a zero block. */
Test(bound, scales_of_the_callers_that_are_no_numbers)
{
    static int8_t codes[3][200 * 64];
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0, 0x1p-149f, -0x1p-127f, -.02f};
    static const tlamp_policy_kind kinds[] = {TLAMP_POLICY_HIGH, TLAMP_POLICY_INT8, TLAMP_POLICY_X3};
    attention a = make(1, 1, 200, 200, 64, 64);
    for (int i = 0; i < 3 * 200 * 64; i++) codes[i % 3][i / 3] = (int8_t)(draw(255) - 127);
    for (int c = 0; c < 64; c++) codes[1][70 * 64 + c] = 0; /* 0 * Inf is NaN */
    a.p.q_dtype = a.p.k_dtype = a.p.v_dtype = TLAMP_INT8;
    a.p.mask = TLAMP_MASK_CAUSAL;
    a.p.window_left = 20;
    a.p.softmax_scale = .02f;
    a.t.q = codes[0];
    a.t.k = codes[1];
    a.t.v = codes[2];
    for (int i = 0; i < 7 * 3 * 3 * 2; i++) {
        float scales[3][4];
        for (int j = 0; j < 12; j++) scales[j / 4][j % 4] = .02f;
        scales[i / 7 % 3][1] = bad[i % 7];
        a.t.q_scale = scales[0];
        a.t.k_scale = scales[1];
        a.t.v_scale = scales[2];
        a.policy.kind = kinds[i / 21 % 3];
        a.policy.pv = i / 63 ? TLAMP_PV_INT8 : TLAMP_PV_AUTO;
        (void)compare(&a);
    }
    drop(&a);
}

/* K's mean is taken off before the rotation. The first key, rotated, is the mean: who rotates first would find nothing left of
 * it to quantise, and promise too much. A bias hides the second key from the softmax, not from the mean. */
Test(bound, smoothing_comes_before_the_rotation)
{
    static const tlamp_policy_kind kinds[] = {TLAMP_POLICY_INT8, TLAMP_POLICY_X3};
    attention a = make(1, 1, 1, 2, 64, 64);
    for (int c = 0; c < 64; c++) {
        const float rotated = 1 + .01f * sinf((float)c * 1.7f);
        a.q[c] = sinf((float)c * .37f + .1f);
        a.k[c] = rotated;
        a.k[64 + c] = (c ? 0.f : 16.f) - rotated;
    }
    a.bias[0] = 0;
    a.bias[1] = -1000;
    a.p.has_bias = 1;
    a.p.bias_stride = (tlamp_score_strides){2, 2, 2, 1};
    a.policy.scales = TLAMP_SCALES_TOKEN;
    a.policy.smooth_k = a.policy.hadamard = 1;
    for (int i = 0; i < 2; i++) {
        a.policy.kind = kinds[i];
        (void)compare(&a);
    }
    drop(&a);
}

/* A packed sequence has the bounds it has alone: its own scales, mean, routing rows and groups. */
/* A key that only the last row sees makes its block's scale so large that, times the factor of logits, it leaves f32; queries are zeros. */
Test(bound, scales_of_blocks_that_overflow)
{
    static const tlamp_policy_kind kinds[] = {TLAMP_POLICY_INT8, TLAMP_POLICY_X3};
    enum { ROWS = 64, KEYS = 64, CHANNELS = 16, VALUES = 3 };
    attention a = make(1, 1, ROWS, KEYS, CHANNELS, VALUES);
    double o[ROWS * VALUES], bound[ROWS * VALUES];
    const tlamp_reference_outputs out = {sizeof out, o, NULL, NULL, NULL, bound, NULL, 0};
    for (int i = 0; i < ROWS * CHANNELS; i++) a.q[i] = 0;
    for (int i = 0; i < KEYS * CHANNELS; i++) a.k[i] = i < (KEYS - 1) * CHANNELS ? 1e-6f : 3e38f;
    a.p.mask = TLAMP_MASK_CAUSAL_TOP_LEFT;
    a.p.softmax_scale = 1e24f;
    a.p.policy = &a.policy;
    for (int i = 0; i < 2; i++) {
        a.policy.kind = kinds[i];
        cr_assert_eq(tlamp_attention(&a.p, &a.t, NULL, NULL), TLAMP_OK);
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        for (int at = 0; at < ROWS * VALUES; at++)
            cr_assert(isinf(bound[at]) || fabs(value_of(&a, at) - o[at]) <= bound[at],
                      "element %d: %g, exact %g, bound %g", at, value_of(&a, at), o[at], bound[at]);
    }
    drop(&a);
}
Test(bound, packed_sequences)
{
    const int32_t cu_q[3] = {0, 50, 90}, cu_k[3] = {0, 130, 200}, hq = 4, hk = 2;
    attention a = make(hq, hk, 90, 200, 16, 3);
    double *packed = malloc(90 * (size_t)hq * 3 * sizeof *packed), *alone = malloc(90 * (size_t)hq * 3 * sizeof *alone);
    cr_assert(packed && alone);
    tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, packed, NULL, 0};
    a.policy.kind = TLAMP_POLICY_ROUTED;
    a.policy.block_m = 16; /* 4 and 3 routing rows */
    a.policy.smooth_k = 1;
    a.p.mask = TLAMP_MASK_CAUSAL;
    a.p.policy = &a.policy;
    a.p.varlen = 1;
    a.p.batch = 2;
    a.p.total_q = 90;
    a.p.total_k = 200;
    a.t.cu_seqlens_q = cu_q;
    a.t.cu_seqlens_k = cu_k;
    a.t.words_stride_head = 7;
    cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
    a.p.varlen = 0;
    a.p.batch = 1;
    out.o_bound = alone;
    for (int b = 0; b < 2; b++) {
        const int32_t lq = cu_q[b + 1] - cu_q[b], n = lq * hq * 3;
        a.p.max_seqlen_q = lq;
        a.p.max_seqlen_k = cu_k[b + 1] - cu_k[b];
        a.t.q = a.q + cu_q[b] * hq * 16;
        a.t.k = a.k + cu_k[b] * hk * 16;
        a.t.v = a.v + cu_k[b] * hk * 3;
        a.t.words = a.words + (b ? 4 : 0);
        cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
        cr_assert_eq(memcmp(alone, packed + cu_q[b] * hq * 3, (size_t)n * sizeof *alone), 0, "sequence %d", b);
    }
    free(packed);
    free(alone);
    drop(&a);
}

Test(bound, output_types)
{
    attention a = make(1, 1, 1, 1, 1, 1);
    double bound;
    const tlamp_reference_outputs out = {sizeof out, NULL, NULL, NULL, NULL, &bound, NULL, 0};
    a.v[0] = 65504;
    a.p.o_dtype = TLAMP_F16;
    cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
    cr_assert(isinf(bound)); /* may round to Inf */
    a.v[0] = 1000;
    cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
    cr_assert(bound > 1000 * 0x1p-11 && bound < 1000 * 0x1.1p-11);
    a.p.o_dtype = TLAMP_BF16;
    cr_assert_eq(tlamp_reference(&a.p, &a.t, &out, NULL, NULL), TLAMP_OK);
    cr_assert(bound > 1000 * 0x1p-8 && bound < 1000 * 0x1.1p-8);
    drop(&a);
}
