/* LampAttention: the decisions of core/lamp.h by themselves; its error bound; the two of them in a small simulator with rows
 * in lanes, as the fast path will be, which must agree with src/reference/lamp.c bit for bit; and what the algorithm is
 * known to do (ALGORITHMS B3, B6, C0). */
#include <criterion/criterion.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/exp2.h"
#include "core/lamp.h"
#include "reference/lamp.h"
#include "tilelamp/tilelamp.h"

/* A passing cr_assert in a loop of millions costs more than the loop. */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) cr_assert(0, __VA_ARGS__);                                                                   \
    } while (0)

static uint64_t random_state = 1;

static double uniform(void) /* [0, 1) */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) * 0x1p-53;
}

static int32_t pick(int32_t n) { return (int32_t)(uniform() * n); } /* 0 .. n-1 */

static double normal(void) { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }

static int32_t count_bits(uint32_t set)
{
    int32_t n = 0;
    for (; set; set &= set - 1) n++;
    return n;
}

/* ------------------------------------------------------------------------------------------------------ decisions */

Test(lamp, condition_7)
{
    const float delta = 0x1p-8f, never = -INFINITY;
    float top[] = {1.f, never}, muhat[] = {2.f, never};
    cr_assert(tl_lamp_stays_low(top, muhat, 2, delta)); /* the second row sees nothing and has no say */
    top[0] = 2.f - 2.f * delta;
    cr_assert(!tl_lamp_stays_low(top, muhat, 2, delta)); /* strictly above */
    top[0] = nextafterf(top[0], 0.f);
    cr_assert(tl_lamp_stays_low(top, muhat, 2, delta));
    muhat[0] = -2.f; /* |muhat| */
    top[0] = -2.f - delta;
    cr_assert(!tl_lamp_stays_low(top, muhat, 2, delta));
    top[0] = -2.1f;
    cr_assert(tl_lamp_stays_low(top, muhat, 2, delta));
    muhat[0] = never;
    cr_assert(!tl_lamp_stays_low(top, muhat, 2, delta) && !tl_lamp_stays_low(top, muhat, 2, 0.f));
    muhat[0] = NAN;
    cr_assert(!tl_lamp_stays_low(top, muhat, 2, delta));
    muhat[0] = INFINITY;
    top[0] = INFINITY;
    cr_assert(!tl_lamp_stays_low(top, muhat, 2, delta));
}

Test(lamp, visiting_order)
{
    enum { SUBS = 5 };
    const float never = -INFINITY, mu[] = {1.f, never};
    const float top[SUBS][2] = {{0.f, never}, {3.f, never}, {3.f, never}, {-5.f, 1.f}, {-5.f, 2.f}};
    tl_lamp_threat threats[SUBS];
    uint8_t order[SUBS];
    for (int sub = 0; sub < SUBS; sub++) threats[sub] = tl_lamp_threat_of(top[sub], NULL, mu, 2);
    cr_assert(threats[0].threat == -1.f && threats[1].threat == 2.f && threats[3].threat == INFINITY);
    cr_assert_eq(tl_lamp_order(threats, 0x1fu, SUBS, order), SUBS);
    const uint8_t expected[] = {4, 3, 1, 2, 0}; /* +Inf by peak; the tie of 1 and 2 in key order */
    cr_assert_arr_eq(order, expected, SUBS);
    cr_assert_eq(tl_lamp_order(threats, 0x15u, SUBS, order), 3);
    cr_assert(order[0] == 4 && order[1] == 2 && order[2] == 0);
    const float eps[] = {4.f, 0.f};
    cr_assert(tl_lamp_threat_of(top[0], eps, mu, 2).threat == 3.f);
}

Test(lamp, permissions)
{
    cr_assert_eq(tl_lamp_forced(0, 0xbu), 0xbu);
    cr_assert_eq(tl_lamp_forced(1, 0xbu), 0u);
}

Test(lamp, weights)
{
    cr_assert_eq(tl_lamp_weight(4.f, 2.f, 2.f), 6.f / 16.f);
    cr_assert(tl_lamp_weight(1.f, 1.f, 1.f) == 0.f && tl_lamp_weight(1.f, 1.f, nextafterf(1.f, 2.f)) == 0.f);
    cr_assert(tl_lamp_weight(0.f, 0.f, 0.f) == 0.f && tl_lamp_weight(NAN, 0.f, 0.f) == 0.f);
    cr_assert(tl_lamp_weight(NAN, 1.f, 1.f) == INFINITY && tl_lamp_weight(1.f, NAN, NAN) == INFINITY);
    cr_assert(tl_lamp_weight(INFINITY, 1.f, 1.f) == INFINITY && tl_lamp_weight(0x1p-80f, 0x1p-80f, 0.f) == INFINITY);
    for (int n = 0; n < 1000; n++) {
        const float omega = (float)(1 + uniform()), s1 = (float)uniform(), s2 = s1 * s1 * (float)uniform();
        cr_assert_eq(tl_lamp_weight_eps(omega, s1, s2, 1.f, 0.f), tl_lamp_weight(omega, s1, s2));
    }
    cr_assert(tl_lamp_weight_eps(4.f, 2.f, 2.f, .5f, 0.f) == 3.f / 16.f);
    cr_assert(tl_lamp_weight_eps(4.f, 2.f, 2.f, 4.1f, 0.f) == INFINITY); /* too uncertain for a low logit at all, */
    cr_assert(tl_lamp_weight_eps(4.f, 0.f, 0.f, 4.1f, 0.f) == INFINITY); /* even where it seems to weigh nothing */
    cr_assert(tl_lamp_weight_eps(4.f, 2.f, 2.f, NAN, 0.f) == INFINITY);
    cr_assert(tl_lamp_weight_eps(4.f, 0.f, 0.f, NAN, -INFINITY) == 0.f); /* the row sees none of it */
}

/* --------------------------------------------------------------------------------------------------------- solver */

typedef struct {
    float r[TL_LAMP_SUBS * TL_LAMP_ROWS];
    int32_t subs, rows;
    uint32_t set;
    float tau;
} instance;

/* Weights as they come: a row's sum is at most about 1; many are tiny; some tie; some are forbidding. */
static void draw_instance(instance *x, int32_t subs)
{
    x->subs = subs;
    x->rows = 1 + pick(pick(2) ? 8 : TL_LAMP_ROWS);
    x->set = (uint32_t)(uniform() * 0x1p32) & (subs == 32 ? 0xffffffffu : (1u << subs) - 1u);
    x->tau = pick(4) ? (float)ldexp(1, -pick(6)) : (float)uniform();
    const bool coarse = pick(2);
    for (int32_t sub = 0; sub < subs; sub++)
        for (int32_t j = 0; j < x->rows; j++) {
            double r = pow(uniform(), pick(2) ? 8 : 2) * 2 / subs;
            if (coarse) r = round(r * 8) / 8;
            x->r[sub * TL_LAMP_ROWS + j] = pick(500) ? (float)r : INFINITY;
        }
}

static float load_by_hand(const instance *x, uint32_t set)
{
    float most = 0;
    for (int32_t j = 0; j < x->rows; j++) {
        float sum = 0;
        for (int32_t sub = 0; sub < x->subs; sub++)
            if (set >> sub & 1u) sum += x->r[sub * TL_LAMP_ROWS + j];
        most = sum > most ? sum : most;
    }
    return most;
}

/* (8) and its tie-break, read off the definition. */
static uint32_t solve_by_hand(const instance *x)
{
    for (int32_t size = count_bits(x->set); size > 0; size--) {
        uint32_t best = 0;
        for (uint32_t g = 1; g < 1u << x->subs; g++) {
            if ((g & ~x->set) || count_bits(g) != size || !(load_by_hand(x, g) <= x->tau)) continue;
            if (!best || load_by_hand(x, g) < load_by_hand(x, best)) best = g;
        }
        if (best) return best;
    }
    return 0;
}

Test(lamp, solver_is_exact_for_few_sub_blocks)
{
    instance x;
    int kept = 0, dropped = 0;
    for (int trial = 0; trial < 3000; trial++) {
        draw_instance(&x, 1 + pick(TL_LAMP_EXACT));
        const uint32_t expected = solve_by_hand(&x);
        CHECK(tl_lamp_solve(x.r, x.set, x.subs, x.rows, x.tau) == expected, "trial %d", trial);
        CHECK(tl_lamp_solve_exact(x.r, x.set, x.subs, x.rows, x.tau) == expected, "trial %d", trial);
        kept += count_bits(expected);
        dropped += count_bits(x.set & ~expected);
    }
    cr_assert(kept > 1000 && dropped > 1000, "%d kept, %d dropped: the instances say little", kept, dropped);
}

Test(lamp, solver_is_good_for_many_sub_blocks)
{
    instance x;
    int exact = 0, trials = 0;
    for (int trial = 0; trial < 3000; trial++) {
        draw_instance(&x, 9 + pick(TL_LAMP_SUBS - 8));
        const uint32_t low = tl_lamp_solve(x.r, x.set, x.subs, x.rows, x.tau);
        CHECK(!(low & ~x.set) && load_by_hand(&x, low) <= x.tau, "trial %d", trial);
        for (int32_t sub = 0; sub < x.subs; sub++)
            CHECK(!((x.set & ~low) >> sub & 1u) || !(load_by_hand(&x, low | 1u << sub) <= x.tau),
                  "trial %d: %d would fit", trial, (int)sub);
    }
    for (int trial = 0; trial < 200; trial++) { /* against the optimum, which is still within reach */
        draw_instance(&x, 10);
        const int best = count_bits(solve_by_hand(&x));
        const int found = count_bits(tl_lamp_solve_greedy(x.r, x.set, x.subs, x.rows, x.tau));
        CHECK(found <= best && found >= best - 2, "trial %d: %d of %d", trial, found, best);
        exact += found == best;
        trials++;
    }
    cr_assert(exact * 10 >= trials * 8, "the heuristic finds the optimum in %d of %d", exact, trials);
}

/* C3: with |low - exact| <= eps, what the rigorous stage one keeps is below the maximum in truth, and what stage two keeps
 * moves the weights by no more than 2 tau to first order. */
Test(lamp, rigorous_variants)
{
    enum { SUBS = 4, KEYS = 16 };
    int kept = 0, kept_two = 0;
    for (int trial = 0; trial < 20000; trial++) {
        double exact[SUBS][KEYS], low[SUBS][KEYS], sum = 1, sum_hat = 1; /* 1: the old keys, whose maximum is muhat */
        float r[SUBS * TL_LAMP_ROWS] = {0.f}, muhat = (float)normal(), omegahat = 1.f;
        float s1[SUBS] = {0.f}, s2[SUBS] = {0.f}, eps[SUBS], top[SUBS];
        for (int sub = 0; sub < SUBS; sub++) {
            eps[sub] = (float)(0.2 * uniform());
            top[sub] = -INFINITY;
            for (int key = 0; key < KEYS; key++) {
                exact[sub][key] = (double)muhat - 3 + 2 * normal();
                low[sub][key] = exact[sub][key] + (double)eps[sub] * (2 * uniform() - 1);
                top[sub] = fmaxf(top[sub], (float)low[sub][key]);
                const float e = expf((float)low[sub][key] - muhat);
                s1[sub] += e;
                s2[sub] = fmaf(e, e, s2[sub]);
            }
            omegahat += s1[sub];
        }
        for (int sub = 0; sub < SUBS; sub++) {
            r[sub * TL_LAMP_ROWS] = tl_lamp_weight_eps(omegahat, s1[sub], s2[sub], eps[sub], top[sub]);
            if (!tl_lamp_stays_low_eps(&top[sub], &eps[sub], &muhat, 1)) continue;
            kept++;
            for (int key = 0; key < KEYS; key++) CHECK(exact[sub][key] < (double)muhat + 1e-6, "trial %d", trial);
        }
        const float tau = 0.03f;
        const uint32_t set = tl_lamp_solve(r, 0xfu, SUBS, 1, tau);
        double weight[SUBS][KEYS], used[SUBS][KEYS], l1 = 0;
        for (int sub = 0; sub < SUBS; sub++)
            for (int key = 0; key < KEYS; key++) {
                sum += weight[sub][key] = exp(exact[sub][key] - (double)muhat);
                sum_hat += used[sub][key] = exp((set >> sub & 1u ? low : exact)[sub][key] - (double)muhat);
            }
        for (int sub = 0; sub < SUBS; sub++)
            for (int key = 0; key < KEYS; key++) l1 += fabs(weight[sub][key] / sum - used[sub][key] / sum_hat);
        l1 += fabs(1 / sum - 1 / sum_hat);
        CHECK(l1 <= 2 * (double)tau * exp(0.8), "trial %d: %g", trial, l1);
        kept_two += count_bits(set);
    }
    cr_assert(kept > 1000 && kept_two > 1000 && kept_two < 79000);
}

/* -------------------------------------------------------------------------------------------------- error bound C1 */

/* Largest and mean error / bound of the simulated accumulation over `trials` dot products. */
static void check_running_bound(int trials, int hw, int stochastic, tl_minifloat f, double most_mean_ratio)
{
    double sum_ratio = 0;
    int finite = 0, reached = 0;
    for (int trial = 0; trial < trials; trial++) {
        const int d = 1 + pick(pick(8) ? 32 : 256);
        const double scale = trial % 5 ? 1 : exp(3 * normal()); /* far into the subnormals, and into saturation */
        const tl_lamp_rounding e = hw ? tl_lamp_rounding_hw(f, stochastic)
                                      : tl_lamp_rounding_sim(f.mantissa, stochastic);
        const uint32_t stream = tl_random_stream(1, (uint32_t)trial, 0, 0);
        double exact = 0;
        float c = 0.f, bound = 0.f;
        for (int k = 0; k < d; k++) {
            const float a = (float)(normal() * scale / sqrt(d)), b = (float)normal();
            const float s = fmaf(a, b, c);
            const uint32_t random = tl_random(stream, (uint32_t)k);
            exact += (double)a * (double)b;
            if (hw)
                c = stochastic ? tl_mini_round_stochastic(s, f, random) : tl_mini_round(s, f);
            else
                c = stochastic ? tl_round_mantissa_stochastic(s, f.mantissa, random) : tl_round_mantissa(s, f.mantissa);
            bound = tl_lamp_running(bound, s, c, e);
        }
        bound = tl_lamp_running_end(bound, d);
        const double error = fabs((double)c - exact);
        CHECK(error <= (double)bound * (1 + 1e-12), "trial %d, d = %d: error %g, bound %g", trial, d, error,
              (double)bound);
        if (!isfinite(bound)) continue;
        finite++;
        reached += error > 0.9 * (double)bound;
        sum_ratio += error / (double)bound;
    }
    cr_assert(finite > trials * 9 / 10 && sum_ratio / finite < most_mean_ratio, "%d finite, mean ratio %g", finite,
              sum_ratio / finite);
    cr_assert(stochastic || reached > 0, "never nearly reached: is it too loose?"); /* by d = 1 */
}

Test(lamp, running_bound_m3_sim) { check_running_bound(120000, 0, 0, tl_e4m3(), 0.5); }
Test(lamp, running_bound_m3_hw) { check_running_bound(120000, 1, 0, tl_e4m3(), 0.5); }
Test(lamp, running_bound_m11_sim) { check_running_bound(120000, 0, 0, tl_e4m11(), 0.5); }
Test(lamp, running_bound_m11_hw) { check_running_bound(120000, 1, 0, tl_e4m11(), 0.5); }
Test(lamp, running_bound_stochastic)
{
    check_running_bound(30000, 0, 1, tl_e4m3(), 0.5);
    check_running_bound(30000, 1, 1, tl_e4m11(), 0.5);
}

Test(lamp, running_bound_of_nothing_good)
{
    const tl_lamp_rounding e = tl_lamp_rounding_hw(tl_e4m3(), 0);
    cr_assert(tl_lamp_running(0.f, 500.f, 448.f, e) == INFINITY); /* saturated */
    cr_assert(tl_lamp_running(0.f, NAN, NAN, e) == INFINITY);
    cr_assert_float_eq(tl_lamp_running(0.f, 0.f, 0.f, e), 0x1p-10f, 1e-12f);
}

/* -------------------------------------------------------------------------------------------------- whole problems */

typedef struct {
    tlamp_problem p;
    tlamp_policy policy;
    tlamp_tensors t;
    float *q, *k, *v; /* [batch, seq, head, dim] */
    size_t num_o, num_lse;
} fixture;

typedef struct {
    float *o, *lse;
    tlamp_counters n;
} outcome;

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
    tlamp_policy_init(&f.policy, sizeof f.policy);
    tlamp_tensors_init(&f.t, sizeof f.t);
    f.policy.kind = TLAMP_POLICY_LAMP;
    f.policy.lamp_format = TLAMP_LAMP_E4M3;
    f.p.batch = batch;
    f.p.num_heads_q = hq;
    f.p.num_heads_k = hk;
    f.p.max_seqlen_q = lq;
    f.p.max_seqlen_k = lk;
    f.p.head_dim_qk = d;
    f.p.head_dim_v = dv;
    cr_assert_eq(tlamp_set_strides(&f.p, TLAMP_TENSOR_BSHD, NULL), TLAMP_OK);
    const size_t rows = (size_t)(batch * lq * hq), keys = (size_t)(batch * lk * hk);
    f.num_lse = rows;
    f.num_o = rows * (size_t)dv;
    f.t.q = f.q = floats(rows * (size_t)d);
    f.t.k = f.k = floats(keys * (size_t)d);
    f.t.v = f.v = floats(keys * (size_t)dv);
    f.t.o = f.q; /* required, but not written by the references */
    for (size_t i = 0; i < rows * (size_t)d; i++) f.q[i] = (float)normal();
    for (size_t i = 0; i < keys * (size_t)d; i++) f.k[i] = (float)normal();
    for (size_t i = 0; i < keys * (size_t)dv; i++) f.v[i] = (float)normal();
    return f;
}

static void drop(fixture *f)
{
    free(f->q);
    free(f->k);
    free(f->v);
}

static outcome run(const fixture *f)
{
    outcome r = {floats(f->num_o), floats(f->num_lse), {0}};
    const tl_ref_lamp_outputs out = {r.o, r.lse, &r.n};
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_problem p = f->p;
    p.policy = &f->policy;
    const tlamp_status status = tl_ref_lamp(&p, &f->t, &out, &err);
    cr_assert_eq(status, TLAMP_OK, "%s: %s", err.field, err.text);
    return r;
}

static outcome run_as(const fixture *f, tlamp_lamp_run kind)
{
    fixture g = *f;
    g.policy.lamp_run = kind;
    return run(&g);
}

static void drop_outcome(outcome *r)
{
    free(r->o);
    free(r->lse);
}

/* Bit for bit, but for a NaN's payload and a zero's sign. */
static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))) return false;
    return true;
}

static bool same_result(const fixture *f, const outcome *a, const outcome *b)
{
    return same_bits(a->o, b->o, f->num_o) && same_bits(a->lse, b->lse, f->num_lse);
}

static bool same_counts(const tlamp_counters *a, const tlamp_counters *b) { return memcmp(a, b, sizeof *a) == 0; }

/* QK normalisation as the paper's models have it: every q and k has length sqrt(d) * gain. */
static void normalise(float *x, size_t vectors, int32_t d, double gain)
{
    for (size_t i = 0; i < vectors; i++, x += d) {
        double sum = 0;
        for (int32_t c = 0; c < d; c++) sum += (double)x[c] * (double)x[c];
        for (int32_t c = 0; c < d; c++) x[c] *= (float)(gain * sqrt(d / sum));
    }
}

static fixture make_normed(int32_t heads, int64_t length, int32_t d, double gain)
{
    fixture f = make(1, heads, heads, length, length, d, d);
    f.p.mask = TLAMP_MASK_CAUSAL;
    normalise(f.q, (size_t)(length * heads), d, gain);
    normalise(f.k, (size_t)(length * heads), d, gain);
    return f;
}

/* mean |o - exact| / mean |exact|, against the reference in double. */
static double error_of(const fixture *f, const outcome *r)
{
    double *exact = calloc(f->num_o + 1, sizeof *exact), error = 0, size = 0;
    cr_assert(exact);
    tlamp_policy high;
    tlamp_policy_init(&high, sizeof high);
    tlamp_problem p = f->p;
    p.policy = &high;
    const tlamp_reference_outputs out = {.struct_size = sizeof out, .o = exact};
    cr_assert_eq(tlamp_reference(&p, &f->t, &out, NULL, NULL), TLAMP_OK);
    for (size_t i = 0; i < f->num_o; i++) {
        error += fabs((double)r->o[i] - exact[i]);
        size += fabs(exact[i]);
    }
    free(exact);
    return error / size;
}

/* ------------------------------------------------------------- the same with rows in lanes and core/lamp.h deciding */

enum { ROWS = TL_LAMP_ROWS, KEYS = 64, DIM = 32, VALUE_DIM = 8 };

typedef struct {
    const fixture *f;
    tlamp_counters n;
    int32_t head, head_k, rows, keys;
    int64_t first_row, first_key;
    float q[DIM][ROWS], o[VALUE_DIM][ROWS], mu[ROWS], omega[ROWS];
    float y[KEYS][ROWS], e[KEYS][ROWS], top[TL_LAMP_SUBS * ROWS], r[TL_LAMP_SUBS * ROWS];
    float muhat[ROWS], lambda[ROWS], alpha[ROWS], omegahat[ROWS];
    bool seen[KEYS][ROWS];
} lanes;

static float round_lane(const lanes *x, float y, tl_minifloat f, int32_t key, int32_t j, uint32_t counter)
{
    const tlamp_policy *p = &x->f->policy;
    uint32_t random = 0;
    if (p->lamp_stochastic)
        random = tl_random(tl_random_stream(p->lamp_seed, (uint32_t)x->head, (uint32_t)(x->first_row + j),
                                            (uint32_t)(x->first_key + key)),
                           counter);
    if (p->lamp_mode == TLAMP_LAMP_HW)
        return p->lamp_stochastic ? tl_mini_round_stochastic(y, f, random) : tl_mini_round(y, f);
    return p->lamp_stochastic ? tl_round_mantissa_stochastic(y, f.mantissa, random) : tl_round_mantissa(y, f.mantissa);
}

static void lanes_products(lanes *x, int32_t sub, bool high)
{
    const int32_t b_k = x->f->policy.lamp_b_k, d = x->f->p.head_dim_qk;
    float *top = x->top + sub * ROWS;
    for (int32_t j = 0; j < x->rows; j++) top[j] = -INFINITY;
    for (int32_t key = sub * b_k; key < (sub + 1) * b_k; key++) {
        float c[ROWS] = {0.f};
        if (key < x->keys) {
            const float *k = x->f->k + ((x->first_key + key) * x->f->p.num_heads_k + x->head_k) * d;
            for (int32_t step = 0; step < d; step++)
                for (int32_t j = 0; j < x->rows; j++)
                    c[j] = round_lane(x, fmaf(x->q[step][j], k[step], c[j]), high ? tl_e4m11() : tl_e4m3(), key, j,
                                      (uint32_t)step + (high ? 65536u : 0u));
        }
        for (int32_t j = 0; j < x->rows; j++) {
            x->y[key][j] = x->seen[key][j] ? c[j] : -INFINITY;
            top[j] = tl_max(x->y[key][j], top[j]);
        }
    }
}

static void lanes_exp(lanes *x, int32_t sub, bool high)
{
    const tlamp_policy *p = &x->f->policy;
    for (int32_t key = sub * p->lamp_b_k; key < (sub + 1) * p->lamp_b_k; key++)
        for (int32_t j = 0; j < x->rows; j++) {
            const float ref = x->muhat[j] == -INFINITY ? 0.f : x->muhat[j];
            float e, a = x->y[key][j] - ref;
            if (high) {
                if (p->lamp_mode == TLAMP_LAMP_HW && p->lamp_clamp && a > 0.f) a = 0.f;
                e = round_lane(x, tl_exp2(a * TL_LOG2E), tl_ue5m11(TL_EXP_BIAS), key, j, 6 * 65536);
            } else if (p->lamp_mode == TLAMP_LAMP_HW) {
                a = tl_mini_truncate(ref, tl_e4m3()) - x->y[key][j];
                e = tl_exp_lookup(round_lane(x, a, tl_ue5m3(TL_SHIFT_BIAS), key, j, 4 * 65536));
            } else {
                a = round_lane(x, a, tl_ue5m3(TL_SHIFT_BIAS), key, j, 4 * 65536);
                e = round_lane(x, tl_exp2(a * TL_LOG2E), tl_ue5m3(TL_EXP_BIAS), key, j, 5 * 65536);
            }
            x->e[key][j] = x->seen[key][j] ? e : 0.f;
        }
}

static void lanes_sum(lanes *x, float *to)
{
    for (int32_t j = 0; j < x->rows; j++) {
        float sum = 0.f;
        x->lambda[j] = x->muhat[j] == -INFINITY ? 1.f : tl_exp2((x->mu[j] - x->muhat[j]) * TL_LOG2E);
        x->alpha[j] = x->lambda[j] * x->omega[j];
        for (int32_t key = 0; key < x->keys; key++) sum += x->e[key][j];
        to[j] = x->alpha[j] + sum;
    }
}

/* Every legal sub-block high. */
static void lanes_all_high(lanes *x, uint32_t legal)
{
    const int32_t subs = x->f->policy.lamp_n_k;
    memcpy(x->muhat, x->mu, sizeof x->mu);
    for (int32_t sub = 0; sub < subs; sub++) {
        if (!(legal & tl_lamp_bit(sub))) continue;
        lanes_products(x, sub, true);
        tl_lamp_raise(x->muhat, x->top + sub * ROWS, x->rows);
    }
    for (int32_t sub = 0; sub < subs; sub++)
        if (legal & tl_lamp_bit(sub)) lanes_exp(x, sub, true);
}

static uint32_t lanes_stage_one(lanes *x, uint32_t legal)
{
    const tlamp_policy *p = &x->f->policy;
    tl_lamp_threat threats[TL_LAMP_SUBS];
    uint8_t order[TL_LAMP_SUBS];
    uint32_t high = 0;
    for (int32_t sub = 0; sub < p->lamp_n_k; sub++)
        threats[sub] = tl_lamp_threat_of(x->top + sub * ROWS, NULL, x->mu, x->rows);
    const int32_t n = tl_lamp_order(threats, legal, p->lamp_n_k, order);
    for (int32_t i = 0; i < n; i++) {
        float *top = x->top + order[i] * ROWS;
        if (p->delta >= 0.f) {
            if (tl_lamp_stays_low(top, x->muhat, x->rows, p->delta)) continue;
            high |= tl_lamp_bit(order[i]);
            lanes_products(x, order[i], true);
        }
        tl_lamp_raise(x->muhat, top, x->rows);
    }
    return high;
}

static uint32_t lanes_stage_two(lanes *x, uint32_t legal, uint32_t high)
{
    const tlamp_policy *p = &x->f->policy;
    if (p->tau >= 1.f) return 0;
    for (int32_t sub = 0; sub < p->lamp_n_k; sub++)
        for (int32_t j = 0; j < x->rows; j++) {
            float s1 = 0.f, s2 = 0.f;
            for (int32_t key = sub * p->lamp_b_k; key < (sub + 1) * p->lamp_b_k; key++) {
                s1 += x->e[key][j];
                s2 = fmaf(x->e[key][j], x->e[key][j], s2);
            }
            x->r[sub * ROWS + j] = tl_lamp_weight(x->omegahat[j], s1, s2);
        }
    const uint32_t redone = legal & ~high & ~tl_lamp_solve(x->r, legal & ~high, p->lamp_n_k, x->rows, p->tau);
    float before[ROWS];
    memcpy(before, x->muhat, sizeof before);
    for (int32_t sub = 0; sub < p->lamp_n_k; sub++) {
        if (!(redone & tl_lamp_bit(sub))) continue;
        lanes_products(x, sub, true);
        if (p->lamp_mode == TLAMP_LAMP_HW && !p->lamp_clamp) tl_lamp_raise(x->muhat, x->top + sub * ROWS, x->rows);
    }
    for (int32_t key = 0; key < x->keys; key++) { /* a factor of 1 changes nothing */
        const uint32_t sub = tl_lamp_bit(key / p->lamp_b_k);
        for (int32_t j = 0; j < x->rows; j++)
            if (!(redone & sub) && x->muhat[j] > before[j] && before[j] > -INFINITY)
                x->e[key][j] = round_lane(x, x->e[key][j] * tl_exp2((before[j] - x->muhat[j]) * TL_LOG2E),
                                          high & sub ? tl_ue5m11(TL_EXP_BIAS) : tl_ue5m3(TL_EXP_BIAS), key, j,
                                          7 * 65536);
    }
    for (int32_t sub = 0; sub < p->lamp_n_k; sub++)
        if (redone & tl_lamp_bit(sub)) lanes_exp(x, sub, true);
    return redone;
}

static bool sees(const fixture *f, int64_t i, int64_t j)
{
    const int64_t ahead = j - (i + f->p.max_seqlen_k - f->p.max_seqlen_q);
    if (f->p.mask == TLAMP_MASK_CAUSAL && ahead > 0) return false;
    if (f->p.window_left >= 0 && -ahead > f->p.window_left) return false;
    return !f->p.has_bool_mask || f->t.bool_mask[i * f->p.max_seqlen_k + j];
}

static void lanes_tile(lanes *x, bool permitted)
{
    const fixture *f = x->f;
    const tlamp_policy *p = &f->policy;
    const int64_t left = f->p.max_seqlen_k - x->first_key;
    uint32_t legal = 0;
    x->keys = left < p->block_n ? (int32_t)left : p->block_n;
    memset(x->e, 0, sizeof x->e);
    for (int32_t key = 0; key < p->block_n; key++)
        for (int32_t j = 0; j < x->rows; j++) {
            x->seen[key][j] = key < x->keys && sees(f, x->first_row + j, x->first_key + key);
            if (x->seen[key][j]) legal |= tl_lamp_bit(key / p->lamp_b_k);
        }
    if (!legal) return;
    const uint32_t forced = tl_lamp_forced(permitted, legal);
    uint32_t one = 0, two = 0;
    if (forced) {
        lanes_all_high(x, forced);
    } else {
        memcpy(x->muhat, x->mu, sizeof x->mu);
        for (int32_t sub = 0; sub < p->lamp_n_k; sub++) lanes_products(x, sub, false);
        one = lanes_stage_one(x, legal);
        for (int32_t sub = 0; sub < p->lamp_n_k; sub++) lanes_exp(x, sub, one & tl_lamp_bit(sub));
        lanes_sum(x, x->omegahat);
        two = lanes_stage_two(x, legal, one);
    }
    const int32_t high = count_bits(forced | one | two), all = count_bits(legal);
    if (p->lamp_compact && high >= 2) lanes_all_high(x, legal);
    lanes_sum(x, x->omega);
    memcpy(x->mu, x->muhat, sizeof x->mu);
    for (int32_t c = 0; c < f->p.head_dim_v; c++)
        for (int32_t j = 0; j < x->rows; j++) {
            x->o[c][j] *= x->lambda[j];
            for (int32_t key = 0; key < x->keys; key++)
                x->o[c][j] = fmaf(x->e[key][j],
                                  f->v[((x->first_key + key) * f->p.num_heads_k + x->head_k) * f->p.head_dim_v + c],
                                  x->o[c][j]);
        }
    x->n.sub_blocks += all;
    x->n.sub_blocks_recomputed += high;
    x->n.sub_blocks_executed += p->lamp_compact && high >= 2 ? all : high;
    x->n.tiles_recomputed[high > 2 ? 2 : high]++;
    x->n.histogram[high]++;
    x->n.stage_one += count_bits(one);
    x->n.stage_two += count_bits(two);
    x->n.forced += count_bits(forced);
}

/* Batch 1, f32, no softcap, bias or sink; d <= DIM, dv <= VALUE_DIM, block_n <= KEYS. */
static outcome run_lanes(const fixture *f)
{
    outcome r = {floats(f->num_o), floats(f->num_lse), {.struct_size = sizeof r.n}};
    lanes *x = calloc(1, sizeof *x);
    cr_assert(x);
    x->f = f;
    const int64_t lq = f->p.max_seqlen_q, lk = f->p.max_seqlen_k, block_m = f->policy.block_m;
    const int32_t hq = f->p.num_heads_q, d = f->p.head_dim_qk, dv = f->p.head_dim_v;
    const float scale = f->p.softmax_scale == 0.f ? (float)(1 / sqrt(d)) : f->p.softmax_scale;
    for (x->head = 0; x->head < hq; x->head++)
        for (x->first_row = 0; x->first_row < lq; x->first_row += x->rows) {
            x->head_k = x->head / (hq / f->p.num_heads_k);
            const int64_t m = x->first_row / block_m, end = tl_min64(lq, (m + 1) * block_m);
            x->rows = (int32_t)tl_min64(f->policy.lamp_b_q, end - x->first_row);
            for (int32_t j = 0; j < x->rows; j++) {
                for (int32_t c = 0; c < d; c++) x->q[c][j] = f->q[((x->first_row + j) * hq + x->head) * d + c] * scale;
                for (int32_t c = 0; c < dv; c++) x->o[c][j] = 0.f;
                x->mu[j] = -INFINITY;
                x->omega[j] = 0.f;
            }
            for (int64_t tile = 0; tile * f->policy.block_n < lk; tile++) {
                x->first_key = tile * f->policy.block_n;
                lanes_tile(x, !f->t.words || (f->t.words[m] >> tile & 1u));
            }
            for (int32_t j = 0; j < x->rows; j++) {
                const int64_t row = x->first_row + j;
                for (int32_t c = 0; c < dv; c++)
                    r.o[(row * hq + x->head) * dv + c] = x->omega[j] == 0.f ? 0.f : x->o[c][j] / x->omega[j];
                r.lse[x->head * lq + row] = x->omega[j] == 0.f ? -INFINITY : x->mu[j] + tl_log2(x->omega[j]) * TL_LN2;
            }
        }
    r.n = x->n;
    r.n.struct_size = sizeof r.n;
    free(x);
    return r;
}

/* A policy of any kind that block_n <= 64 allows. */
static void draw_policy(tlamp_policy *p, uint32_t seed)
{
    p->block_n = 16 << pick(3);
    p->lamp_n_k = 1 << pick(p->block_n == 16 ? 5 : 6); /* up to 32 sub-blocks: the heuristic too */
    p->lamp_b_k = p->block_n / p->lamp_n_k;
    p->block_m = 16 << pick(4);
    p->lamp_b_q = 1 + pick(pick(2) ? 40 : ROWS);
    p->tau = (float)ldexp(1, -pick(8));
    p->delta = pick(4) ? (float)ldexp(1, -pick(10)) : pick(2) ? 0.f : -1.f;
    p->lamp_mode = pick(2) ? TLAMP_LAMP_HW : TLAMP_LAMP_SIM;
    p->lamp_stochastic = !pick(4);
    p->lamp_compact = !pick(4);
    p->lamp_clamp = pick(2);
    p->lamp_seed = seed;
}

/* Random problems and policies: masks, tails, any b_q, b_k and N_k, words, both modes. */
Test(lamp, rows_in_lanes_give_the_same_bits)
{
    int64_t one = 0, two = 0, kept = 0, forced = 0;
    for (int trial = 0; trial < 150; trial++) {
        const int32_t hk = 1 + pick(2);
        fixture f = make(1, hk * (1 + pick(2)), hk, 1 + pick(150), 1 + pick(200), 1 + pick(DIM), 1 + pick(VALUE_DIM));
        const double gain = 0.5 + 2 * uniform();
        for (int64_t i = 0; i < f.p.max_seqlen_q * f.p.num_heads_q * f.p.head_dim_qk; i++) f.q[i] *= (float)gain;
        draw_policy(&f.policy, (uint32_t)trial);
        if (pick(2)) f.p.mask = TLAMP_MASK_CAUSAL;
        if (!pick(4)) f.p.window_left = pick(60);
        uint64_t words[16];
        for (int m = 0; m < 16; m++) words[m] = (uint64_t)(uniform() * 0x1p16) | (uint64_t)(uniform() * 0x1p16);
        if (!pick(3)) f.t.words = words;
        f.t.words_stride_row = 1;
        uint8_t *mask = malloc((size_t)(f.p.max_seqlen_q * f.p.max_seqlen_k));
        cr_assert(mask);
        for (int64_t i = 0; i < f.p.max_seqlen_q * f.p.max_seqlen_k; i++) mask[i] = pick(5) > 0;
        f.p.has_bool_mask = !pick(3);
        f.t.bool_mask = mask;
        f.p.bool_mask_stride = (tlamp_score_strides){0, 0, f.p.max_seqlen_k, 1};

        outcome a = run(&f), b = run_lanes(&f);
        a.n.saturated_logits = 0; /* not counted in lanes */
        a.n.largest_logit = 0.f;
        cr_assert(same_result(&f, &a, &b), "trial %d", trial);
        cr_assert(same_counts(&a.n, &b.n), "trial %d", trial);
        one += a.n.stage_one;
        two += a.n.stage_two;
        forced += a.n.forced;
        kept += a.n.sub_blocks - a.n.sub_blocks_recomputed;
        drop_outcome(&a);
        drop_outcome(&b);
        free(mask);
        drop(&f);
    }
    cr_assert(one > 1000 && two > 1000 && forced > 500 && kept > 1000, "%lld, %lld, %lld, %lld: the trials say little",
              (long long)one, (long long)two, (long long)forced, (long long)kept);
}

/* ---------------------------------------------------------------------------------------- the library: the same bits */

/* o dense as the reference's: this is why the fixture is [batch, seq, head, dim], and lse is laid out like it. */
static outcome run_library(const fixture *f)
{
    outcome r = {floats(f->num_o), floats(f->num_lse), {.struct_size = sizeof r.n}};
    tlamp_error err = {.struct_size = sizeof err};
    tlamp_problem p = f->p;
    tlamp_tensors t = f->t;
    p.policy = &f->policy;
    p.lse_stride = (tlamp_lse_strides){p.max_seqlen_q, p.batch * p.max_seqlen_q, 1}; /* [head, batch * row] */
    t.o = r.o;
    t.lse = r.lse;
    t.counters = &r.n;
    const tlamp_status status = tlamp_attention(&p, &t, NULL, &err);
    cr_assert_eq(status, TLAMP_OK, "%s: %s", err.field, err.text);
    return r;
}

static bool same_lamp_counts(const tlamp_counters *a, const tlamp_counters *b)
{
    return a->sub_blocks == b->sub_blocks && a->sub_blocks_recomputed == b->sub_blocks_recomputed &&
           a->stage_one == b->stage_one && a->stage_two == b->stage_two && a->forced == b->forced &&
           a->sub_blocks_executed == b->sub_blocks_executed && a->saturated_logits == b->saturated_logits &&
           a->largest_logit == b->largest_logit &&
           memcmp(a->tiles_recomputed, b->tiles_recomputed, sizeof a->tiles_recomputed) == 0 &&
           memcmp(a->histogram, b->histogram, sizeof a->histogram) == 0;
}

/* A few numbers that most data does not have. */
static void spoil(float *x, int64_t n)
{
    const float odd[] = {NAN, INFINITY, -INFINITY, 0.f, -0.f, 1e30f, -1e30f, 1e-40f, FLT_MAX, 500.f, -500.f};
    for (int i = pick(4); i > 0; i--) x[pick((int32_t)n)] = odd[pick(sizeof odd / sizeof odd[0])];
}

Test(lamp, the_library_gives_the_same_bits)
{
    for (int trial = 0; trial < 100; trial++) {
        const int32_t hk = 1 + pick(2), hq = hk * (1 + pick(2));
        const int64_t lq = 1 + pick(150), lk = 1 + pick(200);
        fixture f = make(1 + pick(2), hq, hk, lq, lk, 1 + pick(40), 1 + pick(20));
        draw_policy(&f.policy, (uint32_t)trial);
        f.policy.lamp_run = pick(3) ? TLAMP_LAMP_RUN_LAMP : pick(4);
        f.p.mask = pick(3);
        if (!pick(4)) f.p.window_left = pick(60);
        if (!pick(4)) f.p.softcap = 5.f;
        uint64_t words[2 * 2 * 16];
        for (int m = 0; m < 64; m++) words[m] = (uint64_t)(uniform() * 0x1p16) | (uint64_t)(uniform() * 0x1p16);
        if (!pick(3)) f.t.words = words;
        f.t.words_stride_row = 1;
        f.t.words_stride_head = 16;
        f.t.words_stride_batch = pick(2) ? 32 : 0;
        float slopes[4], sinks[4], *bias = floats((size_t)(lq * lk));
        for (int h = 0; h < 4; h++) {
            slopes[h] = (float)uniform();
            sinks[h] = pick(2) ? (float)normal() : -INFINITY;
        }
        for (int64_t i = 0; i < lq * lk; i++) bias[i] = pick(6) ? (float)normal() : -INFINITY;
        f.p.has_alibi = !pick(4);
        f.t.alibi_slopes = slopes;
        f.p.has_sinks = !pick(4);
        f.t.sinks = sinks;
        f.p.has_bias = !pick(4);
        f.p.bias_stride = (tlamp_score_strides){0, 0, lk, 1};
        f.t.bias = bias;
        if (!pick(3)) {
            spoil(f.q, (int64_t)f.num_lse * f.p.head_dim_qk);
            spoil(f.k, f.p.batch * lk * hk * f.p.head_dim_qk);
            spoil(f.v, f.p.batch * lk * hk * f.p.head_dim_v);
            if (pick(2)) spoil(bias, lq * lk);
        }

        outcome a = run(&f), b = run_library(&f);
        cr_assert(same_result(&f, &a, &b), "trial %d", trial);
        cr_assert(same_lamp_counts(&a.n, &b.n), "trial %d", trial);
        drop_outcome(&a);
        drop_outcome(&b);
        free(bias);
        drop(&f);
    }
}

/* ----------------------------------------------------------------------------------------- the problem is walked right */

/* The F32 run is plain attention. */
static void check_plain(fixture *f, const char *what)
{
    double *o = calloc(f->num_o + 1, sizeof *o), *lse = calloc(f->num_lse + 1, sizeof *lse);
    cr_assert(o && lse);
    tlamp_policy high;
    tlamp_policy_init(&high, sizeof high);
    tlamp_problem p = f->p;
    p.policy = &high;
    const tlamp_reference_outputs out = {.struct_size = sizeof out, .o = o, .lse = lse};
    cr_assert_eq(tlamp_reference(&p, &f->t, &out, NULL, NULL), TLAMP_OK);
    outcome r = run_as(f, TLAMP_LAMP_RUN_F32);
    for (size_t i = 0; i < f->num_o; i++)
        CHECK(isnan(o[i]) ? isnan(r.o[i]) : fabs((double)r.o[i] - o[i]) < 1e-5 * (1 + fabs(o[i])),
              "%s: o[%zu] = %g, not %g", what, i, (double)r.o[i], o[i]);
    for (size_t i = 0; i < f->num_lse; i++)
        CHECK((double)r.lse[i] == lse[i] || (isnan(lse[i]) && isnan(r.lse[i])) ||
                  fabs((double)r.lse[i] - lse[i]) < 1e-5 * (1 + fabs(lse[i])),
              "%s: lse[%zu] = %g, not %g", what, i, (double)r.lse[i], lse[i]);
    drop_outcome(&r);
    free(o);
    free(lse);
}

Test(lamp, f32_run_is_attention)
{
    fixture f = make(2, 4, 2, 37, 83, 24, 5);
    check_plain(&f, "plain");
    f.p.mask = TLAMP_MASK_CAUSAL;
    check_plain(&f, "causal");
    f.p.mask = TLAMP_MASK_CAUSAL_TOP_LEFT;
    f.p.window_left = 9;
    check_plain(&f, "window");
    f.p.softcap = 3.f;
    check_plain(&f, "softcap");

    float *bias = floats(37 * 83), slopes[4] = {.5f, .25f, .1f, 0.f}, sinks[4] = {-INFINITY, 0.f, 3.f, 1.f};
    for (int i = 0; i < 37 * 83; i++) bias[i] = pick(4) ? (float)normal() : pick(2) ? -INFINITY : -FLT_MAX;
    f.p.has_bias = 1;
    f.p.bias_stride = (tlamp_score_strides){0, 0, 83, 1};
    f.t.bias = bias;
    check_plain(&f, "bias");
    f.p.has_alibi = 1;
    f.t.alibi_slopes = slopes;
    check_plain(&f, "alibi");
    f.p.has_sinks = 1;
    f.t.sinks = sinks;
    check_plain(&f, "sinks");
    const int32_t used[] = {0, 50};
    f.p.has_seqused_k = 1;
    f.t.seqused_k = used;
    check_plain(&f, "seqused_k");
    free(bias);
    drop(&f);

    fixture packed = make(1, 2, 1, 90, 140, 8, 3);
    const int32_t cu_q[] = {0, 40, 40, 90}, cu_k[] = {0, 3, 70, 140};
    packed.p.batch = 3;
    packed.p.varlen = 1;
    packed.p.total_q = 90;
    packed.p.total_k = 140;
    packed.t.cu_seqlens_q = cu_q;
    packed.t.cu_seqlens_k = cu_k;
    packed.p.mask = TLAMP_MASK_CAUSAL;
    packed.p.max_seqlen_k = 140;
    cr_assert_eq(tlamp_set_strides(&packed.p, TLAMP_TENSOR_THD, NULL), TLAMP_OK);
    check_plain(&packed, "varlen");
    drop(&packed);
}

/* NaN and Inf reach the rows that see them, in both modes, and an empty row is empty. */
Test(lamp, nan_inf_and_empty_rows)
{
    for (int mode = 0; mode < 2; mode++) {
        fixture f = make(1, 1, 1, 40, 70, 16, 4);
        uint8_t mask[40 * 70];
        memset(mask, 1, sizeof mask);
        f.policy.lamp_mode = mode;
        f.p.has_bool_mask = 1;
        f.p.bool_mask_stride = (tlamp_score_strides){0, 0, 70, 1};
        f.t.bool_mask = mask;
        memset(mask + 7 * 70, 0, 70);                       /* row 7 sees nothing */
        for (int i = 0; i < 40; i++) mask[i * 70 + 20] = 0; /* key 20 is seen by no row, */
        for (int i = 1; i < 40; i++) mask[i * 70 + 66] = 0; /* key 66 by row 0 alone */
        outcome clean = run(&f);
        f.k[20 * 16] = f.v[20 * 4] = NAN;
        outcome same = run(&f);
        cr_assert(same_result(&f, &clean, &same) && same_counts(&clean.n, &same.n));
        f.k[66 * 16 + 3] = INFINITY; /* +-Inf, or NaN if the accumulator is at 0: not finite in any case */
        f.q[3] = 1.f;
        f.q[9 * 16 + 2] = NAN;
        f.v[30 * 4 + 1] = INFINITY;
        outcome r = run(&f);
        for (int i = 0; i < 40; i++) {
            const bool empty = i == 7, lost = i == 0 || i == 9;
            cr_assert(empty ? r.lse[i] == -INFINITY : lost == !isfinite(r.lse[i]), "row %d: lse %g", i,
                      (double)r.lse[i]);
            for (int c = 0; c < 4; c++) {
                const float o = r.o[i * 4 + c];
                cr_assert(empty ? o == 0.f : (lost || c == 1) == !isfinite(o), "row %d: %g", i, (double)o);
            }
        }
        drop_outcome(&clean);
        drop_outcome(&same);
        drop_outcome(&r);
        drop(&f);
    }
}

Test(lamp, head_and_sequence_stand_alone)
{
    for (int stochastic = 0; stochastic < 2; stochastic++) {
        fixture f = make(2, 4, 2, 50, 90, 16, 4);
        f.policy.lamp_stochastic = stochastic;
        f.p.mask = TLAMP_MASK_CAUSAL;
        outcome all = run(&f);
        int64_t recomputed = 0;
        for (int b = 0; b < 2; b++) { /* one sequence by itself */
            fixture g = f;
            g.p.batch = 1;
            g.t.q = f.q + (size_t)b * 50 * 4 * 16;
            g.t.k = f.k + (size_t)b * 90 * 2 * 16;
            g.t.v = f.v + (size_t)b * 90 * 2 * 4;
            g.num_o /= 2;
            g.num_lse /= 2;
            outcome one = run(&g);
            cr_assert(same_bits(one.o, all.o + (size_t)b * g.num_o, g.num_o));
            recomputed += one.n.sub_blocks_recomputed;
            drop_outcome(&one);
        }
        cr_assert_eq(recomputed, all.n.sub_blocks_recomputed);
        drop_outcome(&all);

        fixture g = f; /* decisions are the query head's own: its group mates do not matter */
        for (int i = 0; i < 2 * 50; i++)
            for (int c = 0; c < 3 * 16; c++) f.q[i * 4 * 16 + 16 + c] *= 2.f; /* all heads but 0 */
        outcome other = run(&g), before = run(&f);
        for (int i = 0; i < 2 * 50; i++) cr_assert(same_bits(other.o + i * 16, before.o + i * 16, 4));
        drop_outcome(&other);
        drop_outcome(&before);
        drop(&f);
    }
}

/* ------------------------------------------------------------------------------------------- what must come out (B3) */

Test(lamp, limits_of_tau_and_delta)
{
    for (int mode = 0; mode < 2; mode++) {
        fixture f = make_normed(2, 150, 32, 1.0);
        f.policy.lamp_mode = mode;
        outcome low = run_as(&f, TLAMP_LAMP_RUN_LOW), mid = run_as(&f, TLAMP_LAMP_RUN_MID);
        cr_assert(low.n.sub_blocks_recomputed == 0 && mid.n.sub_blocks_recomputed == 0);
        cr_assert(!same_result(&f, &low, &mid));

        f.policy.tau = 1.f; /* stage two never fires; without stage one nothing is left */
        outcome r = run(&f);
        cr_assert(r.n.stage_two == 0 && r.n.stage_one > 0);
        drop_outcome(&r);
        f.policy.delta = -1.f;
        r = run(&f);
        cr_assert(r.n.sub_blocks_recomputed == 0 && same_result(&f, &r, &low));
        cr_assert_eq(r.n.tiles_recomputed[0], low.n.tiles_recomputed[0]);
        drop_outcome(&r);

        f.policy.tau = 0.5f; /* everything is a threat */
        f.policy.delta = 1e30f;
        r = run(&f);
        cr_assert(r.n.stage_one == r.n.sub_blocks && r.n.stage_two == 0 && same_result(&f, &r, &mid));
        drop_outcome(&r);

        const uint64_t none[4] = {0}, every[4] = {~0ull, ~0ull, ~0ull, ~0ull};
        f.policy.delta = 0x1p-8f;
        f.t.words_stride_row = 1;
        f.t.words_stride_head = 2;
        f.t.words = none; /* nothing may be low (C0) */
        r = run(&f);
        cr_assert(r.n.forced == r.n.sub_blocks && r.n.stage_one == 0 && same_result(&f, &r, &mid));
        drop_outcome(&r);
        outcome with_words, without;
        f.t.words = every; /* everything may */
        with_words = run(&f);
        f.t.words = NULL;
        without = run(&f);
        cr_assert(same_result(&f, &with_words, &without) && same_counts(&with_words.n, &without.n));
        drop_outcome(&with_words);
        drop_outcome(&without);
        drop_outcome(&low);
        drop_outcome(&mid);
        drop(&f);
    }
}

/* tau = 0: everything that weighs anything. Without a mask no key is alone in its row, so p (1 - p) = 0 only by underflow. */
Test(lamp, tau_zero)
{
    fixture f = make_normed(1, 150, 32, 1.0);
    f.p.mask = TLAMP_MASK_NONE;
    f.policy.tau = 0.f;
    outcome r = run(&f);
    cr_assert_eq(r.n.sub_blocks_recomputed, r.n.sub_blocks);
    cr_assert_eq(r.n.sub_blocks_recomputed, r.n.stage_one + r.n.stage_two);
    outcome mid = run_as(&f, TLAMP_LAMP_RUN_MID);
    cr_assert(error_of(&f, &r) < 5 * error_of(&f, &mid)); /* the maximum is not raised: E may exceed 1 */
    drop_outcome(&mid);
    drop_outcome(&r);
    for (int64_t i = 0; i < f.p.max_seqlen_q; i++) /* keys that are far away: low exponentials of 0 stay low */
        for (int c = 0; c < 32; c++) f.q[i * 32 + c] *= 40.f;
    f.policy.lamp_mode = TLAMP_LAMP_HW;
    f.policy.lamp_b_q = 1;
    r = run(&f);
    cr_assert(r.n.sub_blocks_recomputed < r.n.sub_blocks && r.n.sub_blocks_recomputed > 0);
    drop_outcome(&r);
    drop(&f);
}

/* muhat = -Inf fails (7): every row's first tile has a high sub-block. */
Test(lamp, first_tile)
{
    fixture f = make_normed(2, 64, 16, 1.0);
    f.policy.tau = 1.f;
    outcome r = run(&f);
    cr_assert(r.n.tiles_recomputed[0] == 0 && r.n.tiles_recomputed[1] + r.n.tiles_recomputed[2] == 4);
    cr_assert(r.n.stage_one >= 4 && r.n.sub_blocks == 2 * (2 + 4)); /* of 32 rows, half a tile is legal */
    drop_outcome(&r);
    drop(&f);
}

Test(lamp, compact)
{
    fixture f = make_normed(1, 200, 16, 1.0);
    f.policy.lamp_b_q = 16;
    outcome safe = run(&f), mid = run_as(&f, TLAMP_LAMP_RUN_MID);
    f.policy.lamp_compact = 1;
    outcome r = run(&f);
    cr_assert(safe.n.tiles_recomputed[2] > 0 && safe.n.sub_blocks_executed == safe.n.sub_blocks_recomputed);
    cr_assert(r.n.sub_blocks_executed > r.n.sub_blocks_recomputed);
    cr_assert(error_of(&f, &r) <= error_of(&f, &safe));
    drop_outcome(&r);
    f.policy.delta = 1e30f; /* every tile high: compact changes nothing */
    r = run(&f);
    cr_assert(same_result(&f, &r, &mid));
    drop_outcome(&r);
    drop_outcome(&safe);
    drop_outcome(&mid);
    drop(&f);
}

/* B6: err(8-bit) >> err(LAMP 1/2) > err(LAMP 2^-5) ~ err(16-bit), and the share of tiles with two or more recomputed
 * sub-blocks rises as tau falls and as delta rises. */
Test(lamp, orderings_of_the_paper)
{
    fixture f = make_normed(1, 256, 128, 1.0);
    outcome low = run_as(&f, TLAMP_LAMP_RUN_LOW), mid = run_as(&f, TLAMP_LAMP_RUN_MID);
    const double err_low = error_of(&f, &low), err_mid = error_of(&f, &mid);
    double error[6];
    int64_t twos = -1, total = 0;
    for (int t = 0; t < 6; t++) {
        f.policy.tau = (float)ldexp(1, -t);
        outcome r = run(&f);
        error[t] = error_of(&f, &r);
        cr_assert(r.n.tiles_recomputed[2] >= twos, "tau = 2^-%d", t);
        twos = r.n.tiles_recomputed[2];
        total = r.n.tiles_recomputed[0] + r.n.tiles_recomputed[1] + r.n.tiles_recomputed[2];
        cr_assert_eq(r.n.sub_blocks_recomputed, r.n.stage_one + r.n.stage_two);
        drop_outcome(&r);
    }
    cr_assert_eq(total, low.n.tiles_recomputed[0]);
    cr_log_info("8-bit %.3g; LAMP tau = 1 .. 2^-5: %.3g %.3g %.3g %.3g %.3g %.3g; 16-bit %.3g", err_low, error[0],
                error[1], error[2], error[3], error[4], error[5], err_mid);
    cr_assert(err_low > 3 * error[1], "8-bit %g, LAMP %g", err_low, error[1]);
    cr_assert(error[1] > 3 * error[5], "tau = 1/2 %g, 2^-5 %g", error[1], error[5]);
    cr_assert(error[5] < 2 * err_mid, "tau = 2^-5 %g, 16-bit %g", error[5], err_mid);

    f.policy.tau = 0.5f;
    twos = -1;
    const float deltas[] = {0.f, 0x1p-8f, 0x1p-4f, 0.5f};
    for (int i = 0; i < 4; i++) {
        f.policy.delta = deltas[i];
        outcome r = run(&f);
        cr_assert(r.n.tiles_recomputed[2] >= twos, "delta = %g", (double)deltas[i]);
        twos = r.n.tiles_recomputed[2];
        drop_outcome(&r);
    }
    drop_outcome(&low);
    drop_outcome(&mid);
    drop(&f);
}

/* Formats instead of mantissas change little (B4), as long as logits stay within 448; beyond they saturate and are counted. */
Test(lamp, hardware_formats)
{
    fixture f = make_normed(1, 200, 64, 1.0);
    f.policy.tau = 0.25f;
    outcome sim = run(&f);
    f.policy.lamp_mode = TLAMP_LAMP_HW;
    outcome hw = run(&f);
    const double a = error_of(&f, &sim), b = error_of(&f, &hw);
    cr_assert(b < 2 * a && a < 2 * b, "sim %g, hw %g", a, b);
    cr_assert(hw.n.saturated_logits == 0 && hw.n.largest_logit <= 8.5f && hw.n.largest_logit > 2.f); /* sqrt(d) */
    drop_outcome(&hw);
    f.policy.lamp_clamp = 1; /* what is recomputed above the maximum is cut to it */
    hw = run(&f);
    cr_assert(error_of(&f, &hw) > a);
    drop_outcome(&hw);
    drop_outcome(&sim);
    f.policy.lamp_clamp = 0;
    for (int i = 0; i < 200 * 64; i++) f.q[i] *= 200.f;
    hw = run(&f);
    cr_assert(hw.n.saturated_logits > 0 && hw.n.largest_logit == 511.75f);
    drop_outcome(&hw);
    drop(&f);
}

Test(lamp, stochastic_rounding)
{
    fixture f = make_normed(1, 64, 32, 0.5);
    f.policy.lamp_stochastic = 1;
    outcome a = run_as(&f, TLAMP_LAMP_RUN_MID), b = run_as(&f, TLAMP_LAMP_RUN_MID);
    cr_assert(same_result(&f, &a, &b));
    drop_outcome(&b);
    /* the mean over seeds is nearer the truth than one of them */
    enum { SEEDS = 64 };
    const double single = error_of(&f, &a);
    for (uint32_t seed = 1; seed < SEEDS; seed++) {
        f.policy.lamp_seed = 1000 + seed;
        b = run_as(&f, TLAMP_LAMP_RUN_MID);
        for (size_t i = 0; i < f.num_o; i++) a.o[i] += b.o[i];
        drop_outcome(&b);
    }
    for (size_t i = 0; i < f.num_o; i++) a.o[i] /= (float)(int)SEEDS;
    cr_assert(error_of(&f, &a) < single / 4, "mean %g, one %g", error_of(&f, &a), single);
    drop_outcome(&a);
    drop(&f);
}

Test(lamp, refuses)
{
    fixture f = make(1, 1, 1, 4, 4, 8, 8);
    tlamp_problem p = f.p;
    p.policy = &f.policy;
    const tl_ref_lamp_outputs out = {0};
    cr_assert_eq(tl_ref_lamp(&p, &f.t, &out, NULL), TLAMP_OK);
    f.policy.lamp_format = TLAMP_LAMP_INT8;
    cr_assert_eq(tl_ref_lamp(&p, &f.t, &out, NULL), TLAMP_UNSUPPORTED);
    f.policy.lamp_format = TLAMP_LAMP_E4M3;
    f.policy.lamp_n_k = 64;
    f.policy.lamp_b_k = 1;
    cr_assert_eq(tl_ref_lamp(&p, &f.t, &out, NULL), TLAMP_UNSUPPORTED);
    f.policy.lamp_n_k = 3;
    cr_assert_eq(tl_ref_lamp(&p, &f.t, &out, NULL), TLAMP_INVALID_ARGUMENT);
    f.policy.lamp_n_k = 4;
    f.policy.lamp_b_k = 16;
    f.policy.tau = 1.5f;
    cr_assert_eq(tl_ref_lamp(&p, &f.t, &out, NULL), TLAMP_INVALID_ARGUMENT);
    drop(&f);
}
