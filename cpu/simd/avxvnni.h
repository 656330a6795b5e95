/* The primitives of a vector kernel (simd/operands.h) for AVX2 with AVX-VNNI: VPDPBUSD on 256 bits, as simd/avx512vnni.h
 * uses it on 512. */
#ifndef TL_CPU_SIMD_AVXVNNI_H
#define TL_CPU_SIMD_AVXVNNI_H

#define TL_DOT_BYTES
#include "simd/avx2.h"

typedef uint8_t tl_qcode; /* of a query: int8_t in the same bits */
enum { TL_CODES = 4, TL_KEY_BIAS = 128, TL_CODE_UNITS = 1 };

TL_INLINE tl_vi tl_vi_dot(tl_vi sum, tl_vi q, tl_vi k)
{
#ifdef __clang__
    return (tl_vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)k, (__m256i)q);
#else /* as simd/avx512vnni.h */
    return __builtin_ia32_vpdpbusd_v8si(sum, k, q);
#endif
}

/* TL_CODES numbers within -127 .. 127, rounded to nearest even, side by side in each lane: neighbouring keys of V. */
TL_INLINE tl_vi tl_join_codes(const tl_v x[TL_CODES])
{
    const __m256i byte = _mm256_set1_epi32(255), a = _mm256_and_si256(_mm256_cvtps_epi32(x[0]), byte);
    const __m256i b = _mm256_slli_epi32(_mm256_and_si256(_mm256_cvtps_epi32(x[1]), byte), 8);
    const __m256i c = _mm256_slli_epi32(_mm256_and_si256(_mm256_cvtps_epi32(x[2]), byte), 16);
    const __m256i d = _mm256_slli_epi32(_mm256_cvtps_epi32(x[3]), 24);
    return (tl_vi)_mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
}

/* Rounds to nearest even; x within -127 .. 255, which is 255 as uint8_t. Packing saturates, so that only the low bytes may be left. */
TL_INLINE void tl_store_codes(tl_qcode *to, tl_v x, int32_t bias)
{
    const __m256i i = _mm256_and_si256(_mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(bias)),
                                       _mm256_set1_epi32(255));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packus_epi16(words, words));
}

#endif
