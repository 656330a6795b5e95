/* P V in f32: [d_v / 16][keys][16] floats. Every element of O is one chain of fma in the order of keys.
 * With TL_NARROW_VALUES the same floats hold bf16 numbers (simd/values_bf16_fma.inc.h). */
#include "simd/operands.h"

#ifdef TL_NARROW_VALUES
enum { TL_NARROW = 1, TL_PV = TLAMP_PV_BF16 };
#else
enum { TL_NARROW = 0, TL_PV = TLAMP_PV_F32 };
#endif

typedef struct {
    float *v;
    int64_t stride; /* floats from one panel of channels to the next */
    uint16_t *nonfinite;
} tl_values;

TL_INLINE int tl_values_suits(const tlamp_problem *problem) { return problem->policy->pv == TL_PV; }

static void tl_values_lay_out_keys(tl_values *v, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    v->nonfinite = tl_take(a, keys / TL_PANEL * 2);
    v->stride = (keys + 1) * TL_PANEL; /* one row more: panels of 2^n keys would crowd a few cache sets */
    v->v = tl_take(a, tl_ceil_div(shape->head_dim_v, TL_PANEL) * v->stride * 4);
}

/* ---- packing */

/* 16 keys without those in `out`. Returns a bit for each one that holds a NaN or Inf. */
TL_INLINE int32_t tl_pack_values_from(const tl_operands *x, const tl_values *v, int64_t key, int32_t out,
                                      const int32_t dtype)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    const tl_v zero = tl_v_set(0.f);
    int32_t found = 0;
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int64_t k = tl_min64(key + j, seq->lk - 1);
        const int32_t dv = key + j < seq->lk && !(out >> j & 1)
                               ? x->dv
                               : 0; /* P is 0 where no key is: V must be finite there */
        tl_v bad = zero;
        const unsigned char *row = tl_row(&call->v, seq->batch, seq->k_start, k, x->cpu.kv_head);
        const tl_v scale = tl_v_set(tl_value_scale(call, seq, x->cpu.kv_head, k));
        float *to = v->v + (key - x->first + j) * TL_PANEL;
        for (int32_t i = 0; i < x->o_stride; i += TL_PANEL, to += v->stride)
            for (int32_t l = 0; l < TL_PANEL; l += TL_LANES) {
                tl_v a = i + l < dv ? tl_load_lanes(row, i + l, dv - i - l, dtype) : zero;
                if (dtype == TL_I8 && i + l < dv) a = tl_v_mul(a, scale); /* which may be NaN */
                if (TL_NARROW) a = tl_v_round_bf16(a);
                bad = tl_v_fma(a, zero, bad); /* 0, or NaN for ever */
                tl_v_store(to + l, a);
            }
        found |= tl_is_nan(tl_v_sum(bad)) << j;
    }
    return found;
}

#include "simd/pack_values.inc.h"

static void tl_values_pack(const tl_operands *x, const tl_values *v, int64_t begin, int64_t end)
{
    tl_pack_value_panels(x, v, begin, end);
}

/* ---- P */

TL_INLINE float tl_values_weigh(float *p, int32_t n, float ref) { return tl_weigh_as(TL_NARROW, p, n, ref); }

/* ---- register tiles: R rows by P panels of channels, both constants where they are called; from channel panel c on */

TL_INLINE void tl_value_tile(const int R, const int P, const tl_operands *x, const tl_values *values, const float *p,
                             int64_t at, int32_t n, int32_t c, float *o)
{
    const int vectors = P * TL_PARTS;
    const int64_t o_stride = x->o_stride, panel = values->stride;
    const float *v = values->v + c * panel + at * TL_PANEL;
    o += c * TL_PANEL;
    tl_v a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        a[i][j] = tl_v_load(o + i * o_stride + j * TL_LANES);
    TL_UNROLL_4 for (int32_t k = 0; k < n; k++, v += TL_PANEL, p++)
    {
        tl_v b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < vectors; j++)
            b[j] = tl_v_load(v + j / TL_PARTS * panel + j % TL_PARTS * TL_LANES);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_v y = tl_v_set(p[i * TL_SCORE_STRIDE]);
            TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_v_fma(y, b[j], a[i][j]);
        }
    }
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        tl_v_store(o + i * o_stride + j * TL_LANES, a[i][j]);
}

typedef float tl_weight; /* P as the tiles read it */
TL_INLINE const tl_weight *tl_weights_of(const float *row) { return row; }
#include "simd/walk_values.inc.h"

TL_INLINE float tl_values_weight(const float *p, int32_t j) { return p[j]; }
