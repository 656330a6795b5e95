/* Algorithm 1 of LampAttention. Numbers in the margin are the lines of ALGORITHMS B3; lamp.h is the contract. On purpose
 * without core/lamp.h, whose decisions are checked against these. */
#include "lamp.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/minifloat.h"
#include "core/online_softmax.h"
#include "core/routing.h"
#include "reference.h"
#include "status.h"
#include "validate.h"

enum { MAX_SUBS = 32, EXACT_SUBS = 8 };

typedef enum { LOW, HIGH, F32 } precision;

/* A warp of query rows, and the key tile it is looking at. Arrays of the tile are [key][row] or [sub-block][row]. */
typedef struct warp {
    const tl_ref *ref;
    const tlamp_policy *policy;
    tlamp_counters *counters;
    tl_ref_seq seq;
    int32_t head, head_k;
    int64_t first_row; /* inside its sequence */
    int32_t rows;
    int64_t routing_row;

    float *q;          /* [row][d] pre-scaled */
    float *mu, *omega; /* [row] */
    float *o;          /* [row][dv] */

    int64_t first_key;
    int32_t keys;            /* of the tile that exist */
    float *k, *v;            /* [key][d], [key][dv]; only keys that some row sees are filled */
    bool *seen;              /* [key][row] */
    bool *saturated;         /* [key][row] hw: some rounding of the logit left its format */
    float *y, *e;            /* [key][row] */
    float *muhat, *omegahat; /* [row] */
    float *lambda, *alpha;   /* [row] */
    float *top, *weight;     /* [sub-block][row]: max Y; r */
    precision level[MAX_SUBS];
    double *token; /* [max(d, dv)] */
} warp;

/* ------------------------------------------------------------------------------------------------ arithmetic */

static bool in(uint32_t set, int32_t sub) { return set >> sub & 1u; }
static int32_t sub_of(const warp *w, int32_t key) { return key / w->policy->lamp_b_k; }
static bool is_hw(const warp *w) { return w->policy->lamp_mode == TLAMP_LAMP_HW; }
static float exp_of(float x) { return tl_exp2(x * TL_LOG2E); }

/* The random number of one rounding, where there is any. */
static uint32_t draw(const warp *w, int32_t key, int32_t row, tl_ref_lamp_place place, int32_t step)
{
    if (!w->policy->lamp_stochastic) return 0;
    const uint32_t stream = tl_random_stream(w->policy->lamp_seed, (uint32_t)w->head, (uint32_t)(w->first_row + row),
                                             (uint32_t)(w->first_key + key));
    return tl_random(stream, (uint32_t)step + 65536u * (uint32_t)place);
}

/* hw: to the format; sim: to as many mantissa bits. */
static float to_format(const warp *w, float x, tl_minifloat f, uint32_t random)
{
    if (is_hw(w)) return w->policy->lamp_stochastic ? tl_mini_round_stochastic(x, f, random) : tl_mini_round(x, f);
    return w->policy->lamp_stochastic ? tl_round_mantissa_stochastic(x, f.mantissa, random)
                                      : tl_round_mantissa(x, f.mantissa);
}

static tl_minifloat logit_format(precision level) { return level == LOW ? tl_e4m3() : tl_e4m11(); }

static tl_minifloat exp_format(precision level)
{
    return level == LOW ? tl_ue5m3(TL_EXP_BIAS) : tl_ue5m11(TL_EXP_BIAS);
}

/* Softcap, ALiBi and bias; then finite numbers are kept within what * log2(e) can hold. */
static float finished(const warp *w, float c, int32_t key, int32_t row)
{
    const tlamp_problem *p = &w->ref->problem;
    const int64_t i = w->first_row + row, j = w->first_key + key;
    if (p->softcap > 0.f) c = p->softcap * tl_tanh(c / p->softcap);
    if (p->has_alibi) {
        const float slope = w->ref->tensors.alibi_slopes[w->seq.b * p->alibi_batch_stride + w->head];
        const int64_t distance = j - (i + w->seq.lk - w->seq.lq);
        c -= slope * (float)(distance < 0 ? -distance : distance);
    }
    if (p->has_bias) c += (float)tl_ref_bias(w->ref, &w->seq, w->head, i, j);
    return tl_limit_logit(c);
}

/* One entry of K^T Q in a precision: the recursive accumulation of B4. */
static float logit(const warp *w, int32_t key, int32_t row, precision level)
{
    bool *saturated = &w->saturated[(int64_t)key * w->rows + row];
    const int32_t d = w->ref->problem.head_dim_qk;
    const float *k = w->k + (int64_t)key * d, *q = w->q + (int64_t)row * d;
    const tl_minifloat format = logit_format(level);
    const tl_ref_lamp_place sum = level == LOW ? TL_REF_LAMP_LOW_SUM : TL_REF_LAMP_HIGH_SUM;
    const tl_ref_lamp_place last = level == LOW ? TL_REF_LAMP_LOW_LOGIT : TL_REF_LAMP_HIGH_LOGIT;
    *saturated = false;
    float c = 0.f;
    for (int32_t step = 0; step < d; step++) {
        c = tl_fma(k[step], q[step], c);
        *saturated |= is_hw(w) && level != F32 && tl_mini_overflows(c, format);
        if (level != F32) c = to_format(w, c, format, draw(w, key, row, sum, step));
    }
    c = finished(w, c, key, row);
    *saturated |= is_hw(w) && level != F32 && tl_mini_overflows(c, format);
    return level == F32 ? c : to_format(w, c, format, draw(w, key, row, last, 0));
}

/* exp(y - muhat) in a precision. */
static float exponential(const warp *w, int32_t key, int32_t row, precision level)
{
    const float y = w->y[(int64_t)key * w->rows + row];
    const float ref = w->muhat[row] == -HUGE_VALF ? 0.f : w->muhat[row];
    if (level == F32) return exp_of(y - ref);
    if (level == HIGH) {
        const bool clamped = is_hw(w) && w->policy->lamp_clamp && y - ref > 0.f;
        return to_format(w, exp_of(clamped ? 0.f : y - ref), exp_format(HIGH),
                         draw(w, key, row, TL_REF_LAMP_HIGH_EXP, 0));
    }
    const float mu = is_hw(w) ? tl_mini_truncate(ref, tl_e4m3()) : ref;
    const float shift = to_format(w, mu - y, tl_ue5m3(TL_SHIFT_BIAS), draw(w, key, row, TL_REF_LAMP_SHIFT, 0));
    if (is_hw(w)) return tl_exp_lookup(shift);
    return to_format(w, exp_of(-shift), exp_format(LOW), draw(w, key, row, TL_REF_LAMP_LOW_EXP, 0));
}

/* ------------------------------------------------------------------------------------------------ sub-blocks */

static int32_t first_key_of(const warp *w, int32_t sub) { return sub * w->policy->lamp_b_k; }

static int32_t end_key_of(const warp *w, int32_t sub)
{
    const int32_t end = (sub + 1) * w->policy->lamp_b_k;
    return end < w->keys ? end : w->keys;
}

static bool sees(const warp *w, int32_t key, int32_t row) { return w->seen[(int64_t)key * w->rows + row]; }

/* Y of a sub-block (lines 9, 14 and 24), and each row's largest. */
static void compute_logits(warp *w, int32_t sub, precision level)
{
    float *top = w->top + (int64_t)sub * w->rows;
    w->level[sub] = level;
    for (int32_t row = 0; row < w->rows; row++) {
        top[row] = -HUGE_VALF;
        for (int32_t key = first_key_of(w, sub); key < end_key_of(w, sub); key++) {
            float *y = &w->y[(int64_t)key * w->rows + row];
            *y = sees(w, key, row) ? logit(w, key, row, level) : -HUGE_VALF;
            if (*y > top[row]) top[row] = *y;
        }
    }
}

/* E of a sub-block (lines 17 to 20 and 25). */
static void compute_exponentials(warp *w, int32_t sub)
{
    for (int32_t key = first_key_of(w, sub); key < end_key_of(w, sub); key++)
        for (int32_t row = 0; row < w->rows; row++)
            w->e[(int64_t)key * w->rows + row] = sees(w, key, row) ? exponential(w, key, row, w->level[sub]) : 0.f;
}

/* muhat = max(muhat, colmax Y_theta). */
static void raise_maximum(warp *w, int32_t sub)
{
    const float *top = w->top + (int64_t)sub * w->rows;
    for (int32_t row = 0; row < w->rows; row++)
        if (top[row] > w->muhat[row]) w->muhat[row] = top[row];
}

/* Line 21, its first half. */
static void rescale_old(warp *w)
{
    for (int32_t row = 0; row < w->rows; row++) {
        w->lambda[row] = w->muhat[row] == -HUGE_VALF ? 1.f : exp_of(w->mu[row] - w->muhat[row]);
        w->alpha[row] = w->lambda[row] * w->omega[row];
    }
}

/* alpha + column sums of E: line 21, its second half, and line 27. */
static void sum_columns(const warp *w, float *to)
{
    for (int32_t row = 0; row < w->rows; row++) {
        float sum = 0.f;
        for (int32_t key = 0; key < w->keys; key++) sum += w->e[(int64_t)key * w->rows + row];
        to[row] = w->alpha[row] + sum;
    }
}

/* The whole tile in one precision, with the running maximum of its own logits: forced tiles, baselines, compact. */
static void compute_tile(warp *w, uint32_t legal, precision level)
{
    for (int32_t row = 0; row < w->rows; row++) w->muhat[row] = w->mu[row];
    for (int32_t sub = 0; sub < MAX_SUBS; sub++) {
        if (!in(legal, sub)) continue;
        compute_logits(w, sub, level);
        raise_maximum(w, sub);
    }
    for (int32_t sub = 0; sub < MAX_SUBS; sub++)
        if (in(legal, sub)) compute_exponentials(w, sub);
    rescale_old(w);
}

/* ------------------------------------------------------------------------------------------------ stage one */

/* Line 10. */
static float threat(const warp *w, int32_t sub)
{
    float t = -HUGE_VALF;
    for (int32_t row = 0; row < w->rows; row++) {
        const float top = w->top[(int64_t)sub * w->rows + row];
        if (top == -HUGE_VALF) continue; /* the row sees nothing of it */
        if (w->mu[row] == -HUGE_VALF) t = HUGE_VALF;
        if (top - w->mu[row] > t) t = top - w->mu[row];
    }
    return t;
}

static float peak(const warp *w, int32_t sub)
{
    float top = -HUGE_VALF;
    for (int32_t row = 0; row < w->rows; row++)
        if (w->top[(int64_t)sub * w->rows + row] > top) top = w->top[(int64_t)sub * w->rows + row];
    return top;
}

/* Line 11: of `left` the sub-block that is visited next. Key order breaks the last ties. */
static int32_t most_threatening(const warp *w, uint32_t left)
{
    int32_t best = -1;
    for (int32_t sub = MAX_SUBS - 1; sub >= 0; sub--) {
        if (!in(left, sub)) continue;
        if (best < 0 || threat(w, sub) > threat(w, best) ||
            (threat(w, sub) == threat(w, best) && peak(w, sub) >= peak(w, best)))
            best = sub;
    }
    return best;
}

/* Condition (7) for every query that sees the sub-block. */
static bool is_below_maximum(const warp *w, int32_t sub)
{
    for (int32_t row = 0; row < w->rows; row++) {
        const float top = w->top[(int64_t)sub * w->rows + row], muhat = w->muhat[row];
        if (top == -HUGE_VALF) continue;
        if (muhat == -HUGE_VALF) return false;
        if (!(muhat > tl_fma(fabsf(muhat), w->policy->delta, top))) return false;
    }
    return true;
}

/* Lines 10 to 15. Returns Theta. */
static uint32_t stage_one(warp *w, uint32_t legal)
{
    uint32_t theta = 0, order[MAX_SUBS];
    int32_t n = 0;
    for (uint32_t left = legal; left;) { /* the order is fixed before anything is recomputed */
        const int32_t sub = most_threatening(w, left);
        left &= ~(1u << sub);
        order[n++] = (uint32_t)sub;
    }
    for (int32_t at = 0; at < n; at++) { /* 12 */
        const int32_t sub = (int32_t)order[at];
        if (is_below_maximum(w, sub)) continue; /* 13 */
        compute_logits(w, sub, HIGH);           /* 14 */
        theta |= 1u << sub;
        raise_maximum(w, sub); /* 15 */
    }
    return theta;
}

/* ------------------------------------------------------------------------------------------------ stage two */

/* r of (8), normalised: sum p (1 - p). */
static void compute_weights(warp *w, int32_t sub)
{
    for (int32_t row = 0; row < w->rows; row++) {
        const float omegahat = w->omegahat[row];
        float s1 = 0.f, s2 = 0.f;
        for (int32_t key = first_key_of(w, sub); key < end_key_of(w, sub); key++) {
            const float e = w->e[(int64_t)key * w->rows + row];
            s1 += e;
            s2 = tl_fma(e, e, s2);
        }
        float r = 0.f;
        if (s1 != 0.f) {
            const float xi = tl_fma(omegahat, s1, -s2);
            r = (xi < 0.f ? 0.f : xi) / (omegahat * omegahat);
            if (isnan(r)) r = HUGE_VALF;
        }
        w->weight[(int64_t)sub * w->rows + row] = r;
    }
}

static float row_load(const warp *w, uint32_t low, int32_t row)
{
    float sum = 0.f;
    for (int32_t sub = 0; sub < MAX_SUBS; sub++)
        if (in(low, sub)) sum += w->weight[(int64_t)sub * w->rows + row];
    return sum;
}

static float load_of(const warp *w, uint32_t low)
{
    float most = 0.f;
    for (int32_t row = 0; row < w->rows; row++) most = fmaxf(most, row_load(w, low, row));
    return most;
}

static int32_t size_of(uint32_t set)
{
    int32_t n = 0;
    for (int32_t sub = 0; sub < MAX_SUBS; sub++) n += in(set, sub);
    return n;
}

/* (8) as it is defined: try every subset, in the order of their masks. */
static uint32_t best_subset(const warp *w, uint32_t free)
{
    uint32_t best = 0;
    for (uint32_t low = 0; (low = (low - free) & free) != 0;) {
        if (!(load_of(w, low) <= w->policy->tau)) continue;
        if (size_of(low) > size_of(best) || (size_of(low) == size_of(best) && load_of(w, low) < load_of(w, best)))
            best = low;
    }
    return best;
}

/* Of `low`, what weighs most on the row with the largest sum. */
static int32_t heaviest(const warp *w, uint32_t low)
{
    int32_t row = 0, best = -1;
    for (int32_t j = 1; j < w->rows; j++)
        if (row_load(w, low, j) > row_load(w, low, row)) row = j;
    for (int32_t sub = 0; sub < MAX_SUBS; sub++)
        if (in(low, sub) && (best < 0 || row_load(w, 1u << sub, row) > row_load(w, 1u << best, row))) best = sub;
    return best;
}

static int32_t lightest(const warp *w, uint32_t set)
{
    int32_t best = -1;
    for (int32_t sub = 0; sub < MAX_SUBS; sub++)
        if (in(set, sub) && (best < 0 || load_of(w, 1u << sub) < load_of(w, 1u << best))) best = sub;
    return best;
}

/* B2's heuristic: drop until it fits, then take back what fits. */
static uint32_t good_subset(const warp *w, uint32_t free)
{
    uint32_t low = free;
    while (!(load_of(w, low) <= w->policy->tau)) low &= ~(1u << heaviest(w, low));
    for (uint32_t dropped = free & ~low; dropped;) {
        const uint32_t one = 1u << lightest(w, dropped);
        dropped &= ~one;
        if (load_of(w, low | one) <= w->policy->tau) low |= one;
    }
    return low;
}

/* Line 22: which of `free` stay low. */
static uint32_t solve(const warp *w, uint32_t free)
{
    if (load_of(w, free) <= w->policy->tau) return free;
    return size_of(free) <= EXACT_SUBS ? best_subset(w, free) : good_subset(w, free);
}

/* hw: a recomputed logit above muhat raises it, and what was computed before is rescaled in its own format. */
static void raise_and_rescale(warp *w, uint32_t legal, uint32_t redone)
{
    for (int32_t row = 0; row < w->rows; row++) {
        const float before = w->muhat[row];
        for (int32_t sub = 0; sub < MAX_SUBS; sub++)
            if (in(redone, sub) && w->top[(int64_t)sub * w->rows + row] > w->muhat[row])
                w->muhat[row] = w->top[(int64_t)sub * w->rows + row];
        if (w->muhat[row] == before || before == -HUGE_VALF) continue;
        const float factor = exp_of(before - w->muhat[row]);
        for (int32_t key = 0; key < w->keys; key++) {
            const int32_t sub = sub_of(w, key);
            if (!in(legal & ~redone, sub)) continue;
            float *e = &w->e[(int64_t)key * w->rows + row];
            *e = to_format(w, *e * factor, exp_format(w->level[sub]), draw(w, key, row, TL_REF_LAMP_RESCALE, 0));
        }
    }
}

/* Lines 22 to 26. Returns what was recomputed. */
static uint32_t stage_two(warp *w, uint32_t legal, uint32_t theta)
{
    if (w->policy->tau >= 1.f) return 0; /* no constraint: sum p (1 - p) <= 1 */
    for (int32_t sub = 0; sub < MAX_SUBS; sub++)
        if (in(legal, sub)) compute_weights(w, sub);
    const uint32_t redone = legal & ~theta & ~solve(w, legal & ~theta); /* 22 */
    for (int32_t sub = 0; sub < MAX_SUBS; sub++)                        /* 23 */
        if (in(redone, sub)) compute_logits(w, sub, HIGH);              /* 24 */
    if (is_hw(w) && !w->policy->lamp_clamp) raise_and_rescale(w, legal, redone);
    for (int32_t sub = 0; sub < MAX_SUBS; sub++)
        if (in(redone, sub)) compute_exponentials(w, sub); /* 25 */
    rescale_old(w);
    return redone;
}

/* ------------------------------------------------------------------------------------------------ one key tile */

/* Line 6, and who sees what. Returns the legal sub-blocks. */
static uint32_t load_tile(warp *w, int64_t tile)
{
    const tlamp_problem *p = &w->ref->problem;
    uint32_t legal = 0;
    w->first_key = tile * w->policy->block_n;
    const int64_t left = w->seq.lk - w->first_key;
    w->keys = left < w->policy->block_n ? (int32_t)left : w->policy->block_n;
    for (int32_t key = 0; key < w->keys; key++) {
        const int64_t j = w->first_key + key;
        bool any = false;
        for (int32_t row = 0; row < w->rows; row++) {
            const bool seen = tl_ref_sees(w->ref, &w->seq, w->head, w->first_row + row, j);
            w->seen[(int64_t)key * w->rows + row] = seen;
            any |= seen;
        }
        if (!any) continue;
        legal |= 1u << sub_of(w, key);
        tl_ref_key(w->ref, &w->seq, w->head_k, j, w->token);
        for (int32_t c = 0; c < p->head_dim_qk; c++) w->k[(int64_t)key * p->head_dim_qk + c] = (float)w->token[c];
        tl_ref_value(w->ref, &w->seq, w->head_k, j, w->token);
        for (int32_t c = 0; c < p->head_dim_v; c++) w->v[(int64_t)key * p->head_dim_v + c] = (float)w->token[c];
    }
    for (int64_t at = 0; at < (int64_t)w->keys * w->rows; at++) { /* illegal sub-blocks stay like this */
        w->y[at] = -HUGE_VALF;
        w->e[at] = 0.f;
    }
    return legal;
}

/* The routing bit of a tile: a permission to be low (C0). */
static bool may_be_low(const warp *w, int64_t tile)
{
    const tlamp_tensors *t = &w->ref->tensors;
    if (!t->words) return true;
    const int32_t g = t->groups ? t->groups[w->seq.b] : tl_auto_group(w->seq.length_k, w->policy->block_n);
    const uint64_t *row = t->words + w->head_k * t->words_stride_head + w->routing_row * t->words_stride_row;
    if (!w->ref->problem.varlen) row += w->seq.b * t->words_stride_batch;
    return tl_word_bit(row, tile / g) != 0;
}

static void count_logits(const warp *w, uint32_t legal)
{
    for (int32_t key = 0; key < w->keys; key++) {
        if (!in(legal, sub_of(w, key))) continue;
        for (int32_t row = 0; row < w->rows; row++) {
            const float y = fabsf(w->y[(int64_t)key * w->rows + row]);
            if (!sees(w, key, row) || !tl_is_finite(y)) continue;
            w->counters->saturated_logits += w->saturated[(int64_t)key * w->rows + row];
            if (y > w->counters->largest_logit) w->counters->largest_logit = y;
        }
    }
}

static void count_tile(tlamp_counters *counters, uint32_t legal, uint32_t forced, uint32_t one, uint32_t two)
{
    const int32_t n = size_of(forced | one | two);
    counters->sub_blocks += size_of(legal);
    counters->sub_blocks_recomputed += n;
    counters->tiles_recomputed[n > 2 ? 2 : n]++;
    counters->histogram[n]++;
    counters->forced += size_of(forced);
    counters->stage_one += size_of(one);
    counters->stage_two += size_of(two);
}

/* Lines 7 to 26 of a LAMP run. */
static void decide_tile(warp *w, int64_t tile, uint32_t legal)
{
    uint32_t forced = 0, one = 0, two = 0;
    if (may_be_low(w, tile)) {
        for (int32_t row = 0; row < w->rows; row++) w->muhat[row] = w->mu[row]; /* 7 */
        for (int32_t sub = 0; sub < MAX_SUBS; sub++)
            if (in(legal, sub)) compute_logits(w, sub, LOW); /* 9 */
        if (w->policy->delta >= 0.f)
            one = stage_one(w, legal); /* 10 - 15 */
        else
            for (int32_t sub = 0; sub < MAX_SUBS; sub++)
                if (in(legal, sub)) raise_maximum(w, sub);
        for (int32_t sub = 0; sub < MAX_SUBS; sub++)
            if (in(legal, sub)) compute_exponentials(w, sub); /* 16 - 20 */
        rescale_old(w);
        sum_columns(w, w->omegahat);    /* 21 */
        two = stage_two(w, legal, one); /* 22 - 26 */
    } else {
        forced = legal;
        compute_tile(w, legal, HIGH);
    }
    count_tile(w->counters, legal, forced, one, two);
    int32_t high = size_of(forced | one | two);
    if (w->policy->lamp_compact && high >= 2) {
        compute_tile(w, legal, HIGH);
        high = size_of(legal);
    }
    w->counters->sub_blocks_executed += high;
}

/* Lines 6 to 28. */
static void key_tile(warp *w, int64_t tile)
{
    const int32_t dv = w->ref->problem.head_dim_v;
    const uint32_t legal = load_tile(w, tile);
    if (!legal) return;
    switch (w->policy->lamp_run) {
    case TLAMP_LAMP_RUN_LOW: compute_tile(w, legal, LOW); break;
    case TLAMP_LAMP_RUN_MID: compute_tile(w, legal, HIGH); break;
    case TLAMP_LAMP_RUN_F32: compute_tile(w, legal, F32); break;
    default: decide_tile(w, tile, legal); break;
    }
    if (w->policy->lamp_run != TLAMP_LAMP_RUN_LAMP) count_tile(w->counters, legal, 0, 0, 0);
    count_logits(w, legal);
    sum_columns(w, w->omega); /* 27 */
    for (int32_t row = 0; row < w->rows; row++) {
        float *o = w->o + (int64_t)row * dv;
        w->mu[row] = w->muhat[row];
        for (int32_t c = 0; c < dv; c++) { /* 28 */
            o[c] *= w->lambda[row];
            for (int32_t key = 0; key < w->keys; key++)
                if (sees(w, key, row))
                    o[c] = tl_fma(w->e[(int64_t)key * w->rows + row], w->v[(int64_t)key * dv + c], o[c]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ one warp */

/* Lines 2 to 4. */
static void begin(warp *w)
{
    const tlamp_problem *p = &w->ref->problem;
    for (int32_t row = 0; row < w->rows; row++) {
        const float sink = p->has_sinks ? w->ref->tensors.sinks[w->head] : -HUGE_VALF;
        tl_ref_query(w->ref, &w->seq, w->head, w->first_row + row, w->token);
        for (int32_t c = 0; c < p->head_dim_qk; c++)
            w->q[(int64_t)row * p->head_dim_qk + c] = p->softmax_scale * (float)w->token[c];
        for (int32_t c = 0; c < p->head_dim_v; c++) w->o[(int64_t)row * p->head_dim_v + c] = 0.f;
        w->mu[row] = sink;
        if (sink != -HUGE_VALF && is_hw(w) && w->policy->lamp_run != TLAMP_LAMP_RUN_F32)
            w->mu[row] = tl_mini_round(sink, tl_e4m11());
        w->omega[row] = sink == -HUGE_VALF ? 0.f : exp_of(sink - w->mu[row]);
    }
}

/* Line 29. */
static void store(const warp *w, const tl_ref_lamp_outputs *out)
{
    const tlamp_problem *p = &w->ref->problem;
    for (int32_t row = 0; row < w->rows; row++) {
        const int64_t r = w->seq.first_row + w->first_row + row;
        const float omega = w->omega[row], *o = w->o + (int64_t)row * p->head_dim_v;
        for (int32_t c = 0; out->o && c < p->head_dim_v; c++)
            out->o[(r * p->num_heads_q + w->head) * p->head_dim_v + c] = omega == 0.f ? 0.f : o[c] / omega;
        if (out->lse)
            out->lse[w->head * w->ref->rows + r] = omega == 0.f ? -HUGE_VALF : w->mu[row] + tl_log2(omega) * TL_LN2;
    }
}

static void run_warp(warp *w, const tl_ref_lamp_outputs *out)
{
    begin(w);
    for (int64_t tile = 0; tile * w->policy->block_n < w->seq.lk; tile++) key_tile(w, tile); /* 5 */
    store(w, out);
}

/* ------------------------------------------------------------------------------------------------ the call */

/* Every warp of every sequence and query head (lines 1 and 8). routing_row: the tile of block_m rows, counted over all
 * sequences where they are packed. */
static void run_all(warp *w, const tl_ref_lamp_outputs *out)
{
    const tlamp_problem *p = &w->ref->problem;
    const int64_t block_m = w->policy->block_m, b_q = w->policy->lamp_b_q;
    int64_t tiles_before = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        w->seq = tl_ref_sequence(w->ref, b);
        for (w->head = 0; w->head < p->num_heads_q; w->head++) {
            w->head_k = w->head / (p->num_heads_q / p->num_heads_k);
            for (int64_t begin_tile = 0; begin_tile < w->seq.lq; begin_tile += block_m) {
                const int64_t end = tl_min64(begin_tile + block_m, w->seq.lq);
                w->routing_row = tiles_before + begin_tile / block_m;
                for (w->first_row = begin_tile; w->first_row < end; w->first_row += b_q) {
                    w->rows = (int32_t)tl_min64(b_q, end - w->first_row);
                    run_warp(w, out);
                }
            }
        }
        if (p->varlen) tiles_before += tl_ceil_div(w->seq.lq, block_m);
    }
}

/* Every array of a warp, [keys][rows] at its largest; false: out of memory. The first is the whole allocation. */
static bool allocate(warp *w)
{
    const tlamp_problem *p = &w->ref->problem;
    const size_t d = (size_t)p->head_dim_qk, dv = (size_t)p->head_dim_v, keys = (size_t)w->policy->block_n;
    const size_t rows = (size_t)tl_min64(w->policy->lamp_b_q, w->policy->block_m);
    const size_t width = d > dv ? d : dv;
    if (keys > SIZE_MAX / 64 / (rows + width)) return false;
    const size_t floats = rows * (d + dv + 6 + 2 * MAX_SUBS) + keys * (d + dv + 2 * rows);
    w->token = malloc(width * sizeof(double) + floats * sizeof(float) + 2 * keys * rows * sizeof(bool));
    if (!w->token) return false;
    float *at = (float *)(void *)(w->token + width);
    struct {
        float **to;
        size_t n;
    } part[] = {{&w->q, rows * d},          {&w->mu, rows},
                {&w->omega, rows},          {&w->o, rows * dv},
                {&w->k, keys * d},          {&w->v, keys * dv},
                {&w->y, keys * rows},       {&w->e, keys * rows},
                {&w->muhat, rows},          {&w->omegahat, rows},
                {&w->lambda, rows},         {&w->alpha, rows},
                {&w->top, MAX_SUBS * rows}, {&w->weight, MAX_SUBS * rows}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        *part[i].to = at;
        at += part[i].n;
    }
    w->seen = (bool *)(void *)at;
    w->saturated = w->seen + keys * rows;
    return true;
}

static tlamp_status check_policy(const tlamp_problem *p, const tlamp_tensors *t, tlamp_error *err)
{
    const tlamp_policy *policy = p->policy;
    if (policy->kind != TLAMP_POLICY_LAMP || policy->lamp_format != TLAMP_LAMP_E4M3)
        return tl_fail(err, TLAMP_UNSUPPORTED, "policy.kind", "this reference runs LAMP with simulated formats only");
    if (policy->lamp_n_k > MAX_SUBS)
        return tl_fail(err, TLAMP_UNSUPPORTED, "policy.lamp_n_k", "%d sub-blocks: at most %d", (int)policy->lamp_n_k,
                       MAX_SUBS);
    if (policy->smooth_k || policy->hadamard || policy->state != TLAMP_STATE_F32 || policy->pv > TLAMP_PV_F32)
        return tl_fail(err, TLAMP_UNSUPPORTED, "policy", "LAMP's simulated formats go with plain f32 P V and state");
    if (p->num_policies != 1 || p->num_splits > 1 || p->page_size || t->prepared)
        return tl_fail(err, TLAMP_UNSUPPORTED, "problem",
                       "this reference reads plain tensors, with one policy, unsplit");
    return TLAMP_OK;
}

tlamp_status tl_ref_lamp(const tlamp_problem *problem, const tlamp_tensors *tensors, const tl_ref_lamp_outputs *outputs,
                         tlamp_error *err)
{
    tl_ref ref = {.wide_k = NULL};
    tlamp_counters counters = {.struct_size = sizeof counters};
    tlamp_status status = tl_validate_problem(&ref.problem, &ref.policy, problem, err);
    if (!status) status = tl_validate_tensors(&ref.tensors, &ref.problem, tensors, err);
    if (!status) status = check_policy(&ref.problem, &ref.tensors, err);
    if (status) return status;

    const tlamp_problem *p = &ref.problem;
    ref.scale = (double)p->softmax_scale;
    ref.rows = p->varlen ? p->total_q : p->batch * p->max_seqlen_q;
    ref.keys = p->varlen ? p->total_k : p->batch * p->max_seqlen_k;
    if (ref.rows && p->num_heads_q) {
        warp w = {.ref = &ref, .policy = &ref.policy, .counters = &counters};
        if (!allocate(&w)) return tl_fail(err, TLAMP_OUT_OF_MEMORY, "", "no memory for a warp's tile");
        run_all(&w, outputs);
        free(w.token);
    }
    if (outputs->counters) *outputs->counters = counters;
    return TLAMP_OK;
}
