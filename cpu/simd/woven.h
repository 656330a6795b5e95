/* A unit for tile products leaves the vector units free. So a row block's products are made by blocks of at most 32 by 32, in
 * two that take turns, and while one is made, the vector units make scores of the one before it. Where the rows' references
 * are known beforehand (they seldom move), they make weights at once: then scores never leave the first cache.
 *
 * Whichever way is taken, a row's bits are the same: weights are summed by pairs of neighbouring panels. */
#ifndef TL_CPU_SIMD_WOVEN_H
#define TL_CPU_SIMD_WOVEN_H

#include "simd/operands.h"

struct tl_woven {
    _Alignas(
        64) float blocks[2][4 *
                            TL_BLOCK_TILE]; /* tiles: rows 0 to 15 with columns 0 to 15 and 16 to 31, then the others */
    float top[TL_ROWS][TL_LANES], sum[TL_ROWS][TL_LANES]; /* so far, by lanes; NaN is no top */

    /* The block whose products are there. */
    const float *block;
    int32_t rows, cols, done;                /* done: rows that are */
    int32_t column;                          /* where it begins in the span */
    float *s;                                /* the scores or weights of its first row */
    const float *guess;                      /* the rows' references; NULL: scores are wanted */
    const float *q_scale, *q_mean, *k_scale; /* of INT8: each row's and column's; NULL: high */
    float factor;                            /* of high ones */
};

/* Rows [begin, end) of the block. int8, guess, two (column tiles): constants where it is called. */
TL_INLINE void tl_weave_rows(const int int8, const int guess, const int two, tl_woven *w, int32_t begin, int32_t end)
{
    const tl_v never = tl_v_set(-TL_INF), factor = tl_v_set(w->factor);
    const tl_v k_scale0 = int8 ? tl_v_load(w->k_scale) : factor;
    const tl_v k_scale1 = int8 && two ? tl_v_load(w->k_scale + TL_PANEL) : factor;
    for (int32_t r = begin; r < end; r++) {
        const float *from = w->block + r / TL_PANEL * 2 * TL_BLOCK_TILE + r % TL_PANEL * TL_PANEL;
        float *to = w->s + r * TL_SCORE_STRIDE;
        tl_v a, b = never;
        if (int8) {
            const tl_v scale = tl_v_set(w->q_scale[r]), mean = tl_v_set(w->q_mean[r]);
            a = tl_v_fma(tl_v_from_int(tl_vi_load(from)), tl_v_mul(scale, k_scale0), mean);
            if (two) b = tl_v_fma(tl_v_from_int(tl_vi_load(from + TL_BLOCK_TILE)), tl_v_mul(scale, k_scale1), mean);
        } else {
            a = tl_v_mul(tl_v_load(from), factor);
            if (two) b = tl_v_mul(tl_v_load(from + TL_BLOCK_TILE), factor);
        }
        tl_v top = tl_v_max(a, tl_v_load(w->top[r]));
        if (two) top = tl_v_max(b, top);
        tl_v_store(w->top[r], top);
        if (guess) {
            const tl_v m = tl_v_set(w->guess[r]);
            a = tl_values_exp2(tl_v_sub(a, m));
            b = two ? tl_values_exp2(tl_v_sub(b, m)) : tl_v_set(0.f);
            tl_values_put(to, w->column, a, b);
            tl_v_store(w->sum[r], tl_v_add(tl_v_load(w->sum[r]), tl_v_add(a, b)));
        } else {
            tl_v_store(to + w->column, a);
            if (two) tl_v_store(to + w->column + TL_PANEL, b);
        }
    }
}

TL_INLINE void tl_weave_kind(const int int8, const int guess, tl_woven *w, int32_t begin, int32_t end)
{
    if (w->cols > TL_PANEL)
        tl_weave_rows(int8, guess, 1, w, begin, end);
    else
        tl_weave_rows(int8, guess, 0, w, begin, end);
}

TL_CALL void tl_weave_some(tl_woven *w, int32_t rows)
{
    const int32_t begin = w->done, end = tl_least(begin + rows, w->rows);
    w->done = end;
    if (w->k_scale && w->guess)
        tl_weave_kind(1, 1, w, begin, end);
    else if (w->k_scale)
        tl_weave_kind(1, 0, w, begin, end);
    else if (w->guess)
        tl_weave_kind(0, 1, w, begin, end);
    else
        tl_weave_kind(0, 0, w, begin, end);
}

TL_SHARED void tl_weave(tl_woven *w, int32_t steps)
{
    if (w->done < w->rows) tl_weave_some(w, (w->rows + steps - 1) / steps);
}

#endif
