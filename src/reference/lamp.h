/* LampAttention as published, Algorithm 1 (ALGORITHMS B3) transcribed line by line: scalar, slow, obvious. The fast path
 * must agree with it bit for bit, so what follows is a contract.
 *
 * Arithmetic. Everything is f32, rounded to nearest even after every operation, without contraction; fma is fmaf. exp(x) is
 * tl_exp2(x * TL_LOG2E) of core/exp2.h; tanh is its tl_tanh. rnd_low and rnd_high round to the formats of core/minifloat.h:
 *                      sim                          hw
 *   rnd_low            3 mantissa bits              e4m3
 *   rnd_high           11 mantissa bits             e4m11
 *   low exponential    rnd3(exp(rnd3(y - muhat)))   table[ue5m3(trunc_e4m3(muhat) - y)]
 *   high exponential   rnd11(exp(y - muhat))        ue5m11(exp(y - muhat)); with lamp_clamp: of min(y - muhat, 0)
 *
 * Logits, of row i and key j in a precision:
 *   q'[k] = softmax_scale * q[k]
 *   c = 0; for k = 0 .. d-1: c = rnd(fma(k_j[k], q'_i[k], c))
 *   softcap > 0: c = softcap * tanh(c / softcap)
 *   ALiBi:       c = c - slope * |j - (i + Lk - Lq)|
 *   bias:        c = c + bias
 *   y = rnd(limit(c)): limit keeps finite numbers within +-2.35e38 (tl_limit_logit)
 * rnd is nothing in the F32 run, where y = limit(c). Operands are numbers: an INT8 code times its scale, rounded once.
 *
 * A warp is b_q rows of one query head, from the first row of its tile of block_m rows (the last warp of a tile may have
 * fewer; a warp never crosses a tile or a sequence). It walks the tiles of block_n keys in rising order. A sub-block is
 * legal if some row of the warp sees some of its keys, by every mask there is; a tile without legal sub-blocks is skipped,
 * and illegal sub-blocks do not exist below. A row's max over a sub-block is over the keys it sees and ignores NaN; -Inf
 * where that leaves nothing, and then the row has no say in (7), in T and in (8).
 *
 * The state is mu = -Inf, omega = 0, O = 0; with a sink mu = sink (hw: e4m11) and omega = exp(sink - mu). One tile:
 *   forced (routing bit 0): Y high for all;  muhat = max(mu, max Y)
 *   stage one (delta >= 0): T_theta = max_j (max Y_theta,j - mu_j), +Inf where mu_j = -Inf; order by T falling, then by
 *     max_j max Y_theta,j falling, then by key; (7): muhat_j > fma(|muhat_j|, delta, max Y_theta,j)
 *   stage one off: muhat = max(mu, max Y) over all sub-blocks
 *   ref_j = muhat_j, or 0 where that is -Inf, takes muhat's place in y - muhat; an unseen key has E = 0
 *   lambda = exp(mu - muhat), 1 where muhat = -Inf;  alpha = lambda * omega
 *   sum = 0 and + E_i for rising keys of the tile;  omegahat = alpha + sum
 *   stage two (tau < 1): s1, s2 = 0; for rising keys s1 = s1 + E_i, s2 = fma(E_i, E_i, s2);
 *     r = max(fma(omegahat, s1, -s2), 0) / (omegahat * omegahat); 0 where s1 = 0, +Inf for NaN;
 *     sums over theta rise with theta; the subset as B2 says, exact up to 8 candidates, by the heuristic beyond
 *   what stage two recomputes: sim: the same muhat (E may exceed 1). hw without lamp_clamp: muhat = max(muhat, max Y),
 *     E of every other sub-block = rnd_exp(E * exp(old muhat - muhat)) in its own exponential format; lambda and alpha anew
 *   compact, with two or more sub-blocks high: the whole tile anew as a forced one
 *   sum again; omega = alpha + sum; mu = muhat
 *   O[c] = O[c] * lambda; then O[c] = fma(E_i, V_i[c], O[c]) for rising keys the row sees. (A fast path may add keys the row
 *     does not see, with E = 0, where V is finite: that can change the sign of a zero, which compares equal.)
 * At the end O[c] / omega and LSE = mu + tl_log2(omega) * TL_LN2; 0 and -Inf where omega = 0.
 *
 * Baselines decide nothing: LOW and MID take every logit and exponential low or high, F32 neither rounds; muhat = max(mu, max
 * Y) of their own logits. They ignore routing words.
 *
 * Stochastic rounding replaces nearest even in every rounding named above but the table, the sink and trunc. The random
 * number of a rounding is tl_random(tl_random_stream(lamp_seed, head, i, j), counter), i and j counted in their sequence,
 * counter = step + 65536 * place, step the k of the accumulation or 0, place one of tl_ref_lamp_place. */
#ifndef TL_REFERENCE_LAMP_H
#define TL_REFERENCE_LAMP_H

#include "tilelamp/tilelamp.h"

/* Where in the computation of one (row, key) a random number is used. */
typedef enum tl_ref_lamp_place {
    TL_REF_LAMP_LOW_SUM = 0,
    TL_REF_LAMP_HIGH_SUM = 1,
    TL_REF_LAMP_LOW_LOGIT = 2, /* the rounding after softcap, ALiBi and bias */
    TL_REF_LAMP_HIGH_LOGIT = 3,
    TL_REF_LAMP_SHIFT = 4,
    TL_REF_LAMP_LOW_EXP = 5,
    TL_REF_LAMP_HIGH_EXP = 6,
    TL_REF_LAMP_RESCALE = 7
} tl_ref_lamp_place;

/* Dense arrays as tlamp_reference's: o [R, num_heads_q, head_dim_v], lse [num_heads_q, R]. Rows that no sequence owns are
 * left untouched. counters: those of LAMP, the others are 0; forced sub-blocks are recomputed ones too. Each may be NULL. */
typedef struct tl_ref_lamp_outputs {
    float *o, *lse;
    tlamp_counters *counters;
} tl_ref_lamp_outputs;

/* Checks its arguments as tlamp_execute does; the policy's kind must be LAMP with the format E4M3. Serial. */
tlamp_status tl_ref_lamp(const tlamp_problem *problem, const tlamp_tensors *tensors, const tl_ref_lamp_outputs *outputs,
                         tlamp_error *err);

#endif
