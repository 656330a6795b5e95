/* O += P V over register tiles, for a product that has defined its tile,
 *   void tl_value_tile(R, P, x, values, p, at, n, c, o)  R rows by P panels of channels from panel c on, both constants
 * the type tl_weight that it reads P as, tl_weights_of(row) to find it, and how large tiles are: TL_PV_ROWS rows and
 * TL_PV_PANELS panels, TL_PV4_PANELS for 4 rows, TL_PV2_PANELS for 2, TL_PV1_PANELS for 1. Without TL_OWN_PV_TILES they are as
 * large as the instruction set's. */
#ifndef TL_OWN_PV_TILES
enum {
    TL_PV_ROWS = TL_TILE_ROWS,
    TL_PV_PANELS = TL_TILE_PANELS,
    TL_PV4_PANELS = TL_TILE4_PANELS,
    TL_PV2_PANELS = TL_TILE2_PANELS,
    TL_PV1_PANELS = TL_TILE1_PANELS
};
#endif

TL_INLINE void tl_value_tiles(const int R, const int P, const tl_operands *x, const tl_values *v, const tl_weight *p,
                              int64_t at, int32_t n, int32_t c, int32_t end, float *o)
{
    for (; c + P <= end; c += P) tl_value_tile(R, P, x, v, p, at, n, c, o);
    for (; P > 1 && c < end; c++) tl_value_tile(R, 1, x, v, p, at, n, c, o);
}

TL_CALL void tl_value_rows(const tl_operands *x, const tl_values *v, int32_t rows, const tl_weight *p, int64_t at,
                           int32_t n, int32_t c, int32_t end, float *o)
{
    switch (rows) {
    case TL_PV_ROWS: tl_value_tiles(TL_PV_ROWS, TL_PV_PANELS, x, v, p, at, n, c, end, o); break;
    case 4: tl_value_tiles(4, TL_PV4_PANELS, x, v, p, at, n, c, end, o); break;
    case 2: tl_value_tiles(2, TL_PV2_PANELS, x, v, p, at, n, c, end, o); break;
    default: tl_value_tiles(1, TL_PV1_PANELS, x, v, p, at, n, c, end, o); break;
    }
}

static void tl_values_run(const tl_operands *x, const tl_values *v, int32_t rows, const float *p, int64_t at, int32_t n,
                          float *o)
{
    const int32_t panels = x->o_stride / TL_PANEL;
    for (tl_piece t = tl_first_piece(TL_PV_ROWS, rows, panels, TL_PV_PANELS); t.rows;
         t = tl_next_piece(TL_PV_ROWS, rows, panels, TL_PV_PANELS, t))
        tl_value_rows(x, v, t.rows, tl_weights_of(p + t.row * TL_SCORE_STRIDE), at, n, t.at, t.at + t.n,
                      o + (int64_t)t.row * x->o_stride);
}
