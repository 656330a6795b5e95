/* High products from K as it lies in the tensor, for tasks of few rows: packing a key would cost more than multiplying with
 * it. Every score is TL_LANES chains of fma over the channels, whose sums tl_v_sums adds in one order, whatever register tile
 * it is part of. */
#include "simd/in_place.h"

typedef struct {
    const unsigned char *key; /* the KV head's first */
    int64_t stride;           /* bytes from one key to the next */
} tl_high;

TL_INLINE int tl_high_suits(const tlamp_problem *problem) { return tl_is_few_rows(problem); }

TL_INLINE void tl_high_lay_out_keys(tl_high *h, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    (void)h;
    (void)shape;
    (void)keys;
    (void)a;
}

TL_INLINE void tl_high_lay_out_task(tl_high *h, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    (void)h;
    (void)shape;
    (void)rows;
    (void)a;
}

TL_INLINE void tl_high_pack(const tl_operands *x, const tl_high *h, int64_t begin, int64_t end)
{
    (void)x;
    (void)h;
    (void)begin;
    (void)end;
}

TL_INLINE void tl_high_begin(const tl_operands *x, tl_high *h)
{
    const tl_operand *k = &x->cpu.call->k;
    h->key = tl_row(k, x->cpu.seq->batch, x->cpu.seq->k_start, 0, x->cpu.kv_head);
    h->stride = k->seq * tl_dtype_bytes(k->dtype);
}

/* ---- register tiles: R rows by N keys, both constants where they are called */

/* One panel of keys as it is multiplied. */
typedef struct {
    const unsigned char *key[TL_PANEL];
    float scale[TL_PANEL]; /* of codes of the caller's that stand for numbers */
    float inverse;         /* of the scale that numbers are quantised by */
    int32_t used;          /* keys that exist */
    tl_ahead ahead;        /* what is read next */
} tl_key_panel;

/* What keys are multiplied as: their numbers, or the INT8 codes that they are or become, which floats hold exactly. */
enum { TL_AS_NUMBERS, TL_AS_CODES };

/* Channels [c, c + n) of the tile, n at most TL_LANES. */
TL_INLINE void tl_score_step(const int R, const int N, const int32_t dtype, const int as, const float *q,
                             int64_t q_stride, const unsigned char *const *k, const float *scale, tl_v inverse,
                             int32_t c, int32_t n, tl_v *a)
{
    tl_v b[TL_LANES];
    TL_UNROLL for (int j = 0; j < N; j++)
    {
        b[j] = tl_load_lanes(k[j], c, n, dtype);
        if (dtype == TL_I8 && as == TL_AS_NUMBERS) b[j] = tl_v_mul(b[j], tl_v_set(scale[j]));
        if (dtype != TL_I8 && as == TL_AS_CODES) b[j] = tl_v_round(tl_v_mul(b[j], inverse));
    }
    TL_UNROLL for (int i = 0; i < R; i++)
    {
        const tl_v y = tl_v_load(q + i * q_stride + c);
        TL_UNROLL for (int j = 0; j < N; j++) a[i * N + j] = tl_v_fma(y, b[j], a[i * N + j]);
    }
}

/* How the channels are walked: two vectors at a time, then one, then what is left of one. */
typedef struct {
    int32_t pairs, vectors, d; /* channels of the pairs; of whole vectors; all */
} tl_walk;

TL_INLINE void tl_score_chains(const int R, const int N, const int32_t dtype, const int as, const float *q,
                               int64_t q_stride, tl_walk w, const unsigned char *const *k, const float *scale,
                               tl_v inverse, tl_v *a)
{
    int32_t c = 0;
    TL_UNROLL for (int i = 0; i < R * N; i++) a[i] = tl_v_set(0.f);
    for (; c < w.pairs; c += 2 * TL_LANES) {
        tl_score_step(R, N, dtype, as, q, q_stride, k, scale, inverse, c, TL_LANES, a);
        tl_score_step(R, N, dtype, as, q, q_stride, k, scale, inverse, c + TL_LANES, TL_LANES, a);
    }
    if (c < w.vectors) tl_score_step(R, N, dtype, as, q, q_stride, k, scale, inverse, c, TL_LANES, a);
    if (w.vectors < w.d) tl_score_step(R, N, dtype, as, q, q_stride, k, scale, inverse, w.vectors, w.d - w.vectors, a);
}

/* factor * q . k of R rows and one panel, TL_LANES scores at a time: of as many keys as that makes, TL_FEW_KEYS of them side
 * by side. Scores of keys that do not exist stay as they are. */
TL_INLINE void tl_score_panel(const int R, const int32_t dtype, const int as, const float *q, int64_t q_stride,
                              int32_t d, float factor, tl_key_panel *p, float *s)
{
    const int keys = TL_LANES / R, n = keys < TL_FEW_KEYS ? keys : TL_FEW_KEYS;
    const tl_walk w = {d / (2 * TL_LANES) * (2 * TL_LANES), d / TL_LANES * TL_LANES, d};
    const tl_v inverse = tl_v_set(as == TL_AS_CODES ? p->inverse : 1.f);
    for (int32_t j = 0; j < p->used; j += keys) {
        tl_v a[TL_LANES];
        float t[TL_LANES];
        tl_fetch_ahead(&p->ahead, keys);
        TL_UNROLL for (int i = 0; i < keys; i += n)
            tl_score_chains(R, n, dtype, as, q, q_stride, w, p->key + j + i, p->scale + j + i, inverse, a + R * i);
        tl_v_store(t, tl_v_mul(tl_v_sums(a), tl_v_set(factor)));
        TL_UNROLL for (int i = 0; i < R; i++)
            memcpy(s + i * TL_SCORE_STRIDE + j, t + i * keys, sizeof *t * (size_t)keys);
    }
}

#define TL_SCORE_PANELS(name, dtype, as)                                                                               \
    TL_CALL void name(const float *q, int64_t q_stride, int32_t rows, int32_t d, float factor, tl_key_panel *p,        \
                      float *s)                                                                                        \
    {                                                                                                                  \
        for (int32_t n; rows > 0; rows -= n, q += n * q_stride, s += n * TL_SCORE_STRIDE) {                            \
            n = tl_few_tile(rows);                                                                                     \
            switch (n) {                                                                                               \
            case 8: tl_score_panel(TL_FEW_TILE / 2, dtype, as, q, q_stride, d, factor, p, s); break;                   \
            case 4: tl_score_panel(4, dtype, as, q, q_stride, d, factor, p, s); break;                                 \
            case 2: tl_score_panel(2, dtype, as, q, q_stride, d, factor, p, s); break;                                 \
            default: tl_score_panel(1, dtype, as, q, q_stride, d, factor, p, s);                                       \
            }                                                                                                          \
        }                                                                                                              \
    }
TL_SCORE_PANELS(tl_number_panel_f32, TL_F32, TL_AS_NUMBERS)
TL_SCORE_PANELS(tl_number_panel_f16, TL_F16, TL_AS_NUMBERS)
TL_SCORE_PANELS(tl_number_panel_bf16, TL_BF16, TL_AS_NUMBERS)
TL_SCORE_PANELS(tl_number_panel_i8, TL_I8, TL_AS_NUMBERS)

/* The rows of 16 keys, and what follows them. What stands for keys that do not exist is never seen. */
TL_INLINE void tl_take_keys(const tl_operands *x, const tl_high *h, int64_t key, tl_key_panel *p)
{
    const unsigned char *row = h->key + key * h->stride;
    p->used = tl_least(TL_PANEL, x->cpu.seq->lk - key);
    for (int32_t i = 0; i < TL_PANEL; i++) {
        p->key[i] = row;
        if (i + 1 < p->used) row += h->stride;
    }
    p->ahead = tl_ahead_of_keys(x, key, TL_PANEL);
}

static void tl_high_scores(const tl_operands *x, const tl_high *h, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = x->first + at;
    const float *q = x->q + (int64_t)row * x->q_stride;
    for (int32_t j = 0; j < n; j += TL_PANEL, s += TL_PANEL) {
        tl_key_panel p;
        tl_take_keys(x, h, key + j, &p);
        for (int32_t i = 0; c->call->k.dtype == TL_I8 && i < TL_PANEL; i++)
            p.scale[i] = tl_key_scale(c->call, c->seq, c->kv_head, tl_min64(key + j + i, c->seq->lk - 1));
        switch (c->call->k.dtype) {
        case TL_F32: tl_number_panel_f32(q, x->q_stride, rows, x->d, x->factor, &p, s); break;
        case TL_F16: tl_number_panel_f16(q, x->q_stride, rows, x->d, x->factor, &p, s); break;
        case TL_BF16: tl_number_panel_bf16(q, x->q_stride, rows, x->d, x->factor, &p, s); break;
        default: tl_number_panel_i8(q, x->q_stride, rows, x->d, x->factor, &p, s); break;
        }
    }
}
