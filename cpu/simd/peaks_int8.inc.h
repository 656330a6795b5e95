/* What the forms of INT8 operands share of their keys, what scales come from, and of codes. Each has defined, in a tl_int8,
 *   float *scale, unsigned char *flagged   [keys] as tl_find_peaks leaves them */

/* ---- rows as they lie in a tensor */

/* The largest magnitude among n rows; Inf where one of their numbers is Inf or NaN. */
TL_INLINE float tl_rows_peak_of(const unsigned char *row, int64_t stride, int32_t n, int32_t d, const int32_t dtype)
{
    float top[2][TL_LANES];
    tl_v v[2] = {tl_v_set(0.f), tl_v_set(0.f)};
    tl_half h[2] = {{0}, {0}};
    for (; n > 0; n--, row += stride) {
        const uint16_t *half = (const uint16_t *)(const void *)row;
        int32_t i = 0;
        for (; i + 2 * TL_LANES <= d; i += 2 * TL_LANES) TL_UNROLL for (int j = 0; j < 2; j++)
            {
                if (dtype == TL_F32)
                    v[j] = tl_v_top_bits(v[j], tl_load_lanes(row, i + j * TL_LANES, TL_LANES, dtype));
                else
                    h[j] = tl_half_top(h[j], tl_half_load(half + i + j * TL_LANES));
            }
        for (; i < d; i += TL_LANES) {
            if (dtype == TL_F32)
                v[0] = tl_v_top_bits(v[0], tl_load_lanes(row, i, d - i, dtype));
            else
                h[0] = tl_half_top(h[0],
                                   d - i < TL_LANES ? tl_half_load_part(half + i, d - i) : tl_half_load(half + i));
        }
    }
    TL_UNROLL for (int j = 0; j < 2; j++) tl_v_store(top[j], dtype == TL_F32   ? v[j]
                                                             : dtype == TL_F16 ? tl_v_from_f16(h[j])
                                                                               : tl_v_from_bf16(h[j]));
    return tl_peak(top[0], 2 * TL_LANES);
}

static float tl_rows_peak(const tl_operand *a, const unsigned char *row, int64_t n, int32_t d)
{
    const int64_t stride = a->seq * tl_dtype_bytes(a->dtype);
    switch (a->dtype) {
    case TL_F32: return tl_rows_peak_of(row, stride, (int32_t)n, d, TL_F32);
    case TL_F16: return tl_rows_peak_of(row, stride, (int32_t)n, d, TL_F16);
    default: return tl_rows_peak_of(row, stride, (int32_t)n, d, TL_BF16);
    }
}

/* Tokens are quantised as they are: numbers, that nothing is taken from and nothing rotates. */
TL_INLINE int tl_coded_as_given(const tl_cpu *c, const tl_operand *a)
{
    return !a->scale && !c->prepared->mean && !c->call->policy->hadamard;
}

/* ---- codes */

/* Numbers of X3's second plane, before they are rounded: as tl_second_code. */
TL_INLINE tl_v tl_second_numbers(tl_v a, tl_quant quant)
{
    const tl_v inverse = tl_v_set(quant.inverse), magic = tl_v_set(12582912.f);
    const tl_v code = tl_v_sub(tl_v_add(tl_v_mul(a, inverse), magic), magic);
    const tl_v rest = tl_v_mul(tl_v_fma(code, tl_v_set(-quant.scale), a), inverse);
    return tl_v_mul(rest, tl_v_set(TL_PLANE_STEPS));
}

/* q . mean of K, with smooth_k. */
TL_INLINE float tl_query_mean(const tl_operands *x, int32_t r)
{
    const float *q = x->q + (int64_t)r * x->q_stride, *mean = x->cpu.prepared->mean;
    float dot = 0.f;
    for (int32_t i = 0; mean && i < x->d; i++) dot += q[i] * mean[i];
    return dot;
}

/* ---- keys */

/* Which keys of one unit are flagged, and what their scales come from (as tl_unit_quants): z->scale holds largest magnitudes,
 * or the caller's scales, until they become factors of scores. The keys themselves go to `to`, `stride` floats apart. */
static void tl_find_peaks(const tl_operands *x, const tl_int8 *z, int64_t begin, int64_t end, float *to, int64_t stride)
{
    const tl_cpu *c = &x->cpu;
    const int given = c->call->k.scale != NULL, shared = !given && c->call->policy->scales != TLAMP_SCALES_TOKEN;
    float block = 0.f;
    for (int64_t key = begin; key < end; key++) {
        const int seen = key < c->seq->lk && tl_key_is_seen(c->seq, c->prepared, key);
        float *row = to + (key - begin) * stride;
        if (seen) tl_widen_coded_key(row, c, key);
        const float peak = seen ? tl_peak(row, x->d) : 0.f;
        const int64_t at = key - x->first;
        z->flagged[at] = !tl_is_finite(peak);
        if (!c->call->shape.fly) c->counters->nonfinite_tokens += z->flagged[at]; /* on the fly, nobody counts keys */
        z->scale[at] = z->flagged[at] ? 0.f : peak;
        block = tl_max(z->scale[at], block);
        if (given) z->scale[at] = seen ? tl_key_scale(c->call, c->seq, c->kv_head, key) : 0.f;
    }
    for (int64_t key = begin; key < end && shared; key++) z->scale[key - x->first] = block;
}

/* The largest magnitude of keys [key, key + n), if all of them count: tl_find_peaks, short. */
static int tl_find_one_peak(const tl_operands *x, int64_t key, int64_t n, float *peak)
{
    const tl_cpu *c = &x->cpu;
    const tl_operand *k = &c->call->k;
    if (!tl_coded_as_given(c, k) || c->call->policy->scales == TLAMP_SCALES_TOKEN || c->prepared->seen ||
        c->seq->lq == 0 || key < tl_key_begin(&c->seq->mask, 0) || key + n > tl_key_end(&c->seq->mask, c->seq->lq - 1))
        return 0;
    *peak = tl_rows_peak(k, tl_row(k, c->seq->batch, c->seq->k_start, key, c->kv_head), n, x->d);
    return tl_is_finite(*peak);
}
