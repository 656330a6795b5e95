/* The primitives of a vector kernel (simd/operands.h) for AVX-512 with VNNI and BF16: VDPBF16PS multiplies pairs of bf16,
 * exactly, and adds both products to a float; numbers below 2^-126 count as 0. */
#ifndef TL_CPU_SIMD_AVX512BF16_H
#define TL_CPU_SIMD_AVX512BF16_H

#include "simd/avx512vnni.h"

typedef __m512i tl_pairs; /* of bf16 in 32-bit lanes */

/* Register tiles: VDPBF16PS takes six cycles, so that two a cycle need more accumulators than f32. 6 x 4 of them, four
 * vectors and a broadcast are 29 registers. */
enum { TL_PAIR_ROWS = 6, TL_PAIR_PANELS = 4, TL_PAIR4_PANELS = 4, TL_PAIR2_PANELS = 8, TL_PAIR1_PANELS = 8 };

TL_INLINE tl_pairs tl_pairs_load(const uint16_t *p) { return _mm512_loadu_si512(p); }
TL_INLINE void tl_pairs_store(uint16_t *p, tl_pairs a) { _mm512_storeu_si512(p, a); }
TL_INLINE tl_pairs tl_pairs_set(const uint16_t *p) /* the pair at p in every lane */
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}
TL_INLINE tl_pairs tl_pairs_load_part(const uint16_t *p, int32_t n) /* the first n numbers, at most 32; others are 0 */
{
    return _mm512_maskz_loadu_epi16(n >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1, p);
}
TL_INLINE tl_v tl_pairs_dot(tl_v sum, tl_pairs a, tl_pairs b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Lane i: a[i] below b[i]. To nearest even, NaN stays NaN, subnormals become 0. */
TL_INLINE tl_pairs tl_pairs_of(tl_v a, tl_v b)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
TL_INLINE tl_v tl_pairs_low(tl_pairs a) { return (__m512)_mm512_slli_epi32(a, 16); }
TL_INLINE tl_v tl_pairs_high(tl_pairs a)
{
    return (__m512)_mm512_and_si512(a, _mm512_set1_epi32((int32_t)0xffff0000u));
}

/* The same 32 numbers as they follow each other in memory: a, then b. */
TL_INLINE void tl_bf16_store(uint16_t *p, tl_v a, tl_v b)
{
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
TL_INLINE void tl_bf16_store_half(uint16_t *p, tl_v a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh(a));
}

#endif
