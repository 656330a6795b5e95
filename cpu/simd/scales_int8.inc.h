/* What the forms of INT8 operands share: whose scales are what, and pairs that are left out. Each has defined, in a tl_int8,
 *   float *scale, unsigned char *flagged   [keys] as tl_find_peaks leaves them
 *   float *coded, *rotated                 [rows][x->q_stride] queries as they are quantised: x->q, or rotated
 *   unsigned char *q_flagged               [rows]
 *   int32_t some_q_flagged
 * and tl_quantise_query(x, int8, row, quant), which leaves the row in the form that it multiplies with. */

/* ---- keys */

/* Which keys of one unit are flagged, and what their scales come from (as tl_unit_quants): z->scale holds largest magnitudes,
 * or the caller's scales, until they become factors of scores. */
static void tl_find_peaks(const tl_operands *x, const tl_int8 *z, int64_t begin, int64_t end)
{
    const tl_cpu *c = &x->cpu;
    const int given = c->call->k.scale != NULL, shared = !given && c->call->policy->scales != TLAMP_SCALES_TOKEN;
    float block = 0.f;
    for (int64_t key = begin; key < end; key++) {
        const int seen = key < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key);
        if (seen) tl_widen_coded_key(x->token, c, key);
        const float peak = seen ? tl_peak(x->token, x->d) : 0.f;
        const int64_t at = key - x->first;
        z->flagged[at] = !tl_is_finite(peak);
        if (!c->call->shape.fly) c->counters->nonfinite_tokens += z->flagged[at]; /* on the fly, nobody counts keys */
        z->scale[at] = z->flagged[at] ? 0.f : peak;
        block = tl_max(z->scale[at], block);
        if (given) z->scale[at] = seen ? tl_key_scale(c->call, c->seq, c->kv_head, key) : 0.f;
    }
    for (int64_t key = begin; key < end && shared; key++) z->scale[key - x->first] = block;
}

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

static void tl_int8_begin(const tl_operands *x, tl_int8 *z)
{
    const tl_cpu *c = &x->cpu;
    const int32_t rows = tl_task_rows(&c->task);
    z->some_q_flagged = 0;
    z->coded = c->call->policy->hadamard ? z->rotated : x->q;
    if (z->coded != x->q) memcpy(z->coded, x->q, sizeof *x->q * (size_t)rows * (size_t)x->q_stride);
    for (int32_t r = 0; z->coded != x->q && r < rows; r++) tl_rotate(z->coded + (int64_t)r * x->q_stride, x->d);
    for (int32_t r = 0; r < rows;) {
        const tl_query_block b = tl_query_block_at(c, r);
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
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = 0; j < n && key + j < x->cpu.seq->lk; j++)
            if (z->q_flagged[row + r] || z->flagged[at + j])
                s[r * TL_SCORE_STRIDE + j] = tl_dot_flagged(&x->cpu, x->q + (int64_t)(row + r) * x->q_stride, key + j) *
                                             x->factor;
}
