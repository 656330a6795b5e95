/* P V in bf16: [d_v / 16][keys / 2][16] pairs of keys; P and V are rounded to nearest, their products are exact, sums are f32.
 * Every element of O is one chain of additions in the order of keys. A row of P is bf16 from its place of logits on. */
#include "simd/value_lanes.h"

typedef struct {
    uint16_t *v;
    int64_t stride; /* numbers from one panel of channels to the next */
    uint16_t *nonfinite;
} tl_values;

TL_INLINE int tl_values_suits(const tlamp_problem *problem) { return problem->policy->pv == TLAMP_PV_BF16; }

static void tl_values_lay_out_keys(tl_values *v, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    v->nonfinite = tl_take(a, keys / TL_PANEL * 2);
    v->stride = (keys + 2) * TL_PANEL; /* one row of pairs more: panels of 2^n keys would crowd a few cache sets */
    v->v = tl_take(a, tl_ceil_div(shape->head_dim_v, TL_PANEL) * v->stride * 2);
}

/* ---- packing */

/* 16 keys without those in `out`. Returns a bit for each one whose V, rounded, holds a NaN or Inf. */
TL_INLINE int32_t tl_pack_values_from(const tl_operands *x, const tl_values *v, int64_t key, int32_t out,
                                      const int32_t dtype)
{
    const tl_v zero = tl_v_set(0.f);
    int32_t found = 0;
    tl_panel_rows rows;
    tl_find_values(x, key, out, &rows);
    for (int32_t j = 0; j < TL_PANEL; j += 2) {
        uint16_t *to = v->v + (key - x->first + j) * TL_PANEL;
        tl_v bad[2] = {zero, zero};
        for (int32_t i = 0; i < x->o_stride; i += TL_PANEL, to += v->stride) {
            const tl_pairs y = tl_pairs_of(tl_load_value_lanes(x, &rows, j, i, dtype),
                                           tl_load_value_lanes(x, &rows, j + 1, i, dtype));
            bad[0] = tl_v_fma(tl_pairs_low(y), zero, bad[0]); /* 0, or NaN for ever */
            bad[1] = tl_v_fma(tl_pairs_high(y), zero, bad[1]);
            tl_pairs_store(to, y);
        }
        for (int32_t i = 0; i < 2; i++) found |= tl_is_nan(tl_v_sum(bad[i])) << (j + i);
    }
    return found;
}

#include "simd/pack_values.inc.h"

static void tl_values_pack(const tl_operands *x, const tl_values *v, int64_t begin, int64_t end)
{
    tl_pack_value_panels(x, v, begin, end);
}

/* ---- P */

/* A short polynomial serves, since P is rounded to 8 bits; the sum is that of the numbers before rounding. */
TL_INLINE float tl_values_weigh(float *p, int32_t n, float ref)
{
    const tl_v m = tl_v_set(ref);
    uint16_t *to = (uint16_t *)(void *)p; /* never ahead of what is still to be read */
    tl_v sum = tl_v_set(0.f);
    for (int32_t i = 0; i < n; i += 2 * TL_PANEL) {
        const tl_v a = tl_v_exp2_short(tl_v_sub(tl_v_load(p + i), m));
        sum = tl_v_add(sum, a);
        if (i + TL_PANEL < n) {
            const tl_v b = tl_v_exp2_short(tl_v_sub(tl_v_load(p + i + TL_PANEL), m));
            sum = tl_v_add(sum, b);
            tl_bf16_store(to + i, a, b);
        } else
            tl_bf16_store_half(to + i, a);
    }
    return tl_v_sum(sum);
}

/* ---- register tiles: R rows by P panels of channels, both constants where they are called; from channel panel c on */

TL_INLINE void tl_value_tile(const int R, const int P, const tl_operands *x, const tl_values *values, const uint16_t *p,
                             int64_t at, int32_t n, int32_t c, float *o)
{
    const int64_t o_stride = x->o_stride, panel = values->stride, p_stride = 2 * TL_SCORE_STRIDE;
    const uint16_t *v = values->v + c * panel + at * TL_PANEL;
    o += c * TL_PANEL;
    tl_v a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < P; j++)
        a[i][j] = tl_v_load(o + i * o_stride + j * TL_LANES);
    for (int32_t k = 0; k < n; k += 2, v += 2 * TL_PANEL, p += 2) {
        tl_pairs b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < P; j++) b[j] = tl_pairs_load(v + j * panel);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_pairs y = tl_pairs_set(p + i * p_stride);
            TL_UNROLL for (int j = 0; j < P; j++) a[i][j] = tl_pairs_dot(a[i][j], y, b[j]);
        }
    }
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < P; j++)
        tl_v_store(o + i * o_stride + j * TL_LANES, a[i][j]);
}

typedef uint16_t tl_weight; /* P as the tiles read it */
#define TL_OWN_PV_TILES
enum {
    TL_PV_ROWS = TL_PAIR_ROWS,
    TL_PV_PANELS = TL_PAIR_PANELS,
    TL_PV4_PANELS = TL_PAIR4_PANELS,
    TL_PV2_PANELS = TL_PAIR2_PANELS,
    TL_PV1_PANELS = TL_PAIR1_PANELS
};
TL_INLINE const tl_weight *tl_weights_of(const float *row) { return (const uint16_t *)(const void *)row; }
#include "simd/walk_values.inc.h"

TL_INLINE float tl_values_weight(const float *p, int32_t j)
{
    return tl_from_bf16(((const uint16_t *)(const void *)p)[j]);
}
