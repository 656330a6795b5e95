/* LampAttention's decisions about one key tile of one row block (ALGORITHMS B2, B3, C0, C3): which of its sub-blocks keep
 * their cheap logits, and which are recomputed. One function per step; the tile loop calls them between its products.
 *
 * A tile has `subs` sub-blocks of b_k keys and the block has `rows` query rows. Arrays are [sub][TL_LAMP_ROWS], rows side
 * by side, so that loops over rows vectorise; a set of sub-blocks is a bit mask. What a row sees shows in `top`, its
 * largest logit in a sub-block: -Inf means that it sees none of the keys (or only logits of -Inf, which weigh nothing),
 * and then the row has no say in that sub-block. NaN never counts as "good enough".
 *
 * Everything is f32 in the order written here, fmaf where tl_fma stands; sums run over rising sub-blocks. So two programs
 * with the same logits decide alike (B4). */
#ifndef TL_CORE_LAMP_H
#define TL_CORE_LAMP_H

#include "minifloat.h"

enum {
    TL_LAMP_SUBS = 32,
    TL_LAMP_ROWS = 128,
    TL_LAMP_EXACT = 8 /* sub-blocks up to which (8) is solved exactly */
};

/* What a logit and its exponential are computed in. */
enum { TL_LEVEL_LOW = 0, TL_LEVEL_HIGH = 1, TL_LEVEL_F32 = 2 };

/* The policy, as the tile loop asks for it. */
typedef struct {
    int32_t baseline; /* -1: LAMP; otherwise the level that everything is computed in */
    float delta, tau; /* delta < 0: stage one off */
    int32_t compact;
    int32_t raises; /* a recomputed logit above muhat raises it (hw without clamp) */
} tl_lamp_rule_t;

TL_INLINE uint32_t tl_lamp_bit(int32_t sub) { return (uint32_t)1 << sub; }

/* Theta_0 (C0, C5): a routing bit is a permission. 0 forces every legal sub-block of the tile high; they are computed high
 * first, and raise muhat before any other is looked at. */
TL_INLINE uint32_t tl_lamp_forced(int32_t route, uint32_t legal) { return route ? 0u : legal; }

/* ---- stage one */

/* muhat = max(muhat, top): after a sub-block was computed high; with stage one off, for every sub-block. */
TL_INLINE void tl_lamp_raise(float *muhat, const float *top, int32_t rows)
{
    for (int32_t j = 0; j < rows; j++) muhat[j] = tl_max(top[j], muhat[j]);
}

/* How much a sub-block threatens the running maximum: T = max_j (top_j + eps_j - mu_j), mu as it was before the tile, +Inf
 * for a row that has seen nothing. peak = max_j (top_j + eps_j) orders equal threats. eps NULL: the plain rule. */
typedef struct {
    float threat, peak;
} tl_lamp_threat;

TL_INLINE tl_lamp_threat tl_lamp_threat_of(const float *top, const float *eps, const float *mu, int32_t rows)
{
    tl_lamp_threat t = {-TL_INF, -TL_INF};
    for (int32_t j = 0; j < rows; j++) {
        const float y = eps ? top[j] + eps[j] : top[j];
        const float above = top[j] == -TL_INF ? -TL_INF : y - mu[j];
        t.threat = tl_max(above, t.threat);
        t.peak = tl_max(top[j] == -TL_INF ? -TL_INF : y, t.peak);
    }
    return t;
}

/* Does a come before b? The greater threat, then the higher peak; equal ones stay in key order. */
TL_INLINE int tl_lamp_precedes(tl_lamp_threat a, tl_lamp_threat b)
{
    return a.threat > b.threat || (a.threat == b.threat && a.peak > b.peak);
}

/* The sub-blocks of `set` in the order stage one visits them. Returns how many. */
TL_INLINE int32_t tl_lamp_order(const tl_lamp_threat *threats, uint32_t set, int32_t subs, uint8_t *order)
{
    int32_t n = 0;
    for (int32_t sub = 0; sub < subs; sub++) {
        if (!(set & tl_lamp_bit(sub))) continue;
        int32_t at = n++;
        for (; at > 0 && tl_lamp_precedes(threats[sub], threats[order[at - 1]]); at--) order[at] = order[at - 1];
        order[at] = (uint8_t)sub;
    }
    return n;
}

/* Condition (7): muhat_j > top_j + |muhat_j| delta for every row that sees the sub-block; strictly, as printed. muhat = -Inf
 * fails, so that every row's maximum starts with a high logit. */
TL_INLINE int tl_lamp_stays_low(const float *top, const float *muhat, int32_t rows, float delta)
{
    int fails = 0;
    for (int32_t j = 0; j < rows; j++)
        fails |= !(muhat[j] > tl_fma(tl_abs(muhat[j]), delta, top[j])) & (top[j] != -TL_INF);
    return !fails;
}

/* Its rigorous form (C3): muhat_j > top_j + eps_j, with |exact - low| <= eps_j on the sub-block. What stays low is then
 * below the running maximum in exact arithmetic too. */
TL_INLINE int tl_lamp_stays_low_eps(const float *top, const float *eps, const float *muhat, int32_t rows)
{
    int fails = 0;
    for (int32_t j = 0; j < rows; j++) fails |= !(muhat[j] > top[j] + eps[j]) & (top[j] != -TL_INF);
    return !fails;
}

/* ---- stage two */

/* r = sum p (1 - p) = (omegahat s1 - s2) / omegahat^2 of a row in a sub-block, from s1 = sum e and s2 = sum e^2 (fmaf(e, e,
 * s2)), both over rising keys. 0 where the row has no weight there; NaN becomes +Inf, which no budget allows. */
TL_INLINE float tl_lamp_weight(float omegahat, float s1, float s2)
{
    const float x = tl_fma(omegahat, s1, -s2), r = (x < 0.f ? 0.f : x) / (omegahat * omegahat);
    return s1 == 0.f ? 0.f : tl_is_nan(r) ? TL_INF : r;
}

/* The largest eps under which a low logit may be used at all: beyond it an underflowed exponential could hide mass (E). */
#define TL_LAMP_EPS_MAX 4.f

/* The same, weighted with the sub-block's error bound (C3): to first order the tile adds 2 sum r to ||p^ - p||_1. top tells
 * whether the row sees the sub-block. */
TL_INLINE float tl_lamp_weight_eps(float omegahat, float s1, float s2, float eps, float top)
{
    const float r = eps * tl_lamp_weight(omegahat, s1, s2);
    if (top == -TL_INF) return 0.f;
    return !(eps <= TL_LAMP_EPS_MAX) || tl_is_nan(r) ? TL_INF : r;
}

/* sum_{sub in set} r_j of every row. */
TL_INLINE void tl_lamp_sums(const float *r, uint32_t set, int32_t subs, int32_t rows, float *sum)
{
    for (int32_t j = 0; j < rows; j++) sum[j] = 0.f;
    for (int32_t sub = 0; sub < subs; sub++)
        if (set & tl_lamp_bit(sub))
            for (int32_t j = 0; j < rows; j++) sum[j] += r[sub * TL_LAMP_ROWS + j];
}

/* The largest of them. */
TL_INLINE float tl_lamp_load(const float *r, uint32_t set, int32_t subs, int32_t rows)
{
    float sum[TL_LAMP_ROWS], most = 0.f;
    tl_lamp_sums(r, set, subs, rows, sum);
    for (int32_t j = 0; j < rows; j++) most = tl_max(sum[j], most);
    return most;
}

/* Problem (8) by enumeration: the largest subset of `set` (at most TL_LAMP_EXACT sub-blocks) with a load of at most tau;
 * among equals the smallest load, then the smallest mask. A subset's sum is that of the subset without its last element
 * plus that element's r: the order of tl_lamp_load, so the loads are the same numbers. */
TL_INLINE uint32_t tl_lamp_solve_exact(const float *r, uint32_t set, int32_t subs, int32_t rows, float tau)
{
    enum { SUBSETS = 1 << TL_LAMP_EXACT };
    float load[SUBSETS] = {0.f}, sum[SUBSETS];
    uint32_t mask[SUBSETS];
    int32_t size[SUBSETS], n = 1; /* subsets of the sub-blocks so far */
    uint8_t member[TL_LAMP_EXACT], members = 0;
    mask[0] = 0u;
    size[0] = 0;
    for (int32_t sub = 0; sub < subs; sub++) {
        if (!(set & tl_lamp_bit(sub))) continue;
        for (int32_t g = 0; g < n; g++) {
            mask[n + g] = mask[g] | tl_lamp_bit(sub);
            size[n + g] = size[g] + 1;
        }
        member[members++] = (uint8_t)sub;
        n *= 2;
    }
    sum[0] = 0.f;
    for (int32_t j = 0; j < rows; j++) {
        for (int32_t i = 0; i < members; i++)
            for (int32_t g = 0; g < 1 << i; g++) sum[(1 << i) + g] = sum[g] + r[member[i] * TL_LAMP_ROWS + j];
        for (int32_t g = 0; g < n; g++) load[g] = tl_max(sum[g], load[g]);
    }
    int32_t best = 0; /* nothing low: always feasible. Masks rise with g. */
    for (int32_t g = 1; g < n; g++)
        if (load[g] <= tau && (size[g] > size[best] || (size[g] == size[best] && load[g] < load[best]))) best = g;
    return mask[best];
}

/* Of the row whose sum over `set` is largest (the first such row), the heaviest sub-block in `set` (the first such). */
TL_INLINE int32_t tl_lamp_heaviest(const float *r, uint32_t set, int32_t subs, int32_t rows)
{
    float sum[TL_LAMP_ROWS];
    int32_t row = 0, heaviest = -1;
    tl_lamp_sums(r, set, subs, rows, sum);
    for (int32_t j = 1; j < rows; j++) row = sum[j] > sum[row] ? j : row;
    r += row;
    for (int32_t sub = 0; sub < subs; sub++)
        if ((set & tl_lamp_bit(sub)) && (heaviest < 0 || r[sub * TL_LAMP_ROWS] > r[heaviest * TL_LAMP_ROWS]))
            heaviest = sub;
    return heaviest;
}

/* Problem (8) for more sub-blocks, by the heuristic of B2: drop the heaviest sub-block of the fullest row until the rest
 * fits; then take back what fits, lightest first (by max_j r_j, then in key order). Feasible, not always the largest. */
TL_INLINE uint32_t tl_lamp_solve_greedy(const float *r, uint32_t set, int32_t subs, int32_t rows, float tau)
{
    uint32_t low = set;
    while (!(tl_lamp_load(r, low, subs, rows) <= tau)) low &= ~tl_lamp_bit(tl_lamp_heaviest(r, low, subs, rows));
    uint32_t dropped = set & ~low;
    while (dropped) {
        int32_t lightest = -1;
        float least = TL_INF;
        for (int32_t sub = 0; sub < subs; sub++) {
            if (!(dropped & tl_lamp_bit(sub))) continue;
            const float load = tl_lamp_load(r, tl_lamp_bit(sub), subs, rows);
            if (lightest >= 0 && !(load < least)) continue;
            lightest = sub;
            least = load;
        }
        dropped &= ~tl_lamp_bit(lightest);
        if (tl_lamp_load(r, low | tl_lamp_bit(lightest), subs, rows) <= tau) low |= tl_lamp_bit(lightest);
    }
    return low;
}

/* Stage two: which sub-blocks of `set` (legal, not high yet) stay low. Plain weights with tau = 1 are no constraint, since
 * sum p (1 - p) <= 1: the caller then skips stage two altogether, and no rounding can make it fire. */
TL_INLINE uint32_t tl_lamp_solve(const float *r, uint32_t set, int32_t subs, int32_t rows, float tau)
{
    if (tl_lamp_load(r, set, subs, rows) <= tau) return set; /* the common case */
    int32_t members = 0;
    for (int32_t sub = 0; sub < subs; sub++) members += (set & tl_lamp_bit(sub)) != 0u;
    return members <= TL_LAMP_EXACT ? tl_lamp_solve_exact(r, set, subs, rows, tau)
                                    : tl_lamp_solve_greedy(r, set, subs, rows, tau);
}

/* ---- the error of the simulated accumulation c_k = rnd(fma(a_k, b_k, c_{k-1})) (C1) */

/* One rounding to a format: at most unit * |result| + floor. */
typedef struct {
    float unit, floor, max; /* max: larger sums saturate, which no bound survives */
} tl_lamp_rounding;

/* sim: m mantissa bits; hw: a format. Half a spacing to nearest; stochastic rounding may miss by a whole one. The floor is
 * half the smallest spacing, and 2^-126 on top of it for everything f32 itself loses down there. */
TL_INLINE tl_lamp_rounding tl_lamp_rounding_sim(int32_t m, int stochastic)
{
    return (tl_lamp_rounding){tl_float((uint32_t)(126 + stochastic - m) << 23), 0x1p-126f, 0x1.fffffep127f};
}

TL_INLINE tl_lamp_rounding tl_lamp_rounding_hw(tl_minifloat f, int stochastic)
{
    const float spacing = tl_mini_quantum(f);
    tl_lamp_rounding e = tl_lamp_rounding_sim(f.mantissa, stochastic);
    e.floor += stochastic ? spacing : 0.5f * spacing;
    e.max = tl_mini_max(f);
    return e;
}

/* The bound after one more step: sum is fma(a, b, c) before its rounding to the format, c the result. */
TL_INLINE float tl_lamp_running(float bound, float sum, float c, tl_lamp_rounding e)
{
    const float step = tl_fma(e.unit, tl_abs(c), tl_fma(0x1p-24f, tl_abs(sum), e.floor));
    return tl_abs(sum) <= e.max ? bound + step : TL_INF; /* NaN too */
}

/* After the last of d steps: rounded up by more than the additions above can have lost. */
TL_INLINE float tl_lamp_running_end(float bound, int32_t d) { return bound * (1.f + (float)(d + 4) * 0x1p-23f); }

#endif
