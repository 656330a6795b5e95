/* What the core needs from a compiler: inlining, bit casts, fma, number classes, half types. Freestanding C11: host and
 * device compile it alike. The only place, beside the vocabularies, for compiler extensions. */
#ifndef TL_CORE_PORT_H
#define TL_CORE_PORT_H

#include <stdint.h>

#if defined __FAST_MATH__ || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__)
#error "TileLamp depends on NaN, Inf and the order of operations: compile it without -ffast-math"
#endif

#if defined __GNUC__ || defined __clang__
#define TL_INLINE static inline __attribute__((always_inline, unused))
#define TL_SHARED static __attribute__((unused)) /* a function of a header that not every includer calls */
#define TL_UNROLL _Pragma("GCC unroll 16")       /* before a loop whose arrays must become registers */
#define tl_fma __builtin_fmaf
#define TL_INF __builtin_inff()
#define TL_NAN __builtin_nanf("")
#else
#error "TileLamp needs gcc or clang"
#endif

TL_INLINE uint32_t tl_bits(float x)
{
    union {
        float f;
        uint32_t u;
    } c = {x};
    return c.u;
}

TL_INLINE float tl_float(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } c = {u};
    return c.f;
}

TL_INLINE int tl_is_finite(float x) { return (tl_bits(x) & 0x7f800000u) != 0x7f800000u; }
TL_INLINE int tl_is_nan(float x) { return (tl_bits(x) & 0x7fffffffu) > 0x7f800000u; }
TL_INLINE float tl_abs(float x) { return tl_float(tl_bits(x) & 0x7fffffffu); }

/* The larger; b where either is NaN (so a NaN in `a` is lost: callers look for NaN elsewhere). */
TL_INLINE float tl_max(float a, float b) { return a > b ? a : b; }
TL_INLINE float tl_min(float a, float b) { return a < b ? a : b; }
TL_INLINE int64_t tl_max64(int64_t a, int64_t b) { return a > b ? a : b; }
TL_INLINE int64_t tl_min64(int64_t a, int64_t b) { return a < b ? a : b; }
TL_INLINE int64_t tl_clamp64(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }
TL_INLINE int64_t tl_ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); } /* a >= 0, b > 0; no overflow */

TL_INLINE int64_t tl_round_up(int64_t a, int64_t to) { return tl_ceil_div(a, to) * to; }

/* Round to nearest even, |x| < 2^22: adding 1.5 * 2^23 leaves no fraction bit. Needs no libm and no rounding mode. */
TL_INLINE float tl_round(float x) { return (x + 12582912.f) - 12582912.f; }

/* ---- half types: storage only; arithmetic is f32 */

TL_INLINE float tl_from_f16(uint16_t h);
TL_INLINE uint16_t tl_to_f16(float x);
TL_INLINE float tl_round_f16(float x) { return tl_from_f16(tl_to_f16(x)); }

TL_INLINE float tl_from_bf16(uint16_t h) { return tl_float((uint32_t)h << 16); }

TL_INLINE uint16_t tl_to_bf16(float x)
{
    const uint32_t u = tl_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* stays a NaN, becomes quiet */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

TL_INLINE float tl_round_bf16(float x) { return tl_from_bf16(tl_to_bf16(x)); }

TL_INLINE float tl_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return tl_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return tl_float(sign | ((magnitude << 13) + 0x38000000u));
    const float x = (float)magnitude * 0x1p-24f; /* subnormal: exact in f32 */
    return tl_float(sign | tl_bits(x));
}

TL_INLINE uint16_t tl_to_f16(float x)
{
    const uint32_t u = tl_bits(x), magnitude = u & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* >= 65520 rounds to infinity */
    if (magnitude < 0x38800000u) {                                   /* below 2^-14: units of 2^-24 */
        const float units = tl_float(magnitude) * 0x1p24f;           /* exact: a power of two */
        return (uint16_t)(sign | (uint16_t)tl_round(units));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (uint16_t)((rounded - 0x38000000u) >> 13));
}

#endif
