/* P V from V as it lies in the tensor, for tasks of few rows. Every element of O is one chain of fma in the order of keys. In
 * f32; with TL_NARROW_VALUES P and V are rounded to bf16. V that is not bf16 already is rounded a few keys at a time, into
 * floats that stay in the first-level cache while the rows pass. */
#include "simd/in_place.h"

#ifdef TL_NARROW_VALUES
enum { TL_NARROW = 1 };
#else
enum { TL_NARROW = 0 };
#endif

enum { TL_VALUE_CHUNK = 32 }; /* keys whose V stays in the first-level cache while rows and channels pass */

typedef struct {
    uint16_t *nonfinite;
    float *rounded; /* [TL_VALUE_CHUNK][x->o_stride] */
} tl_values;

TL_INLINE int tl_rounds_values(int32_t dtype) { return TL_NARROW && dtype != TL_BF16; }

TL_INLINE int tl_values_suits(const tlamp_problem *problem)
{
    return problem->policy->pv == (TL_NARROW ? TLAMP_PV_BF16 : TLAMP_PV_F32) && tl_is_few_rows(problem);
}

static void tl_values_lay_out_keys(tl_values *v, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    (void)shape;
    v->nonfinite = tl_take(a, keys / TL_PANEL * 2);
}

static void tl_values_lay_out_task(tl_values *v, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    (void)rows;
    const int64_t row = tl_rounds_values(shape->v_dtype) ? tl_round_up(shape->head_dim_v, TL_PANEL) : 0;
    v->rounded = tl_take(a, TL_VALUE_CHUNK * row * 4);
}

static int tl_value_is_nonfinite(const tl_operands *x, int64_t key)
{
    const tl_cpu *c = &x->cpu;
    const tl_operand *v = &c->call->v;
    const unsigned char *row = tl_row(v, c->seq->batch, c->seq->k_start, key, c->kv_head);
    const tl_v scale = tl_v_set(tl_value_scale(c->call, c->seq, c->kv_head, key));
    tl_v bad = tl_v_set(0.f);
    for (int32_t i = 0; i < x->dv; i += TL_LANES) {
        tl_v a = tl_load_lanes(row, i, x->dv - i, v->dtype);
        if (v->dtype == TL_I8) a = tl_v_mul(a, scale);
        bad = tl_v_fma(a, tl_v_set(0.f), bad); /* 0, or NaN for ever */
    }
    return tl_is_nan(tl_v_sum(bad));
}

/* V stays where it is. Keys that every row sees need no mark: their V goes into every row, whatever it is. */
static void tl_values_pack(const tl_operands *x, const tl_values *v, int64_t begin, int64_t end)
{
    for (int64_t key = begin; key < end; key += TL_PANEL) {
        const int64_t past = tl_min64(key + TL_PANEL, x->cpu.seq->lk);
        int32_t found = 0;
        if (!tl_all_see(&x->cpu.task, key, past))
            for (int64_t k = key; k < past; k++) found |= tl_value_is_nonfinite(x, k) << (k - key);
        v->nonfinite[(key - x->first) / TL_PANEL] = (uint16_t)found;
    }
}

/* ---- P */

TL_INLINE float tl_values_weigh(float *p, int32_t n, float ref) { return tl_weigh_as(TL_NARROW, p, n, ref); }
TL_INLINE float tl_values_weight(const float *p, int32_t j) { return p[j]; }

/* ---- register tiles: R rows by C vectors of channels, both constants where they are called */

/* Channels from c on, of which the last vector has `left`; n keys, whose rows begin at v. */
TL_INLINE void tl_value_tile(const int R, const int C, const int32_t dtype, const unsigned char *v, int64_t stride,
                             const float *scale, const float *p, int32_t n, int32_t c, const int32_t left, float *o,
                             int64_t o_stride)
{
    tl_v a[8][TL_MOST_VECTORS];
    o += c;
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < C; j++)
        a[i][j] = tl_v_load(o + i * o_stride + j * TL_LANES);
    TL_UNROLL_2 for (int32_t k = 0; k < n; k++, v += stride, p++)
    {
        tl_v b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < C; j++)
        {
            b[j] = tl_load_lanes(v, c + j * TL_LANES, left, dtype);
            if (dtype == TL_I8) b[j] = tl_v_mul(b[j], tl_v_set(scale[k]));
        }
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_v y = tl_v_set(p[i * TL_SCORE_STRIDE]);
            TL_UNROLL for (int j = 0; j < C; j++) a[i][j] = tl_v_fma(y, b[j], a[i][j]);
        }
    }
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < C; j++)
        tl_v_store(o + i * o_stride + j * TL_LANES, a[i][j]);
}

/* All channels: in tiles as wide as the registers allow, then ever half of that, then what is left of a vector. */
TL_INLINE void tl_value_tiles(const int R, const int32_t dtype, const unsigned char *v, int64_t stride,
                              const float *scale, const float *p, int32_t n, int32_t dv, float *o, int64_t o_stride,
                              tl_ahead *ahead)
{
    const int most = TL_FEW_TILE / R < TL_MOST_VECTORS ? TL_FEW_TILE / R : TL_MOST_VECTORS;
    const int32_t share = (n * most * TL_LANES + dv - 1) / dv; /* of the rows ahead for each tile */
    int32_t c = 0;
    for (; c + most * TL_LANES <= dv; c += most * TL_LANES) {
        tl_fetch_ahead(ahead, share);
        tl_value_tile(R, most, dtype, v, stride, scale, p, n, c, TL_LANES, o, o_stride);
    }
    tl_fetch_ahead(ahead, n);
    if (most > 4 && c + 4 * TL_LANES <= dv) {
        tl_value_tile(R, 4, dtype, v, stride, scale, p, n, c, TL_LANES, o, o_stride);
        c += 4 * TL_LANES;
    }
    if (most > 2 && c + 2 * TL_LANES <= dv) {
        tl_value_tile(R, 2, dtype, v, stride, scale, p, n, c, TL_LANES, o, o_stride);
        c += 2 * TL_LANES;
    }
    if (most > 1 && c + TL_LANES <= dv) {
        tl_value_tile(R, 1, dtype, v, stride, scale, p, n, c, TL_LANES, o, o_stride);
        c += TL_LANES;
    }
    if (c < dv) tl_value_tile(R, 1, dtype, v, stride, scale, p, n, c, dv - c, o, o_stride);
}

#define TL_VALUE_ROWS(dtype)                                                                                           \
    TL_CALL void tl_value_rows_##dtype(const tl_operands *x, int32_t rows, const float *p, const unsigned char *v,     \
                                       int64_t stride, const float *scale, int32_t n, float *o, tl_ahead *ahead)       \
    {                                                                                                                  \
        for (int32_t r = 0, m; r < rows; r += m, p += m * TL_SCORE_STRIDE, o += (int64_t)m * x->o_stride) {            \
            m = tl_few_tile(rows - r);                                                                                 \
            switch (m) {                                                                                               \
            case 8: tl_value_tiles(TL_FEW_TILE / 2, dtype, v, stride, scale, p, n, x->dv, o, x->o_stride, ahead);      \
                break;                                                                                                 \
            case 4: tl_value_tiles(4, dtype, v, stride, scale, p, n, x->dv, o, x->o_stride, ahead); break;             \
            case 2: tl_value_tiles(2, dtype, v, stride, scale, p, n, x->dv, o, x->o_stride, ahead); break;             \
            default: tl_value_tiles(1, dtype, v, stride, scale, p, n, x->dv, o, x->o_stride, ahead);                   \
            }                                                                                                          \
        }                                                                                                              \
    }
TL_VALUE_ROWS(TL_BF16)
TL_VALUE_ROWS(TL_F32)
#ifndef TL_NARROW_VALUES
TL_VALUE_ROWS(TL_F16)
TL_VALUE_ROWS(TL_I8)
#endif

/* The first n channels of a row from i on; what would round to Inf stays, as packing leaves it to tl_values_nonfinite. */
TL_INLINE tl_v tl_round_value(const unsigned char *row, int32_t i, int32_t n, tl_v scale, const int32_t dtype)
{
    tl_v a = tl_load_lanes(row, i, n, dtype);
    if (dtype == TL_I8) a = tl_v_mul(a, scale);
    const tl_v y = tl_v_round_bf16(a);
    return dtype == TL_F16 ? y : tl_v_pick(tl_m_less(tl_v_abs(y), tl_v_set(TL_INF)), y, a);
}

TL_INLINE void tl_round_values_from(const tl_operands *x, const tl_values *v, const unsigned char *row, int64_t stride,
                                    const float *scale, int32_t n, const int32_t dtype)
{
    float *to = v->rounded;
    for (int32_t k = 0; k < n; k++, row += stride, to += x->o_stride) {
        const tl_v factor = tl_v_set(dtype == TL_I8 ? scale[k] : 1.f);
        int32_t i = 0;
        for (; i + TL_LANES <= x->dv; i += TL_LANES)
            tl_v_store(to + i, tl_round_value(row, i, TL_LANES, factor, dtype));
        if (i < x->dv) tl_v_store(to + i, tl_round_value(row, i, x->dv - i, factor, dtype));
    }
}

static void tl_round_values(const tl_operands *x, const tl_values *v, const unsigned char *row, int64_t stride,
                            const float *scale, int32_t n)
{
    switch (x->cpu.call->v.dtype) {
    case TL_F32: tl_round_values_from(x, v, row, stride, scale, n, TL_F32); break;
    case TL_F16: tl_round_values_from(x, v, row, stride, scale, n, TL_F16); break;
    default: tl_round_values_from(x, v, row, stride, scale, n, TL_I8); break;
    }
}

/* n keys, at most TL_VALUE_CHUNK. */
static void tl_value_chunk(const tl_operands *x, const tl_values *values, int32_t rows, const float *p, int64_t key,
                           int32_t n, float *o)
{
    const tl_cpu *c = &x->cpu;
    const tl_operand *v = &c->call->v;
    const unsigned char *row = tl_row(v, c->seq->batch, c->seq->k_start, key, c->kv_head);
    int64_t stride = v->seq * tl_dtype_bytes(v->dtype);
    float scale[TL_VALUE_CHUNK];
    tl_ahead ahead = tl_ahead_of_values(x, key, n);
    for (int32_t k = 0; v->dtype == TL_I8 && k < n; k++)
        scale[k] = tl_value_scale(c->call, c->seq, c->kv_head, key + k);
    int32_t dtype = v->dtype;
    if (tl_rounds_values(dtype)) {
        tl_round_values(x, values, row, stride, scale, n);
        row = (const unsigned char *)values->rounded;
        stride = x->o_stride * 4;
        dtype = TL_F32;
    }
    switch (dtype) {
    case TL_F32: tl_value_rows_TL_F32(x, rows, p, row, stride, scale, n, o, &ahead); break;
#ifndef TL_NARROW_VALUES
    case TL_F16: tl_value_rows_TL_F16(x, rows, p, row, stride, scale, n, o, &ahead); break;
    case TL_I8: tl_value_rows_TL_I8(x, rows, p, row, stride, scale, n, o, &ahead); break;
#endif
    default: tl_value_rows_TL_BF16(x, rows, p, row, stride, scale, n, o, &ahead); break;
    }
}

/* How many of the keys from `at` on, at most n, lie before the next mark. */
TL_INLINE int32_t tl_unmarked(const tl_values *v, int64_t at, int32_t n)
{
    int32_t i = 0;
    while (i < n && !(v->nonfinite[(at + i) / TL_PANEL] >> (at + i) % TL_PANEL & 1))
        i += v->nonfinite[(at + i) / TL_PANEL] ? 1 : TL_PANEL - (int32_t)((at + i) % TL_PANEL);
    return i < n ? i : n;
}

/* P is 0 where no key is; V ends there. */
static void tl_values_run(const tl_operands *x, const tl_values *v, int32_t rows, const float *p, int64_t at, int32_t n,
                          float *o)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = x->first + at;
    const int32_t keys = tl_least(n, c->seq->lk - key);
    for (int32_t i = 0; i < keys;) {
        const int32_t m = tl_unmarked(v, at + i, tl_least(TL_VALUE_CHUNK, keys - i));
        if (m > 0) tl_value_chunk(x, v, rows, p + i, key + i, m, o);
        i += m > 0 ? m : 1; /* a mark */
    }
}
