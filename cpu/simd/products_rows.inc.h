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

/* Channels [c, c + n) of the tile, n at most TL_LANES. */
TL_INLINE void tl_score_step(const int R, const int N, const int32_t dtype, const float *q, int64_t q_stride,
                             const unsigned char *const *k, const float *scale, int32_t c, int32_t n, tl_v *a)
{
    tl_v b[TL_LANES];
    TL_UNROLL for (int j = 0; j < N; j++)
    {
        b[j] = tl_load_lanes(k[j], c, n, dtype);
        if (dtype == TL_I8) b[j] = tl_v_mul(b[j], tl_v_set(scale[j]));
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

TL_INLINE void tl_score_chains(const int R, const int N, const int32_t dtype, const float *q, int64_t q_stride,
                               tl_walk w, const unsigned char *const *k, const float *scale, tl_v *a)
{
    int32_t c = 0;
    TL_UNROLL for (int i = 0; i < R * N; i++) a[i] = tl_v_set(0.f);
    for (; c < w.pairs; c += 2 * TL_LANES) {
        tl_score_step(R, N, dtype, q, q_stride, k, scale, c, TL_LANES, a);
        tl_score_step(R, N, dtype, q, q_stride, k, scale, c + TL_LANES, TL_LANES, a);
    }
    if (c < w.vectors) tl_score_step(R, N, dtype, q, q_stride, k, scale, c, TL_LANES, a);
    if (w.vectors < w.d) tl_score_step(R, N, dtype, q, q_stride, k, scale, w.vectors, w.d - w.vectors, a);
}

/* R rows by one panel, TL_LANES scores at a time: of as many keys as that makes, TL_FEW_KEYS of them side by side. */
TL_INLINE void tl_score_panel(const int R, const int32_t dtype, const tl_operands *x, int32_t row,
                              const unsigned char *const *k, const float *scale, float *s)
{
    const int keys = TL_LANES / R, n = keys < TL_FEW_KEYS ? keys : TL_FEW_KEYS;
    const int32_t pairs = x->d / (2 * TL_LANES) * (2 * TL_LANES), vectors = x->d / TL_LANES * TL_LANES;
    const tl_walk w = {pairs, vectors, x->d};
    const float *q = x->q + (int64_t)row * x->q_stride;
    const tl_v factor = tl_v_set(x->factor);
    for (int32_t j = 0; j < TL_PANEL; j += keys) {
        tl_v a[TL_LANES];
        float t[TL_LANES];
        TL_UNROLL for (int i = 0; i < keys; i += n)
            tl_score_chains(R, n, dtype, q, x->q_stride, w, k + j + i, scale + j + i, a + R * i);
        tl_v_store(t, tl_v_mul(tl_v_sums(a), factor));
        TL_UNROLL for (int i = 0; i < R; i++)
            memcpy(s + i * TL_SCORE_STRIDE + j, t + i * keys, sizeof *t * (size_t)keys);
    }
}

#define TL_SCORE_PANELS(dtype)                                                                                         \
    TL_CALL void tl_score_panels_##dtype(const tl_operands *x, int32_t row, int32_t rows,                              \
                                         const unsigned char *const *k, const float *scale, float *s)                  \
    {                                                                                                                  \
        for (int32_t r = 0, n; r < rows; r += n) {                                                                     \
            n = tl_few_tile(rows - r);                                                                                 \
            float *to = s + r * TL_SCORE_STRIDE;                                                                       \
            switch (n) {                                                                                               \
            case 8: tl_score_panel(TL_FEW_TILE / 2, dtype, x, row + r, k, scale, to); break;                           \
            case 4: tl_score_panel(4, dtype, x, row + r, k, scale, to); break;                                         \
            case 2: tl_score_panel(2, dtype, x, row + r, k, scale, to); break;                                         \
            default: tl_score_panel(1, dtype, x, row + r, k, scale, to);                                               \
            }                                                                                                          \
        }                                                                                                              \
    }
TL_SCORE_PANELS(TL_F32)
TL_SCORE_PANELS(TL_F16)
TL_SCORE_PANELS(TL_BF16)
TL_SCORE_PANELS(TL_I8)

/* The rows of 16 keys. What stands for keys that do not exist is never seen. */
TL_INLINE void tl_key_rows(const tl_operands *x, const tl_high *h, int64_t key, const unsigned char *k[TL_PANEL],
                           float scale[TL_PANEL])
{
    const tl_cpu *c = &x->cpu;
    const unsigned char *p = h->key + key * h->stride;
    const int32_t used = tl_least(TL_PANEL, c->seq->lk - key);
    for (int32_t i = 0; i < TL_PANEL; i++) {
        k[i] = p;
        if (i + 1 < used) p += h->stride;
    }
    for (int32_t i = 0; c->call->k.dtype == TL_I8 && i < TL_PANEL; i++)
        scale[i] = tl_key_scale(c->call, c->seq, c->kv_head, key + (i < used ? i : used - 1));
}

static void tl_high_scores(const tl_operands *x, const tl_high *h, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = x->first + at;
    for (int32_t j = 0; j < n; j += TL_PANEL, s += TL_PANEL) {
        const unsigned char *k[TL_PANEL];
        float scale[TL_PANEL];
        tl_key_rows(x, h, key + j, k, scale);
        if (j + TL_PANEL < n)
            tl_prefetch_rows(c, &c->call->k, x->d, key + j + TL_PANEL, TL_PANEL, 0);
        else
            tl_prefetch_rows(c, &c->call->v, x->dv, key, TL_PANEL, 1);
        switch (c->call->k.dtype) {
        case TL_F32: tl_score_panels_TL_F32(x, row, rows, k, scale, s); break;
        case TL_F16: tl_score_panels_TL_F16(x, row, rows, k, scale, s); break;
        case TL_BF16: tl_score_panels_TL_BF16(x, row, rows, k, scale, s); break;
        default: tl_score_panels_TL_I8(x, row, rows, k, scale, s); break;
        }
    }
}
