/* P V from u8 P and INT8 V (ALGORITHMS C2) by AMX: TL_VALUE_KEYS keys of V are a tile of B, as many codes of P a row of A. */
#include "simd/operand_values_int8.inc.h"

_Static_assert(TL_VALUE_KEYS == 64, "a tile's depth");

/* ---- P */

TL_INLINE tl_v tl_values_exp2(tl_v t) { return tl_v_exp2(t); }

TL_INLINE void tl_values_put(float *p, int32_t i, tl_v a, tl_v b)
{
    tl_qcode *codes = tl_weights(p) + i;
    tl_v_store(p + i, a);
    tl_v_store(p + i + TL_PANEL, b);
    tl_store_codes(codes, tl_v_mul(a, tl_v_set(255.f)), 0);
    tl_store_codes(codes + TL_PANEL, tl_v_mul(b, tl_v_set(255.f)), 0);
}

TL_INLINE float tl_values_weigh(float *p, int32_t n, float ref)
{
    const tl_v m = tl_v_set(ref);
    tl_v sum = tl_v_set(0.f);
    for (int32_t i = 0; i < n; i += 2 * TL_PANEL) {
        const tl_v a = tl_values_exp2(tl_v_sub(tl_v_load(p + i), m));
        const tl_v b = i + TL_PANEL < n ? tl_values_exp2(tl_v_sub(tl_v_load(p + i + TL_PANEL), m)) : tl_v_set(0.f);
        tl_values_put(p, i, a, b);
        sum = tl_v_add(sum, tl_v_add(a, b));
    }
    tl_vi_store(tl_weights(p) + n, tl_vi_set(0)); /* of a tile that begins before n */
    return tl_v_sum(sum);
}

/* ---- products: of a pair of panels of channels, one block of whole numbers for each piece of the keys */

typedef struct {
    int32_t k, n; /* columns of P */
    int32_t copied;
} tl_value_piece;

TL_INLINE void tl_value_products(const int two_rows, const int two_columns, const tl_values *values, const float *p,
                                 int64_t at, const tl_value_piece *pieces, int32_t count, int32_t panel,
                                 float (*blocks)[4 * TL_BLOCK_TILE])
{
    const int64_t row = TL_SCORE_STRIDE * 4;
    for (int32_t i = 0; i < count; i++) {
        const tl_value_piece piece = pieces[i];
        const tl_qcode *a = piece.copied ? values->codes + (int64_t)i * TL_ROWS * TL_VALUE_KEYS
                                         : tl_weights(p) + piece.k;
        const int64_t stride = piece.copied ? TL_VALUE_KEYS : row;
        tl_tiles_zero(two_rows, two_columns);
        tl_tiles_a(two_rows, a, stride, TL_PANEL * stride);
        tl_tiles_dot(TL_UNSIGNED_BY_SIGNED, two_rows, two_columns,
                     values->v + panel * values->stride + (at + piece.k) * TL_PANEL, values->stride);
        tl_tiles_store_block(two_rows, two_columns, blocks[i]);
    }
}

TL_INLINE void tl_value_sums(const int two_columns, const tl_operands *x, const tl_values *values, int32_t rows,
                             int64_t at, const tl_value_piece *pieces, int32_t count, int32_t panel,
                             float (*blocks)[4 * TL_BLOCK_TILE], float *o)
{
    tl_v scale[TL_VALUE_PIECES][2];
    for (int32_t i = 0; i < count; i++) {
        const float *s = values->scale + (at + pieces[i].k) / TL_VALUE_KEYS * x->o_stride + panel * TL_PANEL;
        scale[i][0] = tl_v_load(s);
        if (two_columns) scale[i][1] = tl_v_load(s + TL_PANEL);
    }
    o += panel * TL_PANEL;
    for (int32_t r = 0; r < rows; r++, o += x->o_stride) {
        const int32_t from = r / TL_PANEL * 2 * TL_BLOCK_TILE + r % TL_PANEL * TL_PANEL;
        tl_v a = tl_v_load(o), b = two_columns ? tl_v_load(o + TL_PANEL) : a;
        for (int32_t i = 0; i < count; i++) {
            a = tl_v_fma(tl_v_from_int(tl_vi_load(blocks[i] + from)), scale[i][0], a);
            if (two_columns) b = tl_v_fma(tl_v_from_int(tl_vi_load(blocks[i] + from + TL_BLOCK_TILE)), scale[i][1], b);
        }
        tl_v_store(o, a);
        if (two_columns) tl_v_store(o + TL_PANEL, b);
    }
}

/* While products of one pair are made, those of the pair before it are added. */
TL_INLINE void tl_value_panels(const int two_rows, const tl_operands *x, const tl_values *v, int32_t rows,
                               const float *p, int64_t at, const tl_value_piece *pieces, int32_t count, float *o)
{
    const int32_t panels = x->o_stride / TL_PANEL, whole = panels / 2 * 2;
    float(*blocks)[4 * TL_BLOCK_TILE] = v->blocks, (*before)[4 * TL_BLOCK_TILE] = v->blocks + TL_VALUE_PIECES;
    for (int32_t c = 0; c < panels; c += 2) {
        if (c < whole)
            tl_value_products(two_rows, 1, v, p, at, pieces, count, c, blocks);
        else
            tl_value_products(two_rows, 0, v, p, at, pieces, count, c, blocks);
        if (c) tl_value_sums(1, x, v, rows, at, pieces, count, c - 2, before, o);
        float(*next)[4 * TL_BLOCK_TILE] = before;
        before = blocks;
        blocks = next;
    }
    if (whole < panels)
        tl_value_sums(0, x, v, rows, at, pieces, count, whole, before, o);
    else if (whole)
        tl_value_sums(1, x, v, rows, at, pieces, count, whole - 2, before, o);
}

static void tl_values_run(const tl_operands *x, const tl_values *v, int32_t rows, const float *p, int64_t at, int32_t n,
                          float *o)
{
    tl_value_piece pieces[TL_VALUE_PIECES];
    int32_t count = 0;
    for (int32_t k = 0, m; k < n; k += m, count++) {
        m = tl_least(TL_VALUE_KEYS - (at + k) % TL_VALUE_KEYS, n - k);
        pieces[count] = (tl_value_piece){k, m, m < TL_VALUE_KEYS && k + m < n};
        tl_qcode *to = v->codes + (int64_t)count * TL_ROWS * TL_VALUE_KEYS;
        for (int32_t r = 0; pieces[count].copied && r < rows; r++, to += TL_VALUE_KEYS) {
            memset(to, 0, TL_VALUE_KEYS);
            memcpy(to, tl_weights(p + r * TL_SCORE_STRIDE) + k, (size_t)m);
        }
    }
    if (rows > TL_PANEL)
        tl_value_panels(1, x, v, rows, p, at, pieces, count, o);
    else
        tl_value_panels(0, x, v, rows, p, at, pieces, count, o);
}
