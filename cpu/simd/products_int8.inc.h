/* INT8 products: the instruction set's tl_vi_dot multiplies and adds 32-bit units of TL_CODES channels. Sums are exact. */
#include "simd/operand_int8.inc.h"

/* ---- register tiles: R rows by P panels, both constants where they are called */

TL_INLINE int32_t tl_unit(const tl_qcode *codes)
{
    int32_t u;
    memcpy(&u, codes, sizeof u);
    return u;
}

TL_INLINE void tl_int8_tile(const int R, const int P, const tl_int8 *z, int32_t row, int64_t at, float *s)
{
    const int vectors = P * TL_PARTS;
    const int64_t q_stride = z->code_stride, panel = (int64_t)z->units * TL_PANEL * TL_CODES;
    const tl_qcode *q = z->q + row * q_stride, *k = z->keys + at * z->units * TL_CODES;
    tl_vi a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        a[i][j] = tl_vi_set(TL_KEY_BIAS == 0 ? 0 : z->q_start[row + i]);
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
    const float *scale = z->scale + at;
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
    {
        const tl_v f = tl_v_mul(tl_v_set(z->q_scale[row + i]), tl_v_load(scale + j * TL_LANES));
        const tl_v t = tl_v_fma(tl_v_from_int(a[i][j]), f, tl_v_set(z->q_mean[row + i]));
        tl_v_store(s + i * TL_SCORE_STRIDE + j * TL_LANES, t);
    }
}

TL_INLINE void tl_int8_tiles(const int R, const int P, const tl_int8 *z, int32_t row, int64_t at, int32_t n, float *s)
{
    int32_t j = 0;
    for (; j + P * TL_PANEL <= n; j += P * TL_PANEL) tl_int8_tile(R, P, z, row, at + j, s + j);
    for (; P > 1 && j < n; j += TL_PANEL) tl_int8_tile(R, 1, z, row, at + j, s + j);
}

TL_CALL void tl_int8_rows(const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n, float *s)
{
    switch (rows) {
    case TL_TILE_ROWS: tl_int8_tiles(TL_TILE_ROWS, TL_TILE_PANELS, z, row, at, n, s); break;
    case 4: tl_int8_tiles(4, TL_TILE4_PANELS, z, row, at, n, s); break;
    case 2: tl_int8_tiles(2, TL_TILE2_PANELS, z, row, at, n, s); break;
    default: tl_int8_tiles(1, TL_TILE1_PANELS, z, row, at, n, s); break;
    }
}

static void tl_int8_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    const int32_t chunk = TL_TILE_PANELS * TL_PANEL;
    for (tl_piece p = tl_first_piece(TL_TILE_ROWS, rows, n, chunk); p.rows;
         p = tl_next_piece(TL_TILE_ROWS, rows, n, chunk, p))
        tl_int8_rows(z, row + p.row, p.rows, at + p.at, p.n, s + p.row * TL_SCORE_STRIDE + p.at);
    if (z->some_q_flagged || tl_any_marked(z->panels_flagged, at, n)) tl_scores_flagged(x, z, row, rows, at, n, s);
}
