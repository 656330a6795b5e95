/* INT8 products: the instruction set's tl_vi_dot multiplies and adds 32-bit units of TL_CODES channels. Sums are exact. X3 is
 * three of them. */
#include "simd/operand_int8.inc.h"

TL_INLINE int tl_int8_suits(const tlamp_problem *problem)
{
    (void)problem;
    return 1;
}

/* ---- register tiles: R rows by P panels, both constants where they are called */

/* a += the products of one plane of Q and one of K. */
TL_INLINE void tl_int8_product(const int R, const int P, const tl_int8 *z, const tl_qcode *q, const tl_qcode *k,
                               int32_t row, int64_t at, tl_vi a[TL_MOST_ROWS][TL_MOST_VECTORS])
{
    const int vectors = P * TL_PARTS;
    const int64_t q_stride = z->code_stride, panel = (int64_t)z->units * TL_PANEL * TL_CODES;
    q += row * q_stride;
    k += at * z->units * TL_CODES;
    for (int32_t u = 0, units = z->units; u < units; u++, k += TL_PANEL * TL_CODES, q += TL_CODES) {
        tl_vi b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < vectors; j++)
            b[j] = tl_vi_load(k + j / TL_PARTS * panel + j % TL_PARTS * TL_LANES * TL_CODES);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_vi y = tl_vi_set(tl_unit(q + i * q_stride));
            TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_vi_dot(a[i][j], y, b[j]);
        }
    }
}

TL_INLINE void tl_int8_tile(const int planes, const int R, const int P, const tl_int8 *z, int32_t row, int64_t at,
                            float *s)
{
    const int vectors = P * TL_PARTS;
    tl_vi a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        a[i][j] = tl_vi_set(TL_KEY_BIAS == 0 || planes == 2 ? 0 : z->q_start[row + i]);
    tl_int8_product(R, P, z, z->q[0], z->keys[0], row, at, a);
    if (planes == 2) { /* 254 q1 k1 + q1 k2 + q2 k1 */
        TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        {
            a[i][j] = tl_vi_mul(a[i][j], tl_vi_set(TL_PLANE_STEPS));
            if (TL_KEY_BIAS != 0) a[i][j] = tl_vi_add(a[i][j], tl_vi_set(z->q_start[row + i]));
        }
        tl_int8_product(R, P, z, z->q[0], z->keys[1], row, at, a);
        tl_int8_product(R, P, z, z->q[1], z->keys[0], row, at, a);
    }
    const float *scale = z->scale + at;
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
    {
        const tl_v f = tl_v_mul(tl_v_set(z->q_scale[row + i]), tl_v_load(scale + j * TL_LANES));
        const tl_v t = tl_v_fma(tl_v_from_int(a[i][j]), f, tl_v_set(z->q_mean[row + i]));
        tl_v_store(s + i * TL_SCORE_STRIDE + j * TL_LANES, t);
    }
}

TL_INLINE void tl_int8_tiles(const int planes, const int R, const int P, const tl_int8 *z, int32_t row, int64_t at,
                             int32_t n, float *s)
{
    int32_t j = 0;
    for (; j + P * TL_PANEL <= n; j += P * TL_PANEL) tl_int8_tile(planes, R, P, z, row, at + j, s + j);
    for (; P > 1 && j < n; j += TL_PANEL) tl_int8_tile(planes, R, 1, z, row, at + j, s + j);
}

TL_INLINE void tl_planes_rows(const int planes, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                              float *s)
{
    switch (rows) {
    case TL_TILE_ROWS: tl_int8_tiles(planes, TL_TILE_ROWS, TL_TILE_PANELS, z, row, at, n, s); break;
    case 4: tl_int8_tiles(planes, 4, TL_TILE4_PANELS, z, row, at, n, s); break;
    case 2: tl_int8_tiles(planes, 2, TL_TILE2_PANELS, z, row, at, n, s); break;
    default: tl_int8_tiles(planes, 1, TL_TILE1_PANELS, z, row, at, n, s); break;
    }
}

TL_CALL void tl_int8_rows(const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    tl_planes_rows(1, z, row, rows, at, n, s);
}

TL_CALL void tl_x3_rows(const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    tl_planes_rows(2, z, row, rows, at, n, s);
}

static void tl_int8_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    const int32_t chunk = TL_TILE_PANELS * TL_PANEL;
    for (tl_piece p = tl_first_piece(TL_TILE_ROWS, rows, n, chunk); p.rows;
         p = tl_next_piece(TL_TILE_ROWS, rows, n, chunk, p))
        (z->planes == 2 ? tl_x3_rows : tl_int8_rows)(z, row + p.row, p.rows, at + p.at, p.n,
                                                     s + p.row * TL_SCORE_STRIDE + p.at);
    if (z->some_q_flagged || tl_any_marked(z->panels_flagged, at, n)) tl_scores_flagged(x, z, row, rows, at, n, s);
}
