/* The elementary functions of the loop, without libm, the same on host and device. */
#ifndef TL_CORE_EXP2_H
#define TL_CORE_EXP2_H

#include "port.h"

#define TL_LOG2E 1.44269504088896341f
#define TL_LN2 0.693147180559945309f

/* 2^x: relative error below 2^-22 (u_exp of core/bound.h), exactly 1 at 0, 0 at -Inf, Inf from 128 up, NaN kept;
 * subnormal results are rounded once. Branch-free, so that compilers vectorise loops over it.
 * Degree 6 on [0, 1), 2e-9 before rounding, p(0) = 1. */
TL_INLINE float tl_exp2(float x)
{
    const float low = x < -160.f ? -160.f : x, y = low > 129.f ? 129.f : low; /* 2^-160 rounds to 0, 2^129 to Inf */
    const int32_t truncated = (int32_t)(tl_is_nan(y) ? 0.f : y);
    const int32_t n = truncated - ((float)truncated > y); /* floor */
    const float r = y - (float)n;
    float p = 0.000216127859f;
    p = p * r + 0.00124678748f;
    p = p * r + 0.00967544976f;
    p = p * r + 0.0554852807f;
    p = p * r + 0.240229306f;
    p = p * r + 0.693147044f;
    p = p * r + 1.f;
    const int32_t half = n >> 1; /* 2^n in two factors that are both normal */
    return p * tl_float((uint32_t)(half + 127) << 23) * tl_float((uint32_t)(n - half + 127) << 23);
}

/* log2(x) for x >= 0: relative error below 2^-21, exact at powers of two, -Inf at 0, Inf and NaN kept. x = 2^e f with f in
 * [sqrt(1/2), sqrt(2)), and log2(f) = 2 / ln(2) atanh(s), s = (f - 1) / (f + 1), by a polynomial in z = s^2 <= 0.0295
 * (1.4e-8 before rounding). */
TL_INLINE float tl_log2(float x)
{
    if (!(x > 0.f && x <= 3.40282347e38f)) return x == 0.f ? -TL_INF : x;
    const int subnormal = x < 0x1p-126f;
    const uint32_t bits = tl_bits(subnormal ? x * 0x1p24f : x);
    const int32_t e = (int32_t)((bits + (0x3f800000u - 0x3f3504f3u)) >> 23) - 127; /* 0x3f3504f3: sqrt(1/2) */
    const float f = tl_float(bits - ((uint32_t)e << 23)), s = (f - 1.f) / (f + 1.f), z = s * s;
    float p = 0.431727797f;
    p = p * z + 0.576714814f;
    p = p * z + 0.961798847f;
    p = p * z + 2.88539004f;
    return (float)(subnormal ? e - 24 : e) + s * p;
}

/* tanh(x), relative error below 2^-21; for the softcap. 1 - 2/(e^2x + 1) cancels near 0, so a polynomial serves there
 * (tanh(x)/x = 1 + z p(z), z = x^2 <= 0.4, 6e-9 before rounding). +-1 at +-Inf, NaN kept. */
TL_INLINE float tl_tanh(float x)
{
    const float z = x * x;
    if (z <= 0.4f) {
        float p = 0.00227270322f;
        p = p * z - 0.00832640007f;
        p = p * z + 0.0217636321f;
        p = p * z - 0.0539586246f;
        p = p * z + 0.133333012f;
        p = p * z - 0.333333343f;
        return x + x * z * p;
    }
    const float t = 1.f - 2.f / (tl_exp2(tl_abs(x) * (2.f * TL_LOG2E)) + 1.f);
    return x < 0.f ? -t : t;
}

#endif
