/* The small floating-point formats of LampAttention (ALGORITHMS B4) and their rounding, on f32. Branch-free, so that
 * compilers vectorise loops over them.
 *
 * Two ways to simulate a format of m mantissa bits:
 *   sim   tl_round_mantissa: the mantissa is rounded to m bits, the exponent is f32's. What the paper's experiments do.
 *   hw    tl_mini_round: the format itself, with its range, its subnormals and saturation.
 * Both round to nearest even; each has a stochastic twin, whose random bits come from tl_random. */
#ifndef TL_CORE_MINIFLOAT_H
#define TL_CORE_MINIFLOAT_H

#include "port.h"

/* ---- random bits that depend on nothing but a place */

/* A bijection of 32 bits in which every input bit moves every output bit (multiply-xorshift, C. Wellons' constants). */
TL_INLINE uint32_t tl_mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* One stream per (seed, a, b, c); element `counter` of it. No state: the order of calls does not matter. */
TL_INLINE uint32_t tl_random_stream(uint32_t seed, uint32_t a, uint32_t b, uint32_t c)
{
    return tl_mix(tl_mix(tl_mix(tl_mix(seed) + a) + b) + c);
}

TL_INLINE uint32_t tl_random(uint32_t stream, uint32_t counter) { return tl_mix(stream + counter * 0x9e3779b9u); }

/* ---- sim: m = 1 .. 22 mantissa bits */

/* To nearest even, on the bits: a carry runs into the exponent as it should (the largest finite numbers become Inf), and a
 * subnormal keeps f32's fixed point. NaN and Inf pass. */
TL_INLINE float tl_round_mantissa(float x, int32_t m)
{
    const uint32_t u = tl_bits(x), last = 1u << (23 - m); /* the last bit that stays */
    const uint32_t rounded = (u + (last / 2u - 1u) + (u >> (23 - m) & 1u)) & ~(last - 1u);
    return tl_is_finite(x) ? tl_float(rounded) : x;
}

/* Up in magnitude with the probability of the fraction that is cut off: the mean is x. */
TL_INLINE float tl_round_mantissa_stochastic(float x, int32_t m, uint32_t random)
{
    const uint32_t last = 1u << (23 - m);
    const uint32_t rounded = (tl_bits(x) + (random >> (9 + m))) &
                             ~(last - 1u); /* 23 - m random bits: all that is cut */
    return tl_is_finite(x) ? tl_float(rounded) : x;
}

/* ---- hw: formats */

typedef struct {
    int32_t mantissa; /* m: bits after the leading one, 1 .. 11 */
    int32_t bias;     /* a code below 2^m is subnormal, code * 2^(1 - bias - m) */
    uint32_t top;     /* the code of the largest magnitude */
    uint32_t is_fn;   /* 1 (OCP's "FN"): a sign bit, and NaN in the one code above top; 0: neither sign nor NaN */
} tl_minifloat;

enum {
    TL_SHIFT_BIAS = 15, /* not in the paper; 15 reaches far beyond 2 * 448 (ALGORITHMS D18) */
    TL_EXP_BIAS = 31    /* makes 0xf8 the 1.0 */
};

TL_INLINE tl_minifloat tl_e4m3(void) { return (tl_minifloat){3, 7, 0x7eu, 1}; }     /* max 448: low logits */
TL_INLINE tl_minifloat tl_e4m11(void) { return (tl_minifloat){11, 7, 0x7ffeu, 1}; } /* max 511.75: high logits, mu */
/* Never negative: shifts muhat - y (TL_SHIFT_BIAS), exponentials (TL_EXP_BIAS). */
TL_INLINE tl_minifloat tl_ue5m3(int32_t bias) { return (tl_minifloat){3, bias, 0xffu, 0}; }
TL_INLINE tl_minifloat tl_ue5m11(int32_t bias) { return (tl_minifloat){11, bias, 0xffffu, 0}; }

/* The smallest subnormal. */
TL_INLINE float tl_mini_quantum(tl_minifloat f) { return tl_float((uint32_t)(128 - f.bias - f.mantissa) << 23); }

/* The value of a code. */
TL_INLINE float tl_mini_decode(uint32_t code, tl_minifloat f)
{
    const uint32_t magnitude = f.is_fn ? code & (f.top + 1u) : code;
    const float normal = tl_float((magnitude << (23 - f.mantissa)) + ((uint32_t)(127 - f.bias) << 23));
    const float small = (float)magnitude * tl_mini_quantum(f);
    const float x = magnitude > f.top ? TL_NAN : magnitude >> f.mantissa ? normal : small;
    return f.is_fn && code > f.top + 1u ? -x : x;
}

TL_INLINE float tl_mini_max(tl_minifloat f) { return tl_mini_decode(f.top, f); }

/* The distance of the format's numbers around a magnitude: that of its binade, or of the subnormals. */
TL_INLINE float tl_mini_spacing(float magnitude, tl_minifloat f)
{
    const uint32_t lowest = (uint32_t)(128 - f.bias), highest = tl_bits(tl_mini_max(f)) >> 23;
    uint32_t e = tl_bits(magnitude) >> 23;
    e = e < lowest ? lowest : e;
    e = e > highest ? highest : e;
    return tl_float((e - (uint32_t)f.mantissa) << 23);
}

/* What the format stores in place of x; 0 for a negative x in a format without a sign. */
TL_INLINE float tl_mini_magnitude(float x, tl_minifloat f) { return tl_abs(f.is_fn || !(x < 0.f) ? x : 0.f); }

/* Saturation and sign. FN has no Inf, and an Inf is no overflow that saturation would hide: it becomes NaN, so that a row
 * that sees it is lost as it is in f32. An unsigned format saturates Inf too (the shift of a key of weight 0). */
TL_INLINE float tl_mini_finish(float x, float rounded, tl_minifloat f)
{
    const float most = tl_mini_max(f), y = rounded > most ? most : rounded; /* keeps NaN */
    if (!f.is_fn) return y;
    return tl_abs(x) == TL_INF ? TL_NAN : tl_float(tl_bits(y) | (tl_bits(x) & 0x80000000u));
}

/* To nearest even: adding 2^23 spacings leaves no bit below one spacing. */
TL_INLINE float tl_mini_round(float x, tl_minifloat f)
{
    const float magnitude = tl_mini_magnitude(x, f), big = tl_mini_spacing(magnitude, f) * 0x1p23f;
    return tl_mini_finish(x, (magnitude + big) - big, f);
}

/* Whole spacings in a magnitude, not above the format's largest: exact, below 2^(m + 1). */
TL_INLINE float tl_mini_count(float magnitude, float spacing, tl_minifloat f)
{
    const float most = tl_mini_max(f);
    return (magnitude > most ? most : magnitude) / spacing;
}

TL_INLINE float tl_floor_small(float x) /* 0 <= x < 2^22 */
{
    const float nearest = tl_round(x);
    return nearest > x ? nearest - 1.f : nearest;
}

/* Does rounding x to nearest saturate? */
TL_INLINE int tl_mini_overflows(float x, tl_minifloat f)
{
    const float most = tl_mini_max(f);
    return tl_is_finite(x) && tl_abs(x) > most + 0.5f * tl_mini_spacing(most, f);
}

/* Toward zero. */
TL_INLINE float tl_mini_truncate(float x, tl_minifloat f)
{
    const float magnitude = tl_mini_magnitude(x, f), spacing = tl_mini_spacing(magnitude, f);
    return tl_mini_finish(x, tl_floor_small(tl_mini_count(magnitude, spacing, f)) * spacing, f);
}

/* Up in magnitude with the probability of the fraction that is cut off (in steps of 2^-24). */
TL_INLINE float tl_mini_round_stochastic(float x, tl_minifloat f, uint32_t random)
{
    const float magnitude = tl_mini_magnitude(x, f), spacing = tl_mini_spacing(magnitude, f);
    const float count = tl_mini_count(magnitude, spacing, f), whole = tl_floor_small(count);
    const float up = (float)(int32_t)(random >> 8) * 0x1p-24f < count - whole ? 1.f : 0.f;
    return tl_mini_finish(x, (whole + up) * spacing, f);
}

/* The code of x, rounded to nearest even. NaN has a code in an FN format only; elsewhere it becomes the largest, and
 * whoever stores codes keeps NaN out. */
TL_INLINE uint32_t tl_mini_encode(float x, tl_minifloat f)
{
    const float y = tl_mini_round(x, f), magnitude = tl_abs(y), big = tl_mini_quantum(f) * 0x1p23f;
    const uint32_t normal = (tl_bits(magnitude) >> (23 - f.mantissa)) - ((uint32_t)(127 - f.bias) << f.mantissa);
    const uint32_t small = tl_bits(magnitude + big) - tl_bits(big); /* magnitude / quantum */
    const uint32_t code = tl_bits(magnitude) >> 23 >= (uint32_t)(128 - f.bias) ? normal : small;
    const uint32_t sign = f.is_fn ? (tl_bits(y) >> 31) * (f.top + 2u) : 0u;
    return (tl_is_nan(y) ? f.top + f.is_fn : code) | sign;
}

/* ---- the low exponential */

/* Code of a ue5m3 shift x -> code of e^-x, rounded to nearest even, in ue5m3 with TL_EXP_BIAS: what the paper's hardware
 * would look up. 0 from x = 24 on. unit_minifloat makes it again from its definition. */
TL_SHARED const uint8_t *tl_exp_table(void)
{
    static const uint8_t code[256] = {
        0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, /* x = 0 .. */
        0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, /* 2^-13 */
        0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, /* 2^-11 */
        0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, /* 2^-9 */
        0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, 0xf8, /* 2^-7 */
        0xf8, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf7, 0xf6, 0xf6, 0xf6, /* 2^-5 */
        0xf6, 0xf6, 0xf6, 0xf5, 0xf5, 0xf5, 0xf5, 0xf5, 0xf4, 0xf4, 0xf4, 0xf3, 0xf3, 0xf3, 0xf2, 0xf2, /* 2^-3 */
        0xf2, 0xf1, 0xf1, 0xf0, 0xef, 0xee, 0xed, 0xed, 0xec, 0xea, 0xe9, 0xe8, 0xe6, 0xe5, 0xe3, 0xe2, /* 1/2 */
        0xe1, 0xdd, 0xdb, 0xd8, 0xd5, 0xd2, 0xcf, 0xcc, 0xc9, 0xc3, 0xbe, 0xb8, 0xb2, 0xac, 0xa7, 0xa1, /* 2 */
        0x9b, 0x90, 0x84, 0x79, 0x6d, 0x61, 0x56, 0x4a, 0x3f, 0x28, 0x11, 0x02, 0x00, 0x00, 0x00, 0x00, /* 8, to 30 */
        /* zeros */
    };
    return code;
}

/* e^-x through the table; NaN is kept. */
TL_INLINE float tl_exp_lookup(float x)
{
    const uint32_t code = tl_mini_encode(x, tl_ue5m3(TL_SHIFT_BIAS));
    return tl_is_nan(x) ? x : tl_mini_decode(tl_exp_table()[code], tl_ue5m3(TL_EXP_BIAS));
}

#endif
