/* The quantiser (ALGORITHMS A2): symmetric INT8 with one scale per block of tokens, codes -127 .. 127, round to nearest
 * even. A token that holds a NaN or Inf is left out of its block's maximum, gets code 0, and is flagged: its logits come
 * from the high path. */
#ifndef TL_CORE_QUANTIZE_H
#define TL_CORE_QUANTIZE_H

#include "port.h"

typedef struct {
    float scale;   /* delta: x is about scale * code; 0 for a zero block */
    float inverse; /* what x is multiplied by; 0 for a zero block, so that every code is 0 */
} tl_quant;

/* max |x_i|; not finite (Inf or NaN) if any x_i is not. Compared as bits: they order like the magnitudes, and a NaN wins. */
TL_INLINE float tl_row_amax(const float *x, int64_t n)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t magnitude = tl_bits(x[i]) & 0x7fffffffu;
        top = magnitude > top ? magnitude : top;
    }
    return tl_float(top);
}

/* amax below 127 * 2^-126 is a zero block: 127 / amax would overflow (ALGORITHMS A2). */
TL_INLINE tl_quant tl_quant_make(float amax)
{
    tl_quant z = {0.f, 0.f};
    if (amax >= 127.f * 0x1p-126f) {
        z.scale = amax / 127.f;
        z.inverse = 127.f / amax;
    }
    return z;
}

/* The same with a scale that f16 can store. Rounded up, and used as rounded, so that |x / scale| <= 127 still holds. A
 * scale beyond f16's range stays as it is. */
TL_INLINE tl_quant tl_quant_make_f16(float amax)
{
    tl_quant z = tl_quant_make(amax);
    if (z.scale > 0.f && z.scale <= 65504.f) {
        uint16_t h = tl_to_f16(z.scale);
        if (tl_from_f16(h) < z.scale) h++;
        z.scale = tl_from_f16(h);
        z.inverse = 1.f / z.scale;
    }
    return z;
}

TL_INLINE int32_t tl_code(float x, float inverse)
{
    const float y = tl_round(x * inverse);
    return (int32_t)(y > 127.f ? 127.f : y < -127.f ? -127.f : y);
}

/* That of a weight as u8 P, 0 <= p <= 1. A NaN, which the row's sum of weights and so its output have, counts as 0. */
TL_INLINE int32_t tl_weight_code(float p) { return p >= 0.f ? (int32_t)tl_round(p * 255.f) : 0; }

/* INT8 P V: a scale of V covers so many keys of one channel, counted in the sequence. */
enum { TL_VALUE_KEYS = 64 };

/* X3's second plane (ALGORITHMS E): x is about scale * (code + code2 / 254). It quantises what the first plane leaves, at most
 * scale / 2, which fma gives with one rounding, so that |x - ...| <= scale / 508 (1 + 2^-13). */
#define TL_PLANE_STEPS 254
TL_INLINE int32_t tl_second_code(float x, int32_t code, tl_quant z)
{
    return tl_code(tl_fma(-(float)code, z.scale, x) * z.inverse, TL_PLANE_STEPS);
}

/* The largest head dimension of X3: |254 c1 d1 + c1 d2 + c2 d1| is at most 254 * 127^2, since c2 is against c1 or 0 where c1
 * is 127, and d of them must fit an int32. */
#define TL_X3_MOST_DIM 523

/* 1 / sqrt(n) for n a power of two. */
TL_INLINE float tl_hadamard_scale(int32_t n)
{
    float scale = 1.f;
    for (; n >= 4; n /= 4) scale *= 0.5f;
    return n == 2 ? scale * 0.70710678f : scale;
}

/* x becomes H x / sqrt(n), H the Hadamard matrix of order n, a power of two: orthonormal, so that products of two vectors stay,
 * while no channel sticks out. Scaled first: then no sum leaves f32 where ||x|| does not. A NaN or Inf reaches every
 * element. */
TL_INLINE void tl_hadamard(float *x, int32_t n)
{
    const float scale = tl_hadamard_scale(n);
    for (int32_t i = 0; i < n; i++) x[i] *= scale;
    for (int32_t h = 1; h < n; h *= 2)
        for (int32_t i = 0; i < n; i += 2 * h)
            for (int32_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
}

#endif
