/* P V from u8 P and INT8 V (ALGORITHMS C2): [d_v / 16][keys / TL_CODES][16] 32-bit units of TL_CODES keys, and a scale per
 * channel and TL_VALUE_KEYS keys. P is at most 1; its codes, 255 P rounded, lie behind a row's numbers (TL_SCORE_TAIL). Sums of
 * products are exact: what is added to O is one number per TL_VALUE_KEYS keys. Keys whose V holds a NaN or Inf are left out. */
#include "simd/operands.h"

#define TL_VALUES_UP_TO_1 1

_Static_assert(TL_SCORE_TAIL * sizeof(float) >= TL_SPAN_KEYS * sizeof(tl_qcode), "room for P's codes");

typedef struct {
    tl_qcode *v;
    int64_t stride;      /* codes from one panel of channels to the next */
    float *scale;        /* [keys / TL_VALUE_KEYS][o_stride] what one step of a product is worth */
    uint16_t *nonfinite; /* as simd/operands.h says */

    float *block; /* [TL_VALUE_KEYS][o_stride] scratch: V as floats */
} tl_values;

TL_INLINE int tl_values_suits(const tlamp_problem *problem) { return problem->policy->pv == TLAMP_PV_INT8; }

static void tl_values_lay_out_keys(tl_values *v, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    const int64_t panels = tl_ceil_div(shape->head_dim_v, TL_PANEL);
    v->nonfinite = tl_take(a, keys / TL_PANEL * 2);
    v->stride = (keys + TL_CODES) * TL_PANEL; /* one row more: panels of 2^n keys would crowd a few cache sets */
    v->v = tl_take(a, panels * v->stride * (int64_t)sizeof(tl_qcode));
    v->scale = tl_take(a, tl_ceil_div(keys, TL_VALUE_KEYS) * panels * TL_PANEL * 4);
}

static void tl_values_lay_out_task(tl_values *v, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    (void)rows;
    v->block = tl_take(a, TL_VALUE_KEYS * tl_round_up(shape->head_dim_v, TL_PANEL) * 4);
}

/* ---- packing */

/* V of n keys from `key` on as floats in v->block: 0 where no row sees the key, and where it is not finite. */
static void tl_widen_values(const tl_operands *x, const tl_values *v, int64_t key, int32_t n)
{
    const tl_cpu *c = &x->cpu;
    for (int32_t j = 0; j < n; j++) {
        float *to = v->block + (int64_t)j * x->o_stride;
        uint16_t *nonfinite = &v->nonfinite[(key - x->first + j) / TL_PANEL];
        if (j % TL_PANEL == 0) *nonfinite = 0;
        if (key + j < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key + j)) {
            tl_widen_value(to, c, key + j);
            if (tl_is_finite(tl_peak(to, x->dv))) continue;
            *nonfinite |= (uint16_t)(1u << j % TL_PANEL);
        }
        memset(to, 0, sizeof *to * (size_t)x->o_stride);
    }
}

/* TL_LANES channels from channel i on of n keys in v->block, which begin at `at`. As tl_value_quants: from their own largest
 * magnitude, or by the caller's scale. */
TL_INLINE void tl_pack_channels(const tl_operands *x, const tl_values *v, int64_t at, int32_t n, int32_t i,
                                const tl_quant *given)
{
    const float *from = v->block + i;
    tl_v top = tl_v_set(0.f);
    for (int32_t j = 0; j < n && !given; j++) top = tl_v_max(tl_v_abs(tl_v_load(from + (int64_t)j * x->o_stride)), top);
    const tl_m zero = tl_m_less(top, tl_v_set(127.f * 0x1p-126f));
    tl_v scale = tl_v_pick(zero, tl_v_set(0.f), tl_v_div(top, tl_v_set(127.f)));
    tl_v inverse = tl_v_pick(zero, tl_v_set(0.f), tl_v_div(tl_v_set(127.f), top));
    if (given) {
        scale = tl_v_set(given->scale);
        inverse = tl_v_set(given->inverse);
    }
    tl_v_store(v->scale + at / TL_VALUE_KEYS * x->o_stride + i, tl_v_div(scale, tl_v_set(255.f)));
    tl_qcode *to = v->v + i / TL_PANEL * v->stride + at * TL_PANEL + i % TL_PANEL * TL_CODES;
    for (int32_t j = 0; j < n; j += TL_CODES, to += TL_PANEL * TL_CODES) {
        tl_v key[TL_CODES];
        TL_UNROLL for (int l = 0; l < TL_CODES; l++)
            key[l] = tl_v_mul(tl_v_load(from + (int64_t)(j + l) * x->o_stride), inverse);
        tl_vi_store(to, tl_join_codes(key));
    }
}

static void tl_values_pack(const tl_operands *x, const tl_values *v, int64_t begin, int64_t end)
{
    const tl_cpu *c = &x->cpu;
    const int by_caller = c->call->v.scale && c->call->policy->scales != TLAMP_SCALES_TOKEN;
    for (int64_t key = begin; key < end; key += TL_VALUE_KEYS) {
        const int32_t n = tl_least(TL_VALUE_KEYS, end - key);
        const tl_quant given = tl_given_quant(
            by_caller && key < c->seq->lk ? tl_value_scale(c->call, c->seq, c->kv_head, key) : 0.f);
        tl_widen_values(x, v, key, n);
        for (int32_t i = 0; i < x->o_stride; i += TL_LANES)
            tl_pack_channels(x, v, key - x->first, n, i, by_caller ? &given : NULL);
    }
}

/* ---- P */

/* Where a row's codes are. */
TL_INLINE tl_qcode *tl_weights(const float *p) { return (tl_qcode *)(uintptr_t)(const void *)(p + TL_SPAN_KEYS); }

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
enum {
    TL_PV_ROWS = TL_TILE_ROWS,
    TL_PV_PANELS = TL_TILE_PANELS,
    TL_PV4_PANELS = TL_TILE4_PANELS,
    TL_PV2_PANELS = TL_TILE2_PANELS,
    TL_PV1_PANELS = TL_TILE1_PANELS
};
TL_INLINE const tl_weight *tl_weights_of(const float *row) { return tl_weights(row); }
#include "simd/walk_values.inc.h"

/* What is not finite meets P unrounded. */
TL_INLINE float tl_values_weight(const float *p, int32_t j) { return p[j]; }
