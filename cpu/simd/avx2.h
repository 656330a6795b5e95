/* The primitives of a vector kernel (simd/operands.h) for AVX2 with FMA and F16C: vectors of 8 floats. */
#ifndef TL_CPU_SIMD_AVX2_H
#define TL_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "core/port.h"

enum { TL_LANES = 8 };

typedef __m256 tl_v;  /* floats */
typedef __v8si tl_vi; /* int32_t; gcc 12 moves accumulators about that are __m256i, whose elements are 64-bit */
typedef __m256 tl_m;  /* which lanes: all bits set or none */

/* Register tiles of the products: rows, and panels of 16 keys or channels (two vectors each) beside them. 6 x 2 vectors,
 * two of B and a broadcast fill the 16 registers; at least 8 accumulators cover the latency of two FMA pipes. */
enum { TL_TILE_ROWS = 6, TL_TILE_PANELS = 1, TL_TILE4_PANELS = 1, TL_TILE2_PANELS = 2, TL_TILE1_PANELS = 4 };

/* Register tiles of products in place: accumulators, and most keys side by side. */
enum { TL_FEW_TILE = 8, TL_FEW_KEYS = 8 };

/* ---- floats */

TL_INLINE tl_v tl_v_set(float x) { return _mm256_set1_ps(x); }
TL_INLINE tl_v tl_v_load(const float *p) { return _mm256_loadu_ps(p); }
TL_INLINE void tl_v_store(float *p, tl_v a) { _mm256_storeu_ps(p, a); }
TL_INLINE tl_v tl_v_add(tl_v a, tl_v b) { return _mm256_add_ps(a, b); }
TL_INLINE tl_v tl_v_sub(tl_v a, tl_v b) { return _mm256_sub_ps(a, b); }
TL_INLINE tl_v tl_v_mul(tl_v a, tl_v b) { return _mm256_mul_ps(a, b); }
TL_INLINE tl_v tl_v_div(tl_v a, tl_v b) { return _mm256_div_ps(a, b); }
TL_INLINE tl_v tl_v_fma(tl_v a, tl_v b, tl_v c) { return _mm256_fmadd_ps(a, b, c); }
TL_INLINE tl_v tl_v_round(tl_v a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TL_INLINE tl_v tl_v_abs(tl_v a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), a); }
/* 2^e of a magnitude in [2^e, 2^(e+1)); 0 below 2^-126. */
TL_INLINE tl_v tl_v_power(tl_v a) { return _mm256_and_ps(_mm256_set1_ps(TL_INF), a); }
/* The larger (smaller); b where either is NaN. */
TL_INLINE tl_v tl_v_max(tl_v a, tl_v b) { return _mm256_max_ps(a, b); }
TL_INLINE tl_v tl_v_min(tl_v a, tl_v b) { return _mm256_min_ps(a, b); }

/* The larger of top and |a|, as bits: those of a NaN are above those of Inf. */
TL_INLINE tl_v tl_v_top_bits(tl_v top, tl_v a)
{
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(top), _mm256_castps_si256(tl_v_abs(a))));
}

/* The same in a fixed order: halves, then quarters, then pairs. */
TL_INLINE float tl_v_sum(tl_v a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
TL_INLINE float tl_v_top(tl_v a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* Lanes i and i ^ h change places; h is 1, 2, ..., TL_LANES / 2, known where it is called. */
TL_INLINE tl_v tl_v_swap(tl_v a, const int h)
{
    return h == 1 ? _mm256_permute_ps(a, 0xb1) : h == 2 ? _mm256_permute_ps(a, 0x4e) : _mm256_permute2f128_ps(a, a, 1);
}

/* ---- lanes */

TL_INLINE tl_vi tl_iota(void) { return (tl_vi)_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
TL_INLINE tl_m tl_m_first(int32_t n) /* the first n lanes; any n */
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), (__m256i)tl_iota()));
}
TL_INLINE tl_m tl_m_less(tl_v a, tl_v b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
TL_INLINE tl_m tl_m_equal(tl_v a, tl_v b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }

TL_INLINE tl_v tl_v_pick(tl_m m, tl_v a, tl_v b) { return _mm256_blendv_ps(b, a, m); } /* a where m, else b */

/* ---- loads and stores of the first n lanes, 0 < n < TL_LANES: nothing is touched behind them, other lanes are 0 */

TL_INLINE tl_v tl_v_load_part(const float *p, int32_t n)
{
    return _mm256_maskload_ps(p, _mm256_castps_si256(tl_m_first(n)));
}
TL_INLINE void tl_v_store_part(float *p, tl_v a, int32_t n)
{
    _mm256_maskstore_ps(p, _mm256_castps_si256(tl_m_first(n)), a);
}
TL_INLINE __m128i tl_half_load_part(const uint16_t *p, int32_t n)
{
    uint16_t whole[8] = {0};
    memcpy(whole, p, (size_t)n * sizeof *p);
    return _mm_loadu_si128((const __m128i *)(const void *)whole);
}
TL_INLINE void tl_half_store_part(uint16_t *p, __m128i a, int32_t n)
{
    uint16_t whole[8];
    _mm_storeu_si128((__m128i *)(void *)whole, a);
    memcpy(p, whole, (size_t)n * sizeof *p);
}

TL_INLINE tl_v tl_v_load_i8(const int8_t *p, int32_t n) /* the first n, at most TL_LANES */
{
    int8_t whole[8] = {0};
    memcpy(whole, p, (size_t)n);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)whole)));
}

/* ---- half types */

typedef __m128i tl_half; /* as many as a vector has lanes */
TL_INLINE tl_half tl_half_load(const uint16_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
TL_INLINE void tl_half_store(uint16_t *p, tl_half a) { _mm_storeu_si128((__m128i *)(void *)p, a); }
TL_INLINE tl_v tl_v_from_f16(tl_half a) { return _mm256_cvtph_ps(a); }
TL_INLINE tl_half tl_v_to_f16(tl_v a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
TL_INLINE tl_v tl_v_from_bf16(tl_half a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}
TL_INLINE tl_half tl_v_to_bf16(tl_v a) /* as tl_to_bf16: to nearest even, NaN stays NaN */
{
    const __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff)),
                                              16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i h = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}
/* The same as floats. NaN is found by its bits: clang compares what was f16 as f16, which has no vector comparison. */
TL_INLINE tl_v tl_v_round_bf16(tl_v a)
{
    const __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i rounded = _mm256_and_si256(up, _mm256_set1_epi32((int32_t)0xffff0000u));
    const __m256i nan = _mm256_cmpgt_epi32(_mm256_castps_si256(tl_v_abs(a)), _mm256_set1_epi32(0x7f800000));
    return _mm256_blendv_ps(_mm256_castsi256_ps(rounded), a, _mm256_castsi256_ps(nan));
}

/* a's lanes, then b's. */
TL_INLINE void tl_half_store_bf16(uint16_t *p, tl_v a, tl_v b)
{
    tl_half_store(p, tl_v_to_bf16(a));
    tl_half_store(p + TL_LANES, tl_v_to_bf16(b));
}

/* Of each element the larger of top and |a|, as bits: those of a NaN are above those of Inf. */
TL_INLINE tl_half tl_half_top(tl_half top, tl_half a)
{
    return _mm_max_epu16(top, _mm_and_si128(a, _mm_set1_epi16(0x7fff)));
}

/* ---- exp2 */

/* 2^x for x < 127.5: relative error below 2^-22 (degree 5, 9.2e-8 before rounding), exactly 1 at 0, 0 below -126.5 and so
 * at -Inf, NaN kept. Adding 1.5 * 2^23 + 127 rounds x to an integer n and leaves n + 127 in the low bits, which are an
 * exponent once they are moved up: that of 2^n, or for n = -127 the one of 0. */
TL_INLINE tl_v tl_v_exp2(tl_v x)
{
    const tl_v magic = tl_v_set(12582912.f + 127.f), y = tl_v_max(tl_v_set(-127.f), x), shifted = tl_v_add(y, magic);
    const tl_v r = tl_v_sub(y, tl_v_sub(shifted, magic)); /* -0.5 .. 0.5 */
    tl_v p = tl_v_fma(tl_v_set(0.0013264727f), r, tl_v_set(0.009671513f));
    p = tl_v_fma(p, r, tl_v_set(0.055507336f));
    p = tl_v_fma(p, r, tl_v_set(0.24022242f));
    p = tl_v_fma(p, r, tl_v_set(0.693147f));
    p = tl_v_fma(p, r, tl_v_set(1.f));
    return tl_v_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

/* The same to three digits: relative error below 2^-13 (degree 3, 1.02e-4). For weights that are rounded to 8 bits. */
TL_INLINE tl_v tl_v_exp2_short(tl_v x)
{
    const tl_v magic = tl_v_set(12582912.f + 127.f), y = tl_v_max(tl_v_set(-127.f), x), shifted = tl_v_add(y, magic);
    const tl_v r = tl_v_sub(y, tl_v_sub(shifted, magic));
    tl_v p = tl_v_fma(tl_v_set(0.0550089478f), r, tl_v_set(0.242210999f));
    p = tl_v_fma(p, r, tl_v_set(0.693282902f));
    p = tl_v_fma(p, r, tl_v_set(1.f));
    return tl_v_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

/* ---- INT8 products */

TL_INLINE tl_vi tl_vi_set(int32_t x) { return (tl_vi)_mm256_set1_epi32(x); }
TL_INLINE tl_vi tl_vi_load(const void *p) { return (tl_vi)_mm256_loadu_si256((const __m256i *)p); }
TL_INLINE tl_vi tl_vi_add(tl_vi a, tl_vi b) { return (tl_vi)_mm256_add_epi32((__m256i)a, (__m256i)b); }
TL_INLINE tl_vi tl_vi_mul(tl_vi a, tl_vi b) { return (tl_vi)_mm256_mullo_epi32((__m256i)a, (__m256i)b); }
TL_INLINE void tl_vi_store(void *p, tl_vi a) { _mm256_storeu_si256((__m256i *)p, (__m256i)a); }
TL_INLINE tl_v tl_v_from_int(tl_vi a) { return _mm256_cvtepi32_ps((__m256i)a); }

#ifndef TL_DOT_BYTES
/* A 32-bit lane holds TL_CODES neighbouring channels of one token as int16: VPMADDWD multiplies and joins both. VPMADDUBSW
 * on bytes needs an abs, a sign and a second multiply per step, and is no faster (measured). */

typedef int16_t tl_qcode;
enum { TL_CODES = 2, TL_KEY_BIAS = 0 /* what is added to a key's code */, TL_CODE_UNITS = 1 };

TL_INLINE tl_vi tl_vi_dot(tl_vi sum, tl_vi q, tl_vi k)
{
    sum = (tl_vi)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16((__m256i)q, (__m256i)k));
    __asm__("" : "+x"(sum)); /* clang regroups integer sums otherwise, and spills what that keeps alive: 40 % slower */
    return sum;
}

/* TL_CODES numbers within -127 .. 127, rounded to nearest even, side by side in each lane: neighbouring keys of V. */
TL_INLINE tl_vi tl_join_codes(const tl_v x[TL_CODES])
{
    const __m256i low = _mm256_cvtps_epi32(x[0]), high = _mm256_cvtps_epi32(x[1]);
    return (tl_vi)_mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
}

/* Rounds to nearest even; x within -127 .. 255. */
TL_INLINE void tl_store_codes(tl_qcode *to, tl_v x, int32_t bias)
{
    const __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(bias));
    const __m128i c = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storeu_si128((__m128i *)(void *)to, c);
}
#endif

/* ---- TL_LANES x TL_LANES of 32 bits: row i becomes column i */

TL_INLINE void tl_v_transpose(tl_v r[TL_LANES])
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) { /* pairs of rows */
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* fours of rows: u[i + j] holds columns j and j + 4 of rows i .. i + 3 */
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* The sum of vector i in lane i, each added in one order: lane k and k + 2 of every four, these two, then the halves. */
TL_INLINE tl_v tl_v_sums(const tl_v a[TL_LANES])
{
    __m256 t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] = _mm256_add_ps(_mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        u[i] = _mm256_add_ps(_mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_permute2f128_ps(u[0], u[1], 0x20), _mm256_permute2f128_ps(u[0], u[1], 0x31));
}

/* ---- a mask of bytes: the first n (at most TL_LANES), nonzero is set */

TL_INLINE tl_m tl_m_bytes(const unsigned char *p, int32_t n)
{
    unsigned char whole[8] = {0};
    memcpy(whole, p, (size_t)n);
    const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)whole));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, _mm256_setzero_si256()));
}

#endif
