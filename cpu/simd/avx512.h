/* The primitives of a vector kernel (simd/operands.h) for AVX-512 (F, BW, DQ, VL): vectors of 16 floats. simd/avx512vnni.h changes the INT8
 * products. */
#ifndef TL_CPU_SIMD_AVX512_H
#define TL_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "core/port.h"

enum { TL_LANES = 16 };

typedef __m512 tl_v;    /* floats */
typedef __v16si tl_vi;  /* int32_t; gcc 12 spills accumulators that are __m512i, whose elements are 64-bit */
typedef __mmask16 tl_m; /* which lanes */

/* Register tiles of the products: rows, and panels of 16 keys or channels (one vector each) beside them. 8 x 2 equals 12 x 2. */
enum { TL_TILE_ROWS = 8, TL_TILE_PANELS = 2, TL_TILE4_PANELS = 4, TL_TILE2_PANELS = 4, TL_TILE1_PANELS = 8 };

/* Register tiles of products in place: accumulators, and most keys side by side. */
enum { TL_FEW_TILE = 16, TL_FEW_KEYS = 8 };

/* ---- floats */

TL_INLINE tl_v tl_v_set(float x) { return _mm512_set1_ps(x); }
TL_INLINE tl_v tl_v_load(const float *p) { return _mm512_loadu_ps(p); }
TL_INLINE void tl_v_store(float *p, tl_v a) { _mm512_storeu_ps(p, a); }
TL_INLINE tl_v tl_v_add(tl_v a, tl_v b) { return _mm512_add_ps(a, b); }
TL_INLINE tl_v tl_v_sub(tl_v a, tl_v b) { return _mm512_sub_ps(a, b); }
TL_INLINE tl_v tl_v_mul(tl_v a, tl_v b) { return _mm512_mul_ps(a, b); }
TL_INLINE tl_v tl_v_div(tl_v a, tl_v b) { return _mm512_div_ps(a, b); }
TL_INLINE tl_v tl_v_fma(tl_v a, tl_v b, tl_v c) { return _mm512_fmadd_ps(a, b, c); }
TL_INLINE tl_v tl_v_round(tl_v a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* 2^e of a magnitude in [2^e, 2^(e+1)); 0 below 2^-126. */
TL_INLINE tl_v tl_v_power(tl_v a) { return _mm512_and_ps(_mm512_set1_ps(TL_INF), a); }
TL_INLINE tl_v tl_v_abs(tl_v a) { return _mm512_abs_ps(a); }
/* The larger (smaller); b where either is NaN. */
TL_INLINE tl_v tl_v_max(tl_v a, tl_v b) { return _mm512_max_ps(a, b); }
TL_INLINE tl_v tl_v_min(tl_v a, tl_v b) { return _mm512_min_ps(a, b); }

/* The larger of top and |a|, as bits: those of a NaN are above those of Inf. */
TL_INLINE tl_v tl_v_top_bits(tl_v top, tl_v a)
{
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(top), _mm512_castps_si512(tl_v_abs(a))));
}

/* The same in a fixed order: halves, then quarters, then eighths, then pairs. */
TL_INLINE float tl_v_sum(tl_v a)
{
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
TL_INLINE float tl_v_top(tl_v a)
{
    const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* Lanes i and i ^ h change places; h is 1, 2, ..., TL_LANES / 2, known where it is called. */
TL_INLINE tl_v tl_v_swap(tl_v a, const int h)
{
    return h == 1   ? _mm512_permute_ps(a, 0xb1)
           : h == 2 ? _mm512_permute_ps(a, 0x4e)
           : h == 4 ? _mm512_shuffle_f32x4(a, a, 0xb1)
                    : _mm512_shuffle_f32x4(a, a, 0x4e);
}

/* ---- lanes */

TL_INLINE tl_vi tl_iota(void) { return (tl_vi)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
TL_INLINE tl_m tl_m_first(int32_t n) /* the first n lanes; any n */
{
    return (tl_m)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}
TL_INLINE tl_m tl_m_less(tl_v a, tl_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
TL_INLINE tl_m tl_m_equal(tl_v a, tl_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
TL_INLINE tl_v tl_v_pick(tl_m m, tl_v a, tl_v b) { return _mm512_mask_blend_ps(m, b, a); } /* a where m, else b */

/* ---- loads and stores of the first n lanes, 0 < n < TL_LANES: nothing is touched behind them, other lanes are 0 */

TL_INLINE tl_v tl_v_load_part(const float *p, int32_t n) { return _mm512_maskz_loadu_ps(tl_m_first(n), p); }
TL_INLINE void tl_v_store_part(float *p, tl_v a, int32_t n) { _mm512_mask_storeu_ps(p, tl_m_first(n), a); }
TL_INLINE __m256i tl_half_load_part(const uint16_t *p, int32_t n) { return _mm256_maskz_loadu_epi16(tl_m_first(n), p); }
TL_INLINE void tl_half_store_part(uint16_t *p, __m256i a, int32_t n) { _mm256_mask_storeu_epi16(p, tl_m_first(n), a); }
TL_INLINE tl_v tl_v_load_i8(const int8_t *p, int32_t n) /* the first n, at most TL_LANES */
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(tl_m_first(n), p)));
}
TL_INLINE tl_m tl_m_bytes(const unsigned char *p,
                          int32_t n) /* of the first n, at most TL_LANES, those that are not 0 */
{
    const __m128i b = _mm_maskz_loadu_epi8(tl_m_first(n), p);
    return _mm_test_epi8_mask(b, b);
}

/* ---- half types */

typedef __m256i tl_half; /* as many as a vector has lanes */
TL_INLINE tl_half tl_half_load(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
TL_INLINE void tl_half_store(uint16_t *p, tl_half a) { _mm256_storeu_si256((__m256i *)(void *)p, a); }
TL_INLINE tl_v tl_v_from_f16(tl_half a) { return _mm512_cvtph_ps(a); }
TL_INLINE tl_half tl_v_to_f16(tl_v a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
TL_INLINE tl_v tl_v_from_bf16(tl_half a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
}
TL_INLINE tl_half tl_v_to_bf16(tl_v a) /* as tl_to_bf16: to nearest even, NaN stays NaN, subnormals are kept */
{
    const __m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff));
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
}
/* The same as floats. NaN is found by its bits: clang compares what was f16 as f16, lane by lane. */
TL_INLINE tl_v tl_v_round_bf16(tl_v a)
{
    const __m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 number = _mm512_cmple_epi32_mask(_mm512_castps_si512(tl_v_abs(a)), _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(_mm512_mask_and_epi32(u, number, up, _mm512_set1_epi32((int32_t)0xffff0000u)));
}

/* a's lanes, then b's, as tl_v_to_bf16 has them. The instruction takes what is below 2^-126 for 0. */
TL_INLINE void tl_half_store_bf16(uint16_t *p, tl_v a, tl_v b)
{
#ifdef __AVX512BF16__
    enum { SUBNORMAL = 0x20 };
    if (!(_mm512_fpclass_ps_mask(a, SUBNORMAL) | _mm512_fpclass_ps_mask(b, SUBNORMAL))) {
        _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        return;
    }
#endif
    tl_half_store(p, tl_v_to_bf16(a));
    tl_half_store(p + TL_LANES, tl_v_to_bf16(b));
}

/* Of each element the larger of top and |a|, as bits: those of a NaN are above those of Inf. */
TL_INLINE tl_half tl_half_top(tl_half top, tl_half a)
{
    return _mm256_max_epu16(top, _mm256_and_si256(a, _mm256_set1_epi16(0x7fff)));
}

/* ---- exp2 */

/* 2^x: relative error below 2^-22 (degree 5, 8.2e-8 before rounding), exactly 1 at 0, 0 at -Inf, NaN kept. VREDUCEPS gives
 * x - floor(x), 0 for -Inf, and VSCALEFPS takes the floor itself: no shifting of exponents, no special cases. */
TL_INLINE tl_v tl_v_exp2(tl_v x)
{
    const tl_v r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    tl_v p = tl_v_fma(tl_v_set(0.00186712634f), r, tl_v_set(0.00901703649f));
    p = tl_v_fma(p, r, tl_v_set(0.0557999115f));
    p = tl_v_fma(p, r, tl_v_set(0.240164449f));
    p = tl_v_fma(p, r, tl_v_set(0.693151312f));
    p = tl_v_fma(p, r, tl_v_set(1.f));
    return _mm512_scalef_ps(p, x);
}

/* The same to three digits: relative error below 2^-13 (degree 3, 8.6e-5). For weights that are rounded to 8 bits. */
TL_INLINE tl_v tl_v_exp2_short(tl_v x)
{
    const tl_v r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
    tl_v p = tl_v_fma(tl_v_set(0.0770672235f), r, tl_v_set(0.227644674f));
    p = tl_v_fma(p, r, tl_v_set(0.695116919f));
    p = tl_v_fma(p, r, tl_v_set(1.f));
    return _mm512_scalef_ps(p, x);
}

/* ---- INT8 products */

TL_INLINE tl_vi tl_vi_set(int32_t x) { return (tl_vi)_mm512_set1_epi32(x); }
TL_INLINE tl_vi tl_vi_load(const void *p) { return (tl_vi)_mm512_loadu_si512(p); }
TL_INLINE void tl_vi_store(void *p, tl_vi a) { _mm512_storeu_si512(p, (__m512i)a); }
TL_INLINE tl_vi tl_vi_add(tl_vi a, tl_vi b) { return (tl_vi)_mm512_add_epi32((__m512i)a, (__m512i)b); }
TL_INLINE tl_vi tl_vi_mul(tl_vi a, tl_vi b) { return (tl_vi)_mm512_mullo_epi32((__m512i)a, (__m512i)b); }
TL_INLINE tl_v tl_v_from_int(tl_vi a) { return _mm512_cvtepi32_ps((__m512i)a); }

#ifndef TL_DOT_BYTES /* two int16 channels in a 32-bit lane, as in simd/avx2.h */

typedef int16_t tl_qcode;
enum { TL_CODES = 2, TL_KEY_BIAS = 0 /* what is added to a key's code */, TL_CODE_UNITS = 1 };

TL_INLINE tl_vi tl_vi_dot(tl_vi sum, tl_vi q, tl_vi k)
{
    sum = (tl_vi)_mm512_add_epi32((__m512i)sum, _mm512_madd_epi16((__m512i)q, (__m512i)k));
    __asm__("" : "+v"(sum)); /* or clang regroups integer sums, and spills */
    return sum;
}

/* TL_CODES numbers within -127 .. 127, rounded to nearest even, side by side in each lane: neighbouring keys of V. */
TL_INLINE tl_vi tl_join_codes(const tl_v x[TL_CODES])
{
    const __m512i low = _mm512_cvtps_epi32(x[0]), high = _mm512_cvtps_epi32(x[1]);
    return (tl_vi)_mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}

/* Rounds to nearest even; x within -127 .. 255. */
TL_INLINE void tl_store_codes(tl_qcode *to, tl_v x, int32_t bias)
{
    const __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(bias));
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(i));
}

#else /* four bytes, as the including file multiplies them */

typedef uint8_t tl_qcode; /* of a query: int8_t in the same bits */

TL_INLINE void tl_store_codes(tl_qcode *to, tl_v x, int32_t bias)
{
    const __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(bias));
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(i));
}

#define TL_FOUR_CODES
/* The same of four vectors, x within -127 .. 127. */
TL_INLINE void tl_store_four_codes(tl_qcode *to, const tl_v x[4], int32_t bias)
{
    /* packing leaves each quarter of a vector with four codes of every x */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low = _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]));
    const __m512i high = _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]));
    const __m512i codes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
    _mm512_storeu_si512(to, bias ? _mm512_add_epi8(codes, _mm512_set1_epi8((char)bias)) : codes);
}

/* Four numbers within -127 .. 127, rounded to nearest even, side by side in each lane: neighbouring keys of V. */
TL_INLINE tl_vi tl_join_codes(const tl_v x[4])
{
    __m512i all = _mm512_cvtps_epi32(x[0]);
    all = _mm512_mask_mov_epi8(all, 0x2222222222222222u, _mm512_slli_epi32(_mm512_cvtps_epi32(x[1]), 8));
    all = _mm512_mask_mov_epi8(all, 0x4444444444444444u, _mm512_slli_epi32(_mm512_cvtps_epi32(x[2]), 16));
    return (tl_vi)_mm512_mask_mov_epi8(all, 0x8888888888888888u, _mm512_slli_epi32(_mm512_cvtps_epi32(x[3]), 24));
}
#endif

/* ---- TL_LANES x TL_LANES of 32 bits: row i becomes column i */

TL_INLINE void tl_v_transpose(tl_v r[TL_LANES])
{
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) { /* pairs of rows */
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* fours: u[i + j] holds columns j, j + 4, j + 8, j + 12 of rows i .. i + 3 */
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) { /* quarters: columns i, i + 8 and i + 4, i + 12 of eight rows, then of all */
        t[i] = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
    }
}

/* The sum of vector i in lane i, each added in one order: lane k and k + 2 of every four, these two, then neighbouring
 * quarters, then these. */
TL_INLINE tl_v tl_v_sums(const tl_v a[TL_LANES])
{
    __m512 t[8], u[4], w[2];
    for (int i = 0; i < 8; i++)
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 4; i++)
        u[i] = _mm512_add_ps(_mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        w[i] = _mm512_add_ps(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(w[0], w[1], 0x88), _mm512_shuffle_f32x4(w[0], w[1], 0xdd));
}

#endif
