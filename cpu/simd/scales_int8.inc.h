/* What the forms of INT8 operands share of their queries: whose scales are what, and pairs that are left out. Each has defined, in
 * a tl_int8,
 *   float *coded, *rotated                 [rows][x->q_stride] queries as they are quantised: x->q, or rotated
 *   unsigned char *q_flagged               [rows]
 *   int32_t some_q_flagged
 * and tl_quantise_query(x, int8, row, quant), which leaves the row in the form that it multiplies with; and may define
 * TL_INT8_TAKES_ROWS as 1 and tl_quantise_rows (operand_int8.inc.h), which reads most rows from the tensor: then x->q holds
 * none before. */
#ifndef TL_INT8_TAKES_ROWS
#define TL_INT8_TAKES_ROWS 0
#endif

/* ---- queries */

/* The largest magnitude of a head's query tokens [first, last], over rows that see a key and hold no NaN or Inf. Rows of
 * the task are at hand. */
static float tl_query_peak(const tl_operands *x, const tl_int8 *z, int32_t head, int64_t first, int64_t last)
{
    const tl_cpu *c = &x->cpu;
    float top = 0.f;
    for (int64_t token = first; token <= last; token++) {
        if (!tl_row_sees_a_key(c->call, c->seq, head, token)) continue;
        const int64_t i = token - c->task.token0;
        const float *q = x->token;
        if (i >= 0 && i < c->task.tokens) {
            q = z->coded + ((head - c->head) * (int64_t)c->task.tokens + i) * x->q_stride;
        } else {
            tl_widen_query(x->token, c, head, token);
            if (c->call->policy->hadamard) tl_rotate(x->token, x->d);
        }
        const float peak = tl_peak(q, x->d);
        if (tl_is_finite(peak)) top = tl_max(peak, top);
    }
    return top;
}

/* All rows as they are quantised. */
static void tl_code_queries(const tl_operands *x, tl_int8 *z)
{
    const tl_cpu *c = &x->cpu;
    const int32_t rows = tl_task_rows(&c->task);
    for (int32_t r = 0; TL_INT8_TAKES_ROWS && r < rows; r++)
        tl_widen_query(x->q + (int64_t)r * x->q_stride, c, tl_head_of(c, r), tl_token_of(c, r));
    z->coded = c->call->policy->hadamard ? z->rotated : x->q;
    if (z->coded != x->q) memcpy(z->coded, x->q, sizeof *x->q * (size_t)rows * (size_t)x->q_stride);
    for (int32_t r = 0; z->coded != x->q && r < rows; r++) tl_rotate(z->coded + (int64_t)r * x->q_stride, x->d);
}

static void tl_int8_begin(const tl_operands *x, tl_int8 *z)
{
    const tl_cpu *c = &x->cpu;
    int coded = 0;
    z->some_q_flagged = 0;
    for (int32_t r = 0; r < tl_task_rows(&c->task);) {
        const tl_query_block b = tl_query_block_at(c, r);
#if TL_INT8_TAKES_ROWS
        if (tl_quantise_rows(x, z, r, &b)) {
            r += b.rows;
            continue;
        }
#endif
        if (!coded) tl_code_queries(x, z);
        coded = 1;
        const float peak = b.given ? 0.f : tl_query_peak(x, z, b.head, b.first, b.last);
        const tl_quant quant = tl_query_block_quant(c, &b, r, peak);
        for (int32_t i = 0; i < b.rows; i++) tl_quantise_query(x, z, r++, quant);
    }
}

/* ---- products */

/* Pairs whose query or key was left out of INT8 (ALGORITHMS A2). */
static void tl_scores_flagged(const tl_operands *x, const tl_int8 *z, int32_t row, int32_t rows, int64_t at, int32_t n,
                              float *s)
{
    const int64_t key = x->first + at;
    for (int32_t r = 0; r < rows; r++) {
        tl_widen_query(x->token, &x->cpu, tl_head_of(&x->cpu, row + r), tl_token_of(&x->cpu, row + r));
        for (int32_t j = 0; j < n && key + j < x->cpu.seq->lk; j++)
            if (z->q_flagged[row + r] || z->flagged[at + j])
                s[r * TL_SCORE_STRIDE + j] = tl_dot_flagged(&x->cpu, x->token, key + j) * x->factor;
    }
}
