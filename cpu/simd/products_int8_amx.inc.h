/* INT8 products by AMX: the packed form is a sequence of tiles B already, [keys / 16][d / 64] of them, and rows of codes are
 * rows of A. Sums are exact. */
#include "simd/operand_int8.inc.h"

TL_INLINE int tl_int8_suits(const tlamp_problem *problem) { return problem->policy->kind != TLAMP_POLICY_X3; }

TL_INLINE void tl_int8_block(const int two_rows, const int two_columns, const tl_int8 *z, int32_t row, int64_t at,
                             float *s)
{
    const int64_t stride = z->code_stride, next = (int64_t)z->units * TL_PANEL * TL_CODES;
    const tl_qcode *q = z->q[0] + row * stride, *k = z->keys[0] + at / TL_PANEL * next;
    tl_tiles_zero(two_rows, two_columns);
    for (int32_t u = 0; u < z->units; u += TL_CODE_UNITS) {
        tl_tiles_a(two_rows, q, stride, TL_PANEL * stride);
        tl_tiles_b(two_columns, k, next);
        tl_tiles_dot_bytes(two_rows, two_columns);
        q += TL_CODE_UNITS * TL_CODES;
        k += TL_TILE_BYTES;
    }
    tl_tiles_store(two_rows, two_columns, s, TL_SCORE_STRIDE); /* whole numbers, for now */
}

/* Columns [at, at + 16 P) of a block become scores. The unit works on the next ones meanwhile. */
TL_INLINE void tl_int8_pass(const int P, const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at,
                            float *s)
{
    tl_v scale[2];
    TL_UNROLL for (int j = 0; j < P; j++) scale[j] = tl_v_load(z->scale + at + j * TL_LANES);
    for (int32_t r = 0; r < rows; r++, s += TL_SCORE_STRIDE) {
        const tl_v q_scale = tl_v_set(z->q_scale[row + r]), mean = tl_v_set(z->q_mean[row + r]);
        tl_v top = tl_v_load(x->passes->top[r]);
        TL_UNROLL for (int j = 0; j < P; j++)
        {
            float *to = s + j * TL_LANES;
            const tl_v t = tl_v_fma(tl_v_from_int(tl_vi_load(to)), tl_v_mul(q_scale, scale[j]), mean);
            tl_v_store(to, t);
            top = tl_v_max(t, top);
        }
        tl_v_store(x->passes->top[r], top);
    }
}

TL_INLINE void tl_int8_blocks(const int two_rows, const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows,
                              int64_t at, int32_t n, float *s)
{
    int32_t j = 0;
    for (; j + 2 * TL_PANEL <= n; j += 2 * TL_PANEL) {
        tl_int8_block(two_rows, 1, z, row, at + j, s + j);
        if (j) tl_int8_pass(2, x, z, row, rows, at + j - 2 * TL_PANEL, s + j - 2 * TL_PANEL);
    }
    if (j < n) tl_int8_block(two_rows, 0, z, row, at + j, s + j);
    if (j) tl_int8_pass(2, x, z, row, rows, at + j - 2 * TL_PANEL, s + j - 2 * TL_PANEL);
    if (j < n) tl_int8_pass(1, x, z, row, rows, at + j, s + j);
}

static void tl_int8_scores(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                           float *s)
{
    if (rows > TL_PANEL)
        tl_int8_blocks(1, x, z, row, rows, at, n, s);
    else
        tl_int8_blocks(0, x, z, row, rows, at, n, s);
    if (!z->some_q_flagged && !tl_any_marked(z->panels_flagged, at, n)) return;
    tl_scores_flagged(x, z, row, rows, at, n, s);
    x->passes->topped = 0;
}
