/* The primitives of packed.inc.h for AMX: vectors are those of AVX-512; products are made of tile registers, 16 rows of 64
 * bytes each. A tile product adds to C, 16 rows by 16 columns of 32 bits, what 16 rows of A and 64 bytes of depth give with
 * B, whose row i holds depth 2 i and 2 i + 1 (bf16; four of them for bytes) of all 16 columns side by side.
 *
 * Products are made two row tiles by two column tiles at a time: four accumulators, two tiles of A, two of B. */
#ifndef TL_CPU_SIMD_AMX_H
#define TL_CPU_SIMD_AMX_H

#define TL_DOT_BYTES
#include "core/index.h"
#include "simd/avx512.h"

enum { TL_CODES = 4, TL_KEY_BIAS = 0 }; /* signed bytes on both sides */
enum { TL_CODE_UNITS = 16 };            /* a token's codes are made up to so many 32-bit units: a tile's depth */

/* Of a row block: two row tiles. */
#define TL_ROWS 32
#define TL_ROW_BLOCKS 16

enum {
    TL_TILE_BYTES = 1024,
    TL_TILE_HALVES = 512, /* bf16 numbers of a tile */
    TL_DEPTH = 32         /* bf16 numbers of a row of A: channels of a QK product, keys of P V */
};

/* ---- the tile registers: 0 to 3 accumulate (row tile 0 with column tiles 0 and 1, then row tile 1), 4 and 5 are A, 6 and 7
 * are B. two_rows and two_columns are constants where they are called. */

#define TL_CHUNKED 1
#define TL_OWN_AGENT /* instead of simd/operands.h */

/* A task begins and ends. A thread's registers are saved with it, but the state costs nothing only once it is released. */
TL_INLINE void tl_agent_begin(void)
{
    _Alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        tiles.row_bytes[i] = 64;
        tiles.rows[i] = 16;
    }
    _tile_loadconfig(&tiles);
}

TL_INLINE void tl_agent_end(void) { _tile_release(); }

TL_INLINE void tl_tiles_zero(const int two_rows, const int two_columns)
{
    _tile_zero(0);
    if (two_columns) _tile_zero(1);
    if (two_rows) _tile_zero(2);
    if (two_rows && two_columns) _tile_zero(3);
}

/* c: rows `stride` floats apart. */
TL_INLINE void tl_tiles_load(const int two_rows, const int two_columns, const float *c, int64_t stride)
{
    const int64_t bytes = stride * 4;
    _tile_loadd(0, c, bytes);
    if (two_columns) _tile_loadd(1, c + 16, bytes);
    if (two_rows) _tile_loadd(2, c + 16 * stride, bytes);
    if (two_rows && two_columns) _tile_loadd(3, c + 16 * stride + 16, bytes);
}

/* Four tiles, one after another. */
TL_INLINE void tl_tiles_load_block(const int two_rows, const int two_columns, const float *c)
{
    _tile_loadd(0, c, 64);
    if (two_columns) _tile_loadd(1, c + 256, 64);
    if (two_rows) _tile_loadd(2, c + 512, 64);
    if (two_rows && two_columns) _tile_loadd(3, c + 768, 64);
}

TL_INLINE void tl_tiles_store_block(const int two_rows, const int two_columns, float *c)
{
    _tile_stored(0, c, 64);
    if (two_columns) _tile_stored(1, c + 256, 64);
    if (two_rows) _tile_stored(2, c + 512, 64);
    if (two_rows && two_columns) _tile_stored(3, c + 768, 64);
}

TL_INLINE void tl_tiles_store(const int two_rows, const int two_columns, float *c, int64_t stride)
{
    const int64_t bytes = stride * 4;
    _tile_stored(0, c, bytes);
    if (two_columns) _tile_stored(1, c + 16, bytes);
    if (two_rows) _tile_stored(2, c + 16 * stride, bytes);
    if (two_rows && two_columns) _tile_stored(3, c + 16 * stride + 16, bytes);
}

/* Rows of A and of each tile lie `stride` bytes apart; the second tile begins `next` bytes on. */
TL_INLINE void tl_tiles_a(const int two_rows, const void *a, int64_t stride, int64_t next)
{
    _tile_loadd(4, a, stride);
    if (two_rows) _tile_loadd(5, (const unsigned char *)a + next, stride);
}

enum { TL_BF16_BY_BF16, TL_SIGNED_BY_SIGNED, TL_UNSIGNED_BY_SIGNED }; /* elements of A and B */

#define TL_TILE_DOT(kind, c, a, b)                                                                                     \
    do {                                                                                                               \
        if (kind == TL_BF16_BY_BF16) _tile_dpbf16ps(c, a, b);                                                          \
        if (kind == TL_SIGNED_BY_SIGNED) _tile_dpbssd(c, a, b);                                                        \
        if (kind == TL_UNSIGNED_BY_SIGNED) _tile_dpbusd(c, a, b);                                                      \
    } while (0)

/* A times B, whose second tile begins `next` bytes on. Each tile of B is loaded where it is first needed. */
TL_INLINE void tl_tiles_dot(const int kind, const int two_rows, const int two_columns, const void *b, int64_t next)
{
    _tile_loadd(6, b, 64);
    TL_TILE_DOT(kind, 0, 4, 6);
    if (two_rows) TL_TILE_DOT(kind, 2, 5, 6);
    if (two_columns) _tile_loadd(7, (const unsigned char *)b + next, 64);
    if (two_columns) TL_TILE_DOT(kind, 1, 4, 7);
    if (two_rows && two_columns) TL_TILE_DOT(kind, 3, 5, 7);
}

/* ---- planes: a number as a sum of bf16 numbers, each the leading 8 significant bits of what the ones before it leave. So the
 * planes of a number have its sign and are never larger, and three hold any f32, two any f16, one any bf16 exactly (where
 * they are not below 2^-126, which a tile product takes for 0). */

enum { TL_PLANES = 3 }; /* at most */
#define TL_SUMS_PLANES 1

TL_INLINE int32_t tl_planes_of(int32_t dtype) { return dtype == TL_BF16 ? 1 : dtype == TL_F16 ? 2 : 3; }

/* Products of planes i and j with i + j >= 3 are left out: below 2^-21 of the whole (ALGORITHMS). */
TL_INLINE int tl_planes_meet(int32_t i, int32_t j) { return i + j < TL_PLANES; }

/* The next plane of a: its numbers in the upper halves of the lanes, other bits 0. a keeps the rest. */
TL_INLINE __m512i tl_plane(tl_v *a)
{
    const __m512i plane = _mm512_and_si512(_mm512_castps_si512(*a), _mm512_set1_epi32((int32_t)0xffff0000u));
    *a = _mm512_sub_ps(*a, _mm512_castsi512_ps(plane));
    return plane;
}

/* Two planes as one vector of 32 numbers, side by side: a's, then b's. */
TL_INLINE __m512i tl_planes_join(__m512i a, __m512i b)
{
    /* halves 1, 3, 5, ... of both: lane i names 4 i + 1 and 4 i + 3 */
    const __m512i lanes = _mm512_mullo_epi32((__m512i)tl_iota(), _mm512_set1_epi32(0x40004));
    const __m512i odd = _mm512_add_epi32(lanes, _mm512_set1_epi32(0x30001));
    return _mm512_permutex2var_epi16(a, odd, b);
}

/* Channels c .. c + 31 of a bf16 row, zeros from d on. */
TL_INLINE __m512i tl_row_halves(const unsigned char *row, int32_t c, int32_t d)
{
    const uint16_t *h = (const uint16_t *)(const void *)row + c;
    return d - c < TL_DEPTH ? _mm512_maskz_loadu_epi16((1u << (d - c)) - 1, h) : _mm512_loadu_si512(h);
}

/* 32 bf16 numbers: of each the larger of top and its magnitude, as bits; those of a NaN are above those of Inf. */
TL_INLINE __m512i tl_halves_top(__m512i top, __m512i a)
{
    return _mm512_max_epu16(top, _mm512_and_si512(a, _mm512_set1_epi16(0x7fff)));
}

TL_INLINE int tl_halves_are_finite(__m512i top) { return _mm512_cmpge_epu16_mask(top, _mm512_set1_epi16(0x7f80)) == 0; }

/* The same in pairs: a's and b's first number, their second, ... */
TL_INLINE __m512i tl_planes_zip(__m512i a, __m512i b) { return _mm512_or_si512(_mm512_srli_epi32(a, 16), b); }

#endif
