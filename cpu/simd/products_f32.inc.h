/* High products in f32, from any type of Q and K: [keys / 16][d][16] floats. Every score is one chain of fma in the order of
 * channels, whatever register tile it is part of. */
#include "simd/operands.h"

typedef struct {
    float *keys;
} tl_high;

TL_INLINE int tl_high_suits(const tlamp_problem *problem)
{
    (void)problem;
    return 1;
}

static void tl_high_lay_out_keys(tl_high *h, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    h->keys = tl_take(a, shape->high ? keys * shape->head_dim_qk * 4 : 0);
}

TL_INLINE void tl_high_lay_out_task(tl_high *h, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    (void)h;
    (void)shape;
    (void)rows;
    (void)a;
}

TL_INLINE void tl_high_begin(const tl_operands *x, tl_high *h) /* x->q serves */
{
    (void)x;
    (void)h;
}

/* ---- packing */

/* 16 keys, straight from the tensor. */
TL_INLINE void tl_pack_high_from(const tl_operands *x, const tl_high *h, int64_t key, const int32_t dtype)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    const unsigned char *rows[TL_PANEL];
    float *panel = h->keys + (key - x->first) * x->d, scale[TL_PANEL];
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int64_t k = tl_min64(key + j, seq->lk - 1); /* what stands for keys that do not exist is never seen */
        rows[j] = tl_row(&call->k, seq->batch, seq->k_start, k, x->cpu.kv_head);
        scale[j] = tl_key_scale(call, seq, x->cpu.kv_head, k);
    }
    for (int32_t c = 0; c < x->d; c += TL_LANES)
        for (int32_t j = 0; j < TL_PANEL; j += TL_LANES) {
            tl_v square[TL_LANES];
            TL_UNROLL for (int i = 0; i < TL_LANES; i++)
            {
                square[i] = tl_load_lanes(rows[j + i], c, x->d - c, dtype);
                if (dtype == TL_I8) square[i] = tl_v_mul(square[i], tl_v_set(scale[j + i]));
            }
            tl_store_square(panel, c, x->d, j, square);
        }
}

static void tl_high_pack(const tl_operands *x, const tl_high *h, int64_t begin, int64_t end)
{
    for (int64_t key = begin; key < end; key += TL_PANEL) switch (x->cpu.call->k.dtype) {
        case TL_F32: tl_pack_high_from(x, h, key, TL_F32); break;
        case TL_F16: tl_pack_high_from(x, h, key, TL_F16); break;
        case TL_BF16: tl_pack_high_from(x, h, key, TL_BF16); break;
        default: tl_pack_high_from(x, h, key, TL_I8); break;
        }
}

/* ---- register tiles: R rows by P panels, both constants where they are called */

TL_INLINE void tl_high_tile(const int R, const int P, const tl_operands *x, const tl_high *h, int32_t row, int64_t at,
                            float *s)
{
    const int vectors = P * TL_PARTS;
    const float *q = x->q + (int64_t)row * x->q_stride, *k = h->keys + at * x->d;
    const int64_t q_stride = x->q_stride, panel = (int64_t)x->d * TL_PANEL;
    tl_v a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_v_set(0.f);
    TL_UNROLL_4 for (int32_t c = 0, d = x->d; c < d; c++, k += TL_PANEL, q++)
    {
        tl_v b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < vectors; j++)
            b[j] = tl_v_load(k + j / TL_PARTS * panel + j % TL_PARTS * TL_LANES);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_v y = tl_v_set(q[i * q_stride]);
            TL_UNROLL for (int j = 0; j < vectors; j++) a[i][j] = tl_v_fma(y, b[j], a[i][j]);
        }
    }
    const tl_v factor = tl_v_set(x->factor);
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < vectors; j++)
        tl_v_store(s + i * TL_SCORE_STRIDE + j * TL_LANES, tl_v_mul(a[i][j], factor));
}

enum {
    TL_QK_ROWS = TL_TILE_ROWS,
    TL_QK_PANELS = TL_TILE_PANELS,
    TL_QK4_PANELS = TL_TILE4_PANELS,
    TL_QK2_PANELS = TL_TILE2_PANELS,
    TL_QK1_PANELS = TL_TILE1_PANELS
};
#include "simd/walk_high.inc.h"
