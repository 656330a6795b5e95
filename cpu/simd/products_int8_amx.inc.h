/* INT8 products by AMX: the packed form is a sequence of tiles B already, [keys / 16][d / 64] of them, and rows of codes are
 * rows of A. Sums are exact. X3 is three of them. */
#include "simd/operand_int8.inc.h"

TL_INLINE int tl_int8_suits(const tlamp_problem *problem)
{
    (void)problem;
    return 1;
}

/* The products of one plane of Q and one of K are added. */
TL_INLINE void tl_int8_product(const int two_rows, const int two_columns, const tl_int8 *z, const tl_qcode *q,
                               const tl_qcode *k, int32_t row, int64_t at)
{
    const int64_t stride = z->code_stride, next = (int64_t)z->units * TL_PANEL * TL_CODES;
    q += row * stride;
    k += at / TL_PANEL * next;
    for (int32_t u = 0; u < z->units; u += TL_CODE_UNITS) {
        tl_tiles_a(two_rows, q, stride, TL_PANEL * stride);
        tl_tiles_dot(TL_SIGNED_BY_SIGNED, two_rows, two_columns, k, next);
        q += TL_CODE_UNITS * TL_CODES;
        k += TL_TILE_BYTES;
    }
}

/* The sums so far are worth TL_PLANE_STEPS times what is to come. */
TL_INLINE void tl_int8_raise(const int two_rows, const int two_columns)
{
    _Alignas(64) float block[4 * TL_BLOCK_TILE];
    tl_tiles_store_block(two_rows, two_columns, block);
    for (int32_t i = 0; i < (two_rows ? 4 : 2) * TL_BLOCK_TILE; i += TL_LANES)
        if (two_columns || i / TL_BLOCK_TILE % 2 == 0)
            tl_vi_store(block + i, tl_vi_mul(tl_vi_load(block + i), tl_vi_set(TL_PLANE_STEPS)));
    tl_tiles_load_block(two_rows, two_columns, block);
}

TL_INLINE void tl_int8_tiles(const int planes, const int two_rows, const int two_columns, const tl_int8 *z, int32_t row,
                             int64_t at, float *block, int64_t stride)
{
    tl_tiles_zero(two_rows, two_columns);
    tl_int8_product(two_rows, two_columns, z, z->q[0], z->keys[0], row, at);
    if (planes == 2) { /* 254 q1 k1 + q1 k2 + q2 k1 */
        tl_int8_raise(two_rows, two_columns);
        tl_int8_product(two_rows, two_columns, z, z->q[0], z->keys[1], row, at);
        tl_int8_product(two_rows, two_columns, z, z->q[1], z->keys[0], row, at);
    }
    tl_tiles_store(two_rows, two_columns, block, stride);
}

TL_INLINE void tl_planes_block(const int planes, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                               float *block, int64_t stride)
{
    if (rows > TL_PANEL && n > TL_PANEL)
        tl_int8_tiles(planes, 1, 1, z, row, at, block, stride);
    else if (rows > TL_PANEL)
        tl_int8_tiles(planes, 1, 0, z, row, at, block, stride);
    else if (n > TL_PANEL)
        tl_int8_tiles(planes, 0, 1, z, row, at, block, stride);
    else
        tl_int8_tiles(planes, 0, 0, z, row, at, block, stride);
}

/* Whole numbers, for now. */
static void tl_int8_block(const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n, float *block,
                          int64_t stride)
{
    if (z->planes == 2)
        tl_planes_block(2, z, row, rows, at, n, block, stride);
    else
        tl_planes_block(1, z, row, rows, at, n, block, stride);
}

TL_INLINE int tl_int8_flagged(const tl_int8 *z, int64_t at, int32_t n)
{
    return z->some_q_flagged || tl_any_marked(z->panels_flagged, at, n);
}

static void tl_int8_mend(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                         float *s)
{
    tl_scores_flagged(x, z, row, rows, at, n, s);
}
