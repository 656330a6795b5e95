/* Scores for a unit of tile products, which leaves the vector units free but does not run beside them: products of a row block
 * and as many columns as stay in the first cache come first, then vectors make scores of them, row by row. Where the rows'
 * references are known beforehand (they seldom move, and those of rows that have seen nothing will be the largest score), they
 * make weights at once: then scores never leave the cache.
 *
 * Whichever way is taken, a row's bits are the same: weights are summed by pairs of neighbouring panels. */
#ifndef TL_CPU_SIMD_CHUNKS_H
#define TL_CPU_SIMD_CHUNKS_H

#include "simd/operands.h"

enum {
    TL_CHUNK_COLUMNS = 4 * TL_BLOCK_COLUMNS,
    TL_CHUNK_STRIDE = TL_CHUNK_COLUMNS + TL_PANEL /* no power of two: rows would crowd a few cache sets */
};

typedef struct {
    float products[TL_ROWS * TL_CHUNK_STRIDE];
    float top[TL_ROWS][TL_LANES], sum[TL_ROWS][TL_LANES]; /* so far, by lanes; NaN is no top */
} tl_chunk_space;

/* Columns [begin, begin + cols) of a span, all of one route, whose products are there. */
typedef struct {
    const float *block; /* of the first row and column; it may be where scores go */
    int64_t stride;     /* from one row to the next */
    int32_t rows, begin, cols;
    int32_t seen;                            /* columns that rows see; the others become -Inf */
    const float *q_scale, *q_mean, *k_scale; /* of INT8: each row's and column's; k_scale NULL: high */
    float factor;                            /* of high ones */
} tl_chunk;

/* What a row multiplies with. */
typedef struct {
    tl_v scale, mean;
} tl_chunk_row;

TL_INLINE tl_chunk_row tl_chunk_row_of(const int int8, const tl_chunk *c, int32_t r)
{
    tl_chunk_row row = {tl_v_set(int8 ? c->q_scale[r] : c->factor), tl_v_set(int8 ? c->q_mean[r] : 0.f)};
    return row;
}

/* Scores of columns j .. j + 15 of the chunk; tail: perhaps not all are seen. int8, tail: constants where it is called. */
TL_INLINE tl_v tl_chunk_scores(const int int8, const int tail, const tl_chunk *c, tl_chunk_row row,
                               const float *products, int32_t j)
{
    tl_v a = int8 ? tl_v_fma(tl_v_from_int(tl_vi_load(products + j)), tl_v_mul(row.scale, tl_v_load(c->k_scale + j)),
                             row.mean)
                  : tl_v_mul(tl_v_load(products + j), row.scale);
    if (tail) a = tl_v_pick(tl_m_first(c->seen - j), a, tl_v_set(-TL_INF));
    return a;
}

/* The rows' largest scores, by lanes. */
TL_INLINE void tl_chunk_tops_of(const int int8, const tl_chunk *c, tl_chunk_space *space)
{
    const int32_t whole = tl_least(c->seen, c->cols) / TL_PANEL * TL_PANEL;
    for (int32_t r = 0; r < c->rows; r++) {
        const float *products = c->block + r * c->stride;
        const tl_chunk_row row = tl_chunk_row_of(int8, c, r);
        tl_v top = tl_v_load(space->top[r]);
        int32_t j = 0;
        for (; j < whole; j += TL_PANEL) top = tl_v_max(tl_chunk_scores(int8, 0, c, row, products, j), top);
        for (; j < c->cols; j += TL_PANEL) top = tl_v_max(tl_chunk_scores(int8, 1, c, row, products, j), top);
        tl_v_store(space->top[r], top);
    }
}

TL_CALL void tl_chunk_tops(const tl_chunk *c, tl_chunk_space *space)
{
    if (c->k_scale)
        tl_chunk_tops_of(1, c, space);
    else
        tl_chunk_tops_of(0, c, space);
}

/* Two panels from column j on of a row, of which there may be one; m: the row's reference. */
TL_INLINE void tl_chunk_pair(const int int8, const int weigh, const int tail, const tl_chunk *c, tl_chunk_row row,
                             const float *products, int32_t j, tl_v m, float *s, tl_v *top, tl_v *sum)
{
    const int two = !tail || j + TL_PANEL < c->cols;
    tl_v a = tl_chunk_scores(int8, tail, c, row, products, j), b = tl_v_set(-TL_INF);
    if (two) b = tl_chunk_scores(int8, tail, c, row, products, j + TL_PANEL);
    *top = tl_v_max(b, tl_v_max(a, *top));
    if (weigh) {
        a = tl_values_exp2(tl_v_sub(a, m));
        b = tl_values_exp2(tl_v_sub(b, m));
        tl_values_put(s, c->begin + j, a, b);
        *sum = tl_v_add(*sum, tl_v_add(a, b));
    } else {
        tl_v_store(s + c->begin + j, a);
        if (two) tl_v_store(s + c->begin + j + TL_PANEL, b);
    }
}

/* Scores, or with the rows' references weights, into the rows of s. */
TL_INLINE void tl_chunk_rows_of(const int int8, const int weigh, const tl_chunk *c, tl_chunk_space *space,
                                const float *refs, float *s)
{
    const int32_t whole = tl_least(c->seen, c->cols) / TL_BLOCK_COLUMNS * TL_BLOCK_COLUMNS;
    for (int32_t r = 0; r < c->rows; r++, s += TL_SCORE_STRIDE) {
        const float *products = c->block + r * c->stride;
        const tl_chunk_row row = tl_chunk_row_of(int8, c, r);
        const tl_v m = tl_v_set(weigh ? refs[r] : 0.f);
        tl_v top = tl_v_load(space->top[r]), sum = tl_v_load(space->sum[r]);
        int32_t j = 0;
        for (; j < whole; j += TL_BLOCK_COLUMNS) tl_chunk_pair(int8, weigh, 0, c, row, products, j, m, s, &top, &sum);
        for (; j < c->cols; j += TL_BLOCK_COLUMNS) tl_chunk_pair(int8, weigh, 1, c, row, products, j, m, s, &top, &sum);
        tl_v_store(space->top[r], top);
        tl_v_store(space->sum[r], sum);
    }
}

/* refs NULL: scores. */
TL_CALL void tl_chunk_rows(const tl_chunk *c, tl_chunk_space *space, const float *refs, float *s)
{
    if (c->k_scale && refs)
        tl_chunk_rows_of(1, 1, c, space, refs, s);
    else if (c->k_scale)
        tl_chunk_rows_of(1, 0, c, space, refs, s);
    else if (refs)
        tl_chunk_rows_of(0, 1, c, space, refs, s);
    else
        tl_chunk_rows_of(0, 0, c, space, refs, s);
}

#endif
