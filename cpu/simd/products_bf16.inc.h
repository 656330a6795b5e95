/* High products of bf16 Q and K: [keys / 16][d / 2][16] pairs of channels. Products are exact; every score is one chain of
 * additions in the order of channels, whatever register tile it is part of. */
#include "simd/operands.h"

typedef struct {
    uint16_t *keys;
    uint16_t *q;   /* [rows][2 * units] */
    int32_t units; /* pairs of a token; an odd channel is joined by 0 */
} tl_high;

TL_INLINE int tl_high_suits(const tlamp_problem *problem)
{
    return problem->q_dtype == TLAMP_BF16 && problem->k_dtype == TLAMP_BF16;
}

static void tl_high_lay_out_keys(tl_high *h, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    h->keys = tl_take(a, shape->high ? keys * tl_ceil_div(shape->head_dim_qk, 2) * 4 : 0);
}

static void tl_high_lay_out_task(tl_high *h, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    h->units = (int32_t)tl_ceil_div(shape->head_dim_qk, 2);
    h->q = tl_take(a, shape->high ? rows * h->units * 4 : 0);
}

static void tl_high_begin(const tl_operands *x, tl_high *h)
{
    const tl_cpu *c = &x->cpu;
    const size_t bytes = sizeof *h->q * (size_t)x->d;
    for (int32_t r = 0, rows = tl_task_rows(&c->task); r < rows; r++) {
        uint16_t *to = h->q + (int64_t)r * 2 * h->units;
        to[2 * h->units - 1] = 0;
        memcpy(to, tl_row(&c->call->q, c->seq->batch, c->seq->q_start, tl_token_of(c, r), tl_head_of(c, r)), bytes);
    }
}

/* ---- packing */

static void tl_high_pack(const tl_operands *x, const tl_high *h, int64_t begin, int64_t end)
{
    const tl_sequence *seq = x->cpu.seq;
    for (int64_t key = begin; key < end; key += TL_PANEL) {
        float *panel = (float *)(void *)(h->keys + (key - x->first) * 2 * h->units); /* in fact: pairs */
        for (int32_t u = 0; u < h->units; u += TL_LANES)
            for (int32_t j = 0; j < TL_PANEL; j += TL_LANES) {
                tl_v square[TL_LANES];
                TL_UNROLL for (int i = 0; i < TL_LANES; i++)
                {
                    const int64_t k = tl_min64(key + j + i, seq->lk - 1); /* what stands for no key is never seen */
                    const void *row = tl_row(&x->cpu.call->k, seq->batch, seq->k_start, k, x->cpu.kv_head);
                    square[i] = (tl_v)tl_pairs_load_part((const uint16_t *)row + 2 * u, x->d - 2 * u);
                }
                tl_store_square(panel, u, h->units, j, square);
            }
    }
}

/* ---- register tiles: R rows by P panels, both constants where they are called */

TL_INLINE void tl_high_tile(const int R, const int P, const tl_operands *x, const tl_high *h, int32_t row, int64_t at,
                            float *s)
{
    const int64_t width = 2 * (int64_t)h->units, panel = width * TL_PANEL;
    const uint16_t *q = h->q + row * width, *k = h->keys + at * width;
    tl_v a[TL_MOST_ROWS][TL_MOST_VECTORS];
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < P; j++) a[i][j] = tl_v_set(0.f);
    for (int32_t u = 0, units = h->units; u < units; u++, k += 2 * TL_PANEL, q += 2) {
        tl_pairs b[TL_MOST_VECTORS];
        TL_UNROLL for (int j = 0; j < P; j++) b[j] = tl_pairs_load(k + j * panel);
        TL_UNROLL for (int i = 0; i < R; i++)
        {
            const tl_pairs y = tl_pairs_set(q + i * width);
            TL_UNROLL for (int j = 0; j < P; j++) a[i][j] = tl_pairs_dot(a[i][j], y, b[j]);
        }
    }
    const tl_v factor = tl_v_set(x->factor);
    TL_UNROLL for (int i = 0; i < R; i++) TL_UNROLL for (int j = 0; j < P; j++)
        tl_v_store(s + i * TL_SCORE_STRIDE + j * TL_LANES, tl_v_mul(a[i][j], factor));
}

enum {
    TL_QK_ROWS = TL_PAIR_ROWS,
    TL_QK_PANELS = TL_PAIR_PANELS,
    TL_QK4_PANELS = TL_PAIR4_PANELS,
    TL_QK2_PANELS = TL_PAIR2_PANELS,
    TL_QK1_PANELS = TL_PAIR1_PANELS
};
#include "simd/walk_high.inc.h"
