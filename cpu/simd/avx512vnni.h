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

#endif
