/* INT8 products by AMX: the packed form is a sequence of tiles B already, [keys / 16][d / 64] of them, and rows of codes are
 * rows of A. Sums are exact. X3 is three of them. */
#include "simd/operand_int8.inc.h"

TL_INLINE int tl_int8_suits(const tlamp_problem *problem)
{
    (void)problem;
    return 1;
}

/* The products of one plane of Q and one of K are added. */
TL_INLINE void tl_int8_product(const int two_rows, const int two_columns, const tl_operands *x, const tl_int8 *z,
                               const tl_qcode *q, const tl_qcode *k, int32_t row, int64_t at)
{
    const int64_t stride = z->code_stride, next = (int64_t)z->units * TL_PANEL * TL_CODES;
    q += row * stride;
    k += at / TL_PANEL * next;
    for (int32_t u = 0; u < z->units; u += TL_CODE_UNITS) {
        tl_tiles_a(two_rows, q, stride, TL_PANEL * stride);
        tl_tiles_b(two_columns, k, next);
        tl_tiles_dot_bytes(two_rows, two_columns);
        q += TL_CODE_UNITS * TL_CODES;
        k += TL_TILE_BYTES;
        tl_weave(x->woven);
    }
}

/* The sums so far are worth TL_PLANE_STEPS times what is to come. */
TL_INLINE void tl_int8_raise(const int two_rows, const int two_columns, float *s)
{
    tl_tiles_store(two_rows, two_columns, s, TL_SCORE_STRIDE);
    for (int32_t r = 0; r < (two_rows ? 2 : 1) * TL_PANEL; r++)
        TL_UNROLL for (int j = 0; j < (two_columns ? 2 : 1); j++)
        {
            float *to = s + r * TL_SCORE_STRIDE + j * TL_LANES;
            tl_vi_store(to, tl_vi_mul(tl_vi_load(to), tl_vi_set(TL_PLANE_STEPS)));
        }
    tl_tiles_load(two_rows, two_columns, s, TL_SCORE_STRIDE);
}

TL_INLINE void tl_int8_block(const int planes, const int two_rows, const int two_columns, const tl_operands *x,
                             const tl_int8 *z, int32_t row, int64_t at, float *s)
{
    tl_tiles_zero(two_rows, two_columns);
    tl_int8_product(two_rows, two_columns, x, z, z->q[0], z->keys[0], row, at);
    if (planes == 2) { /* 254 q1 k1 + q1 k2 + q2 k1 */
        tl_int8_raise(two_rows, two_columns, s);
        tl_int8_product(two_rows, two_columns, x, z, z->q[0], z->keys[1], row, at);
        tl_int8_product(two_rows, two_columns, x, z, z->q[1], z->keys[0], row, at);
    }
    tl_tiles_store(two_rows, two_columns, s, TL_SCORE_STRIDE);
}

TL_INLINE void tl_int8_blocks(const int planes, const int two_rows, const tl_operands *x, const tl_int8 *z, int32_t row,
                              int64_t at, int32_t n, float *s)
{
    int32_t j = 0;
    for (; j + 2 * TL_PANEL <= n; j += 2 * TL_PANEL) tl_int8_block(planes, two_rows, 1, x, z, row, at + j, s + j);
    if (j < n) tl_int8_block(planes, two_rows, 0, x, z, row, at + j, s + j);
}

TL_INLINE void tl_planes_scores(const int planes, const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows,
                                int64_t at, int32_t n, float *s)
{
    tl_weave_over(x->woven, z->units / TL_CODE_UNITS * (planes == 2 ? 3 : 1), 2 * TL_PANEL);
    if (rows > TL_PANEL)
        tl_int8_blocks(planes, 1, x, z, row, at, n, s);
    else
        tl_int8_blocks(planes, 0, x, z, row, at, n, s);
}

/* Whole numbers, for now. */
static void tl_int8_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    if (z->planes == 2)
        tl_planes_scores(2, x, z, row, rows, at, n, s);
    else
        tl_planes_scores(1, x, z, row, rows, at, n, s);
}

TL_INLINE tl_v tl_int8_finish(const tl_operands *x, const tl_int8 *z, int32_t r, int raw, int64_t at, int32_t n,
                              float *s, tl_v top)
{
    const tl_v q_scale = tl_v_set(z->q_scale[r]), mean = tl_v_set(z->q_mean[r]);
    const float *scale = z->scale + at;
    (void)x;
    (void)raw; /* only where all tiles are high */
    for (int32_t j = 0; j < n; j += TL_PANEL) {
        const tl_v t = tl_v_fma(tl_v_from_int(tl_vi_load(s + j)), tl_v_mul(q_scale, tl_v_load(scale + j)), mean);
        tl_v_store(s + j, t);
        top = tl_v_max(t, top);
    }
    return top;
}

static int tl_int8_mend(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int raw, int64_t at,
                        int32_t n, float *s)
{
    (void)raw;
    if (!z->some_q_flagged && !tl_any_marked(z->panels_flagged, at, n)) return 0;
    tl_scores_flagged(x, z, row, rows, at, n, s);
    return 1;
}
