/* How far a computed logit, weight or output can be from the exact one (ALGORITHMS C1, C2), shared by the host's
 * reference and the kernels' certificates. Everything is an upper bound in float: results are rounded up by more
 * than they can be off, Inf is a valid answer, and NaN goes in and out (compare so that NaN means "not good
 * enough"). */
#ifndef TL_CORE_BOUND_H
#define TL_CORE_BOUND_H

#include "port.h"

#define TL_U 0x1p-24f                /* unit roundoff of f32 */
#define TL_U_EXP 0x1p-22f            /* u_exp: relative error of tl_exp2 */
#define TL_U_EXP_SHORT 0x1.bp-14f    /* the same of tl_v_exp2_short: 1.02e-4, and roundings */
#define TL_U_BF16 0x1p-8f            /* unit roundoff of bf16 */
#define TL_ROUND_UP (1.f + 0x1p-20f) /* pays for the few roundings of a formula below */

/* gamma_n = n u / (1 - n u): what n roundings can do to a sum or product, relative to the sum of magnitudes. */
TL_INLINE float tl_gamma(float n)
{
    const float nu = n * TL_U;
    return nu < 0.5f ? nu / (1.f - nu) * TL_ROUND_UP : TL_INF;
}

/* ------------------------------------------------------------------------------------------------ logits */

/* What a bound needs to know of one quantised token x = delta * code + e. A zero block (ALGORITHMS A2) has codes 0
 * and delta 2 * amax here, so that |e_i| <= delta / 2 holds there too. Norms are Euclidean. */
typedef struct {
    float delta;     /* |e_i| <= delta / 2 */
    float l1;        /* sum |code_i| */
    float norm;      /* ||x|| */
    float code_norm; /* ||delta * code|| */
    float residual;  /* ||e|| */
    /* X3 (ALGORITHMS E): delta is the second plane's, code counts both planes in its units, l1 is Inf (B1 is not for X3). */
    float second; /* ||delta * code of the second plane||; 0: there is none */
} tl_token;

/* B1, codes only: |q.k - dq dk cq.ck| <= dq dk [(|cq|_1 + |ck|_1) / 2 + d / 4]. (Hoelder on each cross term.) */
TL_INLINE float tl_bound_codes(const tl_token *q, const tl_token *k, int32_t d)
{
    return q->delta * k->delta * (0.5f * (q->l1 + k->l1) + 0.25f * (float)d);
}

/* B2, residual norms: q.k - q~.k~ = e.k + q~.f, so at most ||e|| ||k|| + ||q~|| ||f||. (Cauchy-Schwarz.) X3 leaves out the
 * product of the second planes: eps3. */
TL_INLINE float tl_bound_norms(const tl_token *q, const tl_token *k)
{
    return q->residual * k->norm + q->code_norm * k->residual + q->second * k->second;
}

/* Error of one INT8 or X3 logit, before softcap and bias. 1 + 2^-13: a float quantiser's |e| reaches delta / 2 (1 +
 * 2^-15), X3's 1 + 2^-14, and norms are rounded. slack: conversion, the two scales and softmax_scale are a handful of
 * roundings of a value of at most ||q|| ||k|| scale; a Hadamard rotation is log2 d + 2 of each operand more. A non-finite
 * norm makes the result Inf or NaN through slack. */
#define TL_SLACK 0x1p-20f
#define TL_SLACK_ROTATED 0x1p-18f
TL_INLINE float tl_epsilon_int8(const tl_token *q, const tl_token *k, int32_t d, float slack, float scale)
{
    const float rounded = slack * q->norm * k->norm;
    return (tl_min(tl_bound_codes(q, k, d), tl_bound_norms(q, k)) * (1.f + 0x1p-13f) + rounded) * scale;
}

/* Error of one f32 dot product of d terms, summed in any order; magnitudes is sum |q_i k_i| or anything above it.
 * Four more roundings: lanes joined at the end, operands that are scale * code. */
TL_INLINE float tl_epsilon_high(float magnitudes, int32_t d, float scale)
{
    return tl_gamma((float)d + 4.f) * magnitudes * scale;
}

/* The same sum of n terms by bf16 planes (ALGORITHMS F), in roundings: a term passes at most 16 of a chain and 1 of the two
 * chains' sum in its tile product, then every tile product after it, of which there are at most 6 for `tiles` tiles of 32
 * terms. Parts left out are below 2^-20 (1 + 2^-9), 16 u and a little. Four more as above. */
TL_INLINE float tl_roundings_planes(float tiles) { return 17.f + 6.f * tiles + 17.f + 4.f; }

/* Numbers below 2^-126 may be taken as 0, on the way in (DAZ), in products, and in the product of two INT8 scales
 * (times 127^2 d); the same with a number's planes, all but the first of which may be that small: 2^-126 (1 + 2^-7). Far
 * below anything else unless the operands themselves are that small. */
TL_INLINE float tl_epsilon_underflow(float q_norm, float k_norm, int32_t d, float scale)
{
    return (float)d * 0x1p-110f * (1.f + scale) + (float)d * 0x1.02p-126f * (q_norm + k_norm) * scale;
}

/* ------------------------------------------------------------------------------------------------ weights */

/* e^x - 1 for x >= 0, from above; Inf from about 88. y / (1 - y / 2) >= e^y - 1 on [0, 2) (C2) at y = x / 256,
 * then eight times e^2y - 1 = (e^y - 1)(e^y + 1): loose by 1e-4 at x = 4, by 1 % at 20. */
TL_INLINE float tl_expm1_upper(float x)
{
    const float y = x * 0x1p-8f;
    if (!(y < 0.35f)) return x >= 0.f ? TL_INF : TL_NAN;
    float e = y / (1.f - 0.5f * y);
    for (int i = 0; i < 8; i++) e *= e + 2.f;
    return e * (1.f + 0x1p-18f);
}

/* phi(a, w), C2: half the L1 distance between softmaxes, where every weight is within a factor 1 + w of its exact
 * value and sum p expm1(eps) = a. At most a. w = Inf: nothing better than a. Rises with a and with w. */
TL_INLINE float tl_phi(float a, float w)
{
    if (!(w < 0x1p60f) || !(a < 0x1p60f)) return a;
    if (a <= w * (1.f / 3.f)) return w > 0.f ? a * (1.f - a / w) * TL_ROUND_UP : a;
    return a < w ? (a + w) / w * (a + w) * 0.125f * TL_ROUND_UP : a;
}

/* tanh(eps / 2) with w = expm1(eps): half the L1 distance can never be more (Birkhoff's contraction, C2). */
TL_INLINE float tl_tanh_cap(float w) { return w < 0x1p60f ? w / (2.f + w) * TL_ROUND_UP : w >= 0.f ? 1.f : TL_NAN; }

/* ||p^ - p||_1 / 2 from a = sum p expm1(eps) (p exact or computed: the theorem is symmetric in them) and w = max
 * expm1(eps). */
TL_INLINE float tl_half_l1(float a, float w)
{
    if (tl_is_nan(a) || tl_is_nan(w)) return TL_NAN;
    return tl_min(1.f, tl_min(tl_phi(a, w), tl_tanh_cap(w)));
}

#endif
