/* The operands of P V from u8 P and INT8 V (ALGORITHMS C2). V is [d_v / 16][keys / TL_CODES][16] 32-bit units of TL_CODES keys, and a scale per
 * channel and TL_VALUE_KEYS keys. P is at most 1; its codes, 255 P rounded, lie behind a row's numbers (TL_SCORE_TAIL). Sums of
 * products are exact: what is added to O is one number per TL_VALUE_KEYS keys. Keys whose V holds a NaN or Inf are left out. */
#include "simd/operands.h"

#define TL_VALUES_UP_TO_1 1

_Static_assert(TL_SCORE_TAIL * sizeof(float) >= TL_SPAN_KEYS * sizeof(tl_qcode), "room for P's codes");

enum { TL_VALUE_PIECES = TL_SPAN_KEYS / TL_VALUE_KEYS + 1 }; /* most of a span whose keys share scales */

typedef struct {
    tl_qcode *v;
    int64_t stride;      /* codes from one panel of channels to the next */
    float *scale;        /* [keys / TL_VALUE_KEYS][o_stride] what one step of a product is worth */
    uint16_t *nonfinite; /* as simd/operands.h says */

    float *block; /* [TL_VALUE_KEYS][o_stride] scratch: V as floats */
#if TL_CHUNKED
    float (*blocks)[4 * TL_BLOCK_TILE]; /* [2 * TL_VALUE_PIECES] scratch: products */
    tl_qcode *codes; /* [TL_VALUE_PIECES][TL_ROWS][TL_VALUE_KEYS] scratch: of pieces that are no whole tile */
#endif
} tl_values;

TL_INLINE int tl_values_suits(const tlamp_problem *problem) { return problem->policy->pv == TLAMP_PV_INT8; }

static void tl_values_lay_out_keys(tl_values *v, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    const int64_t panels = tl_ceil_div(shape->head_dim_v, TL_PANEL);
    v->nonfinite = tl_take(a, keys / TL_PANEL * 2);
    /* Some more: panels of 2^n keys would crowd a few cache sets; and tiles may begin with the last keys, where P is 0. */
    v->stride = (keys + TL_VALUE_KEYS) * TL_PANEL;
    v->v = tl_take(a, panels * v->stride * (int64_t)sizeof(tl_qcode));
    v->scale = tl_take(a, tl_ceil_div(keys, TL_VALUE_KEYS) * panels * TL_PANEL * 4);
}

static void tl_values_lay_out_task(tl_values *v, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    (void)rows;
#if TL_CHUNKED
    v->blocks = tl_take(a, 2 * TL_VALUE_PIECES * (int64_t)sizeof *v->blocks);
    v->codes = tl_take(a, TL_VALUE_PIECES * TL_ROWS * TL_VALUE_KEYS);
#endif
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

/* What is not finite meets P unrounded. */
TL_INLINE float tl_values_weight(const float *p, int32_t j) { return p[j]; }
