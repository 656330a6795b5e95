#include "roofline.h"

#include <math.h>

#include "parse.h"
#include "result.h"

/* Seconds per operation. */
typedef struct costs {
    double fma, bf16, int8; /* +Inf: there is no such unit */
} costs;

static double cost_of(double rate) { return rate > 0 ? 1e-9 / rate : HUGE_VAL; }

static costs costs_of(const bench_peaks *peaks)
{
    return (costs){cost_of(peaks->rate[PEAK_FMA]), cost_of(peaks->rate[PEAK_BF16]), cost_of(peaks->rate[PEAK_INT8])};
}

/* A number as a sum of bf16 numbers: so many hold any number of the type. */
static int planes_of(tlamp_dtype dtype) { return dtype == TLAMP_BF16 ? 1 : dtype == TLAMP_F16 ? 2 : 3; }

/* f32 arithmetic on numbers of a and b planes: FMA, or products of their planes where bf16 is so much faster (AMX). Products
 * of planes i and j with i + j > 2 are below the rounding. */
static double exact_cost(const costs *c, int a, int b)
{
    int products = 0;
    for (int i = 0; i < a; i++)
        for (int j = 0; j < b; j++) products += i + j <= 2;
    return fmin(c->fma, products * c->bf16);
}

/* Nobody has to use a unit that is slower than a more exact one. */
static double bf16_cost(const costs *c) { return fmin(c->fma, c->bf16); }
static double int8_cost(const costs *c) { return fmin(c->int8, bf16_cost(c)); }

/* Of Q K^T. */
static double scores_cost(const costs *c, const problem_spec *spec, const measurement *m)
{
    const double high = exact_cost(c, planes_of(spec->q_dtype), planes_of(spec->k_dtype));
    const double share = result_shares(m).cell;
    switch (m->policy.policy.kind) {
    case TLAMP_POLICY_HIGH: return high;
    case TLAMP_POLICY_INT8: return int8_cost(c);
    case TLAMP_POLICY_ROUTED: return share * int8_cost(c) + (1 - share) * high;
    case TLAMP_POLICY_X3: return 3 * int8_cost(c);
    default: return (double)NAN;
    }
}

/* Of P V as the kernel computes it (tlamp_plan_pv). */
static double values_cost(const costs *c, const problem_spec *spec, tlamp_pv pv)
{
    switch (pv) {
    case TLAMP_PV_BF16: return bf16_cost(c);
    case TLAMP_PV_INT8: return int8_cost(c);
    default: return exact_cost(c, planes_of(TLAMP_F32), planes_of(spec->v_dtype));
    }
}

double roofline_prefill(const bench_peaks *peaks, const problem_spec *spec, const measurement *m)
{
    const costs c = costs_of(peaks);
    const double cells = problem_visible_cells(spec);
    return cells * (2 * (double)spec->d * scores_cost(&c, spec, m) + cost_of(peaks->rate[PEAK_SOFTMAX]) +
                    2 * (double)spec->dv * values_cost(&c, spec, m->pv));
}

double roofline_bytes(const problem_spec *spec)
{
    const double row = (double)spec->d * (double)dtype_size(spec->k_dtype) +
                       (double)spec->dv * (double)dtype_size(spec->v_dtype);
    double keys = 0;
    for (int64_t b = 0; b < spec->batch; b++) {
        int64_t begin = 0, end = 0;
        const int64_t rows = problem_length_q(spec, b);
        int64_t first = problem_used_k(spec, b);
        if (rows) problem_visible_keys(spec, b, 0, &first, &end);
        if (rows) problem_visible_keys(spec, b, rows - 1, &begin, &end);
        if (rows) keys += (double)(end - first);
    }
    return keys * row * (double)spec->heads_k;
}
