/* Scores of the high route over register tiles, for a product that has defined its tile,
 *   void tl_high_tile(R, P, x, high, row, at, s)  R rows by P panels of keys, both constants
 * and how large tiles are: TL_QK_ROWS rows and TL_QK_PANELS panels, TL_QK4_PANELS for 4 rows, and so on. */

TL_INLINE void tl_high_tiles(const int R, const int P, const tl_operands *x, const tl_high *h, int32_t row, int64_t at,
                             int32_t n, float *s)
{
    int32_t j = 0;
    for (; j + P * TL_PANEL <= n; j += P * TL_PANEL) tl_high_tile(R, P, x, h, row, at + j, s + j);
    for (; P > 1 && j < n; j += TL_PANEL) tl_high_tile(R, 1, x, h, row, at + j, s + j);
}

TL_CALL void tl_high_rows(const tl_operands *x, const tl_high *h, int32_t row, int32_t rows, int64_t at, int32_t n,
                          float *s)
{
    switch (rows) {
    case TL_QK_ROWS: tl_high_tiles(TL_QK_ROWS, TL_QK_PANELS, x, h, row, at, n, s); break;
    case 4: tl_high_tiles(4, TL_QK4_PANELS, x, h, row, at, n, s); break;
    case 2: tl_high_tiles(2, TL_QK2_PANELS, x, h, row, at, n, s); break;
    default: tl_high_tiles(1, TL_QK1_PANELS, x, h, row, at, n, s); break;
    }
}

static void tl_high_scores(const tl_operands *x, const tl_high *h, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    const int32_t chunk = TL_QK_PANELS * TL_PANEL;
    for (tl_piece p = tl_first_piece(TL_QK_ROWS, rows, n, chunk); p.rows;
         p = tl_next_piece(TL_QK_ROWS, rows, n, chunk, p))
        tl_high_rows(x, h, row + p.row, p.rows, at + p.at, p.n, s + p.row * TL_SCORE_STRIDE + p.at);
}
