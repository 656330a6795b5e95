/* The low exponential of LampAttention's hw mode as the instruction it is meant to be (ALGORITHMS B4): the 256 entries of
 * core/minifloat.h's table lie in four registers, and VPERMI2B looks codes up in two of them. Same values as tl_exp_lookup. */
#ifndef TL_CPU_SIMD_EXP_TABLE_VBMI_H
#define TL_CPU_SIMD_EXP_TABLE_VBMI_H

#include <immintrin.h>

#include "core/minifloat.h"

typedef struct {
    __m512i part[4];
} tl_exp_registers;

TL_INLINE tl_exp_registers tl_exp_registers_load(void)
{
    tl_exp_registers t;
    for (int i = 0; i < 4; i++) t.part[i] = _mm512_loadu_si512(tl_exp_table() + 64 * i);
    return t;
}

/* Codes of numbers on the grid of ue5m3 with TL_SHIFT_BIAS. */
TL_INLINE __m512i tl_shift_codes(__m512 shift)
{
    const __m512i u = _mm512_castps_si512(shift);
    const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(u, 20), _mm512_set1_epi32((127 - TL_SHIFT_BIAS) << 3));
    const __m512i small = _mm512_cvtps_epi32(_mm512_mul_ps(shift, _mm512_set1_ps(0x1p17f))); /* in quanta of 2^-17 */
    const __mmask16 is_normal = _mm512_cmpge_epi32_mask(u, _mm512_set1_epi32((128 - TL_SHIFT_BIAS) << 23));
    return _mm512_mask_mov_epi32(small, is_normal, normal);
}

/* Values of codes of ue5m3 with TL_EXP_BIAS. */
TL_INLINE __m512 tl_exp_values(__m512i code)
{
    const __m512i normal = _mm512_add_epi32(_mm512_slli_epi32(code, 20), _mm512_set1_epi32((127 - TL_EXP_BIAS) << 23));
    const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(code), _mm512_set1_ps(0x1p-33f));
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(code, _mm512_set1_epi32(8));
    return _mm512_mask_mov_ps(_mm512_castsi512_ps(normal), is_small, small);
}

/* e^-shift of 16 shifts on their grid, NaN kept. */
TL_INLINE __m512 tl_exp_lookup_16(const tl_exp_registers *t, __m512 shift)
{
    const __m512i code = tl_shift_codes(
        shift); /* VPERMI2B reads seven bits of each byte; bytes 1 to 3 of a lane are noise */
    const __m512i low = _mm512_permutex2var_epi8(t->part[0], code, t->part[1]);
    const __m512i high = _mm512_permutex2var_epi8(t->part[2], code, t->part[3]);
    const __mmask16 upper = _mm512_cmpgt_epi32_mask(code, _mm512_set1_epi32(127));
    const __m512i found = _mm512_and_si512(_mm512_mask_mov_epi32(low, upper, high), _mm512_set1_epi32(0xff));
    const __mmask16 nan = _mm512_cmp_ps_mask(shift, shift, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(tl_exp_values(found), nan, shift);
}

#endif
