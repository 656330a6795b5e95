/* P V from u8 P and INT8 V (ALGORITHMS C2), by register tiles. */
#include "simd/operand_values_int8.inc.h"

TL_INLINE float tl_values_weigh(float *p, int32_t n, float ref)
{
    tl_v lane[2] = {tl_v_set(0.f), tl_v_set(0.f)};
    const tl_v m = tl_v_set(ref);
    tl_qcode *codes = tl_weights(p);
    for (int32_t i = 0; i < n; i += TL_PANEL) TL_UNROLL for (int j = 0; j < TL_PARTS; j++)
        {
            const tl_v y = tl_v_exp2(tl_v_sub(tl_v_load(p + i + j * TL_LANES), m));
            tl_v_store(p + i + j * TL_LANES, y);
            tl_store_codes(codes + i + j * TL_LANES, tl_v_mul(y, tl_v_set(255.f)), 0);
            lane[j] = tl_v_add(lane[j], y);
        }
    return tl_v_sum(tl_v_add(lane[0], lane[1]));
}

/* ---- register tiles: R rows by P panels of channels, both constants where they are called; from channel panel c on */

/* Keys [at, at + n) share their scales. */
TL_INLINE void tl_value_block(const int R, const int P, const tl_operands *x, const tl_values *values,
                              const tl_qcode *p, int64_t at, int32_t n, int32_t c, float *o)
{
    const int vectors = P * TL_PARTS, p_stride = TL_SCORE_STRIDE * (int)(sizeof(float) / sizeof(tl_qcode));
    const int64_t o_stride = x->o_stride, panel = values->stride;
    const tl_qcode *v = values->v + c * panel + at * TL_PANEL;
    const float *scale = values->scale + at / TL_VALUE_KEYS * o_stride + c * TL_PANEL;
    tl_vi a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_vi_set(0);
    for (int32_t k = 0; k < n; k += TL_CODES, v += TL_PANEL * TL_CODES, p += TL_CODES) {
        tl_vi b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < vectors; j++)
            b[j] = tl_vi_load(v + j / TL_PARTS * panel + j % TL_PARTS * TL_LANES * TL_CODES);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_vi y = tl_vi_set(tl_unit(p + i * p_stride));
            TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_vi_dot(a[i][j], b[j], y); /* y may be unsigned */
        }
    }
    o += c * TL_PANEL;
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
    {
        float *to = o + i * o_stride + j * TL_LANES;
        tl_v_store(to, tl_v_fma(tl_v_from_int(a[i][j]), tl_v_load(scale + j * TL_LANES), tl_v_load(to)));
    }
}

TL_INLINE void tl_value_tile(const int R, const int P, const tl_operands *x, const tl_values *v, const tl_qcode *p,
                             int64_t at, int32_t n, int32_t c, float *o)
{
    for (int32_t k = 0, m; k < n; k += m) {
        m = tl_least(TL_VALUE_KEYS - (at + k) % TL_VALUE_KEYS, n - k);
        tl_value_block(R, P, x, v, p + k, at + k, m, c, o);
    }
}

typedef tl_qcode tl_weight; /* P as the tiles read it */
TL_INLINE const tl_weight *tl_weights_of(const float *row) { return tl_weights(row); }
#include "simd/walk_values.inc.h"
