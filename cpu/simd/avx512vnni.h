/* The primitives of a vector kernel (simd/operands.h) for AVX-512 with VNNI: VPDPBUSD multiplies four unsigned by four signed
 * bytes and adds all four products. Keys are the unsigned side, code + 128; a row's products start at -128 times the sum of
 * its codes, which takes that back. */
#ifndef TL_CPU_SIMD_AVX512VNNI_H
#define TL_CPU_SIMD_AVX512VNNI_H

#define TL_DOT_BYTES
#include "simd/avx512.h"

enum { TL_CODES = 4, TL_KEY_BIAS = 128, TL_CODE_UNITS = 1 };

TL_INLINE tl_vi tl_vi_dot(tl_vi sum, tl_vi q, tl_vi k)
{
#ifdef __clang__
    return (tl_vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)k, (__m512i)q);
#else /* gcc 12 moves accumulators through the stack for the intrinsic's __m512i */
    return __builtin_ia32_vpdpbusd_v16si(sum, k, q);
#endif
}

/* TL_CODES numbers within -127 .. 127, rounded to nearest even, side by side in each lane: neighbouring keys of V. */
TL_INLINE tl_vi tl_join_codes(const tl_v x[TL_CODES])
{
    __m512i all = _mm512_cvtps_epi32(x[0]);
    all = _mm512_mask_mov_epi8(all, 0x2222222222222222u, _mm512_slli_epi32(_mm512_cvtps_epi32(x[1]), 8));
    all = _mm512_mask_mov_epi8(all, 0x4444444444444444u, _mm512_slli_epi32(_mm512_cvtps_epi32(x[2]), 16));
    return (tl_vi)_mm512_mask_mov_epi8(all, 0x8888888888888888u, _mm512_slli_epi32(_mm512_cvtps_epi32(x[3]), 24));
}

#endif
