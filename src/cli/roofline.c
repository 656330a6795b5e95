#include "roofline.h"

#include <math.h>

#include "parse.h"
#include "result.h"

/* Operations per second. */
typedef struct rates {
    double f32, bf16, int8;
} rates;

/* fmax ignores a NaN. */
static rates rates_of(const bench_peaks *peaks)
{
    rates r = {.f32 = peaks->rate[PEAK_FMA] * 1e9};
    r.bf16 = fmax(r.f32, peaks->rate[PEAK_BF16] * 1e9);
    r.int8 = fmax(r.bf16, peaks->rate[PEAK_INT8] * 1e9);
    return r;
}

/* Seconds per operation of Q K^T. */
static double scores_cost(const rates *r, const problem_spec *spec, const measurement *m)
{
    const bool bf16 = spec->q_dtype == TLAMP_BF16 && spec->k_dtype == TLAMP_BF16;
    const double high = 1 / (bf16 ? r->bf16 : r->f32), int8 = 1 / r->int8, share = result_shares(m).cell;
    switch (m->policy.policy.kind) {
    case TLAMP_POLICY_HIGH: return high;
    case TLAMP_POLICY_INT8: return int8;
    case TLAMP_POLICY_ROUTED: return share * int8 + (1 - share) * high;
    case TLAMP_POLICY_X3: return 3 * int8;
    default: return (double)NAN;
    }
}

/* AUTO: f32 under HIGH unless V is bf16, else the fastest that adds no visible error. */
static double values_cost(const rates *r, const problem_spec *spec, const tlamp_policy *policy)
{
    const bool exact = policy->kind == TLAMP_POLICY_HIGH && spec->v_dtype != TLAMP_BF16;
    switch (policy->pv) {
    case TLAMP_PV_F32: return 1 / r->f32;
    case TLAMP_PV_BF16: return 1 / r->bf16;
    case TLAMP_PV_INT8: return 1 / r->int8;
    default: return 1 / (exact ? r->f32 : r->bf16);
    }
}

double roofline_prefill(const bench_peaks *peaks, const problem_spec *spec, const measurement *m)
{
    const rates r = rates_of(peaks);
    const double cells = problem_visible_cells(spec);
    return cells * (2 * (double)spec->d * scores_cost(&r, spec, m) + 1e-9 / peaks->rate[PEAK_SOFTMAX] +
                    2 * (double)spec->dv * values_cost(&r, spec, &m->policy.policy));
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
