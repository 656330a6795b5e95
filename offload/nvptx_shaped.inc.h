/* The parts of the vocabulary for what is neither plain nor general (nvptx_kernel.inc.h includes it where TL_SHAPED is not 0):
 * windows and sinks, and where TL_SHAPED is 2 softcap, ALiBi, bias and boolean masks, all at run time, tile by tile.
 * logit_scale makes of a score what comes next: an argument of tanh, a logit, or one in log2 units (nvptx.c). */

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) sink[r] = x->a->sinks ? tl_log2_logit(x->a->sinks[x->head]) : TL_NEVER;
}

/* All scores of the lane: row r, key j * 8 + e behind the lane's first one of the tile. */
#define EACH_SCORE                                                                                                     \
    TL_FULLY for (int r = 0; r < TL_ROWS; r++) TL_FULLY for (int j = 0; j < KEYS / 8; j++)                             \
        TL_FULLY for (int e = 0; e < 2; e++)
#define SCORE(s) (s)->s[r / 2][j][r % 2 * 2 + e]

TL_INLINE int32_t first_key(const tl_ctx *x, tl_span span) { return span.first * KEYS + (x->lane & 3) * 2; }

#if TL_SHAPED == 2
/* The row whose scores are read for row r: those beyond the last one have none. Opaque, or what follows from it would be kept
 * in registers across the loop. */
TL_INLINE int32_t scored_row(const tl_ctx *x, int r)
{
    int32_t row = row_of(x, r);
    TL_OPAQUE(row);
    return row < x->lq ? row : x->lq - 1;
}

/* Scores x become softcap tanh(x * scale) / factor, and factor is returned. By the series alone where it serves for all scores of
 * the warp; each is computed in one way, whatever its neighbours are. */
TL_INLINE float cap_scores(const launch *a, tl_scores *s, tl_span span)
{
    float scale = s->scale, inverse = a->cap_inverse, factor = a->softmax_scale, top = 0.f;
    if (span.route == TL_INT8) {
        EACH_SCORE SCORE(s) = tl_fma_ptx(SCORE(s), s->scale, -s->origin);
        scale = inverse = 1.f;
        factor = a->softcap;
    }
    const tanh_series series = tanh_of_scaled(scale);
    EACH_SCORE top = tl_max_ptx(tl_abs(SCORE(s)), top);
    if (tl_vote_any(top * scale > TL_TANH_SMALL))
        EACH_SCORE SCORE(s) = tl_choose(tl_abs(SCORE(s)) * scale <= TL_TANH_SMALL, tanh_small(&series, SCORE(s)),
                                        tanh_large(SCORE(s) * scale) * inverse);
    else
        EACH_SCORE SCORE(s) = tanh_small(&series, SCORE(s));
    return factor;
}

/* Pairs of neighbouring scores at `at`, in f32. dtype is a constant. */
TL_INLINE void load_pair(float pair[2], const void *data, int64_t at, int32_t dtype)
{
    if (dtype == TYPE_F32) {
        typedef float two __attribute__((vector_size(8)));
        const two x = *(const TL_GLOBAL_SPACE two *)((const float *)data + at);
        pair[0] = x[0];
        pair[1] = x[1];
    } else {
        const uint32_t x = *(const TL_GLOBAL_SPACE uint32_t *)((const uint16_t *)data + at);
        pair[0] = dtype == TYPE_F16 ? tl_low_f16(x) : tl_float(x << 16);
        pair[1] = dtype == TYPE_F16 ? tl_low_f16(x >> 16) : tl_float(x & 0xffff0000u);
    }
}

/* score * factor + bias. pairs: of keys lie side by side, and all of the tile's exist. */
TL_INLINE void add_bias(const tl_ctx *x, tl_scores *s, tl_span span, float factor, int32_t dtype, int pairs)
{
    const launch *a = x->a;
    const int32_t key = first_key(x, span);
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int64_t at = bias_at(a, x->seq.batch, x->head, scored_row(x, r));
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            float bias[2];
            if (pairs)
                load_pair(bias, a->bias, at + key + j * 8, dtype);
            else
                TL_FULLY for (int e = 0; e < 2; e++)
                {
                    const int32_t k = key + j * 8 + e, there = k < x->lk ? k : x->lk - 1;
                    bias[e] = load_typed(a->bias, at + there * a->bias_k, dtype);
                }
            TL_FULLY
            for (int e = 0; e < 2; e++) {
                const float y = tl_fma_ptx(SCORE(s), factor, bias[e]);
                SCORE(s) = bias[e] == -TL_INF ? -TL_INF : y;
            }
        }
    }
}

/* score * factor, ALiBi and bias: logits in natural units, and from there in log2 units. */
TL_INLINE void add_terms(const tl_ctx *x, tl_scores *s, tl_span span, float factor)
{
    const launch *a = x->a;
    if (a->alibi) {
        const float slope = a->alibi[x->seq.batch * a->alibi_batch + x->head];
        TL_FULLY
        for (int r = 0; r < TL_ROWS; r++) {
            const float distance = (float)(first_key(x, span) - row_of(x, r) - x->diagonal); /* exact, as all below */
            TL_FULLY
            for (int j = 0; j < KEYS / 8; j++) {
                TL_FULLY
                for (int e = 0; e < 2; e++)
                    SCORE(s) = tl_fma_ptx(SCORE(s), factor, -(slope * tl_abs(distance + (float)(j * 8 + e))));
            }
        }
        factor = 1.f;
    }
    if (a->bias) {
        const int pairs = a->bias_pairs && (span.first + 1) * KEYS <= x->lk;
        if (!pairs)
            add_bias(x, s, span, factor, a->bias_dtype, 0);
        else if (a->bias_dtype == TYPE_F32)
            add_bias(x, s, span, factor, TYPE_F32, 1);
        else if (a->bias_dtype == TYPE_F16)
            add_bias(x, s, span, factor, TYPE_F16, 1);
        else
            add_bias(x, s, span, factor, TYPE_F16 + 1, 1);
    }
    /* A finite logit stays one in log2 units (tl_limit_logit), which only matters where a row has none of common size: beside
     * one, those beyond -FLT_MAX / log2(e) have weight 0 either way. */
    int extreme = 0;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        float top = -TL_INF;
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            TL_FULLY
            for (int e = 0; e < 2; e++) top = tl_max_ptx(top, SCORE(s));
        }
        extreme |= !(tl_abs(top) < 1e38f);
    }
    if (tl_vote_any(extreme))
        EACH_SCORE SCORE(s) = tl_log2_logit(SCORE(s));
    else
        EACH_SCORE SCORE(s) *= TL_LOG2E;
}

TL_INLINE void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const launch *a = x->a;
    const int terms = a->alibi || a->bias, capped = a->softcap > 0.f;
    float factor = s->scale;
    if (capped)
        factor = cap_scores(a, s, span);
    else if (terms && span.route == TL_INT8) {
        EACH_SCORE SCORE(s) = tl_fma_ptx(SCORE(s), s->scale, -s->origin);
        factor = 1.f;
    }
    if (terms) add_terms(x, s, span, factor); /* rounded: a bias may be so large that its rounding error is, too */
    if (terms || capped) {
        s->scale = terms ? 1.f : factor * TL_LOG2E;
        s->origin = 0.f;
    }
    if (TL_STATE_F16) {
        EACH_SCORE SCORE(s) = tl_round_f16_ptx(tl_fma_ptx(SCORE(s), s->scale, -s->origin));
        s->scale = 1.f;
        s->origin = 0.f;
    }
}

/* By the boolean mask, which says something of every tile. */
TL_INLINE void hide_masked(const tl_ctx *x, tl_scores *s, tl_span span, int pairs)
{
    const launch *a = x->a;
    const int32_t key = first_key(x, span);
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int64_t at = mask_at(a, x->seq.batch, x->head, scored_row(x, r));
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            uint32_t shown[2];
            if (pairs) {
                const uint32_t both = *(const TL_GLOBAL_SPACE uint16_t *)(a->bool_mask + at + key + j * 8);
                shown[0] = both & 0xffu;
                shown[1] = both >> 8;
            } else
                TL_FULLY for (int e = 0; e < 2; e++)
                {
                    const int32_t k = key + j * 8 + e, there = k < x->lk ? k : x->lk - 1;
                    shown[e] = ((const TL_GLOBAL_SPACE uint8_t *)a->bool_mask)[at + there * a->mask_k];
                }
            TL_FULLY
            for (int e = 0; e < 2; e++) SCORE(s) = shown[e] ? SCORE(s) : -TL_INF;
        }
    }
}

#else
/* Scale and origin fold into tl_row_max and tl_exp. */
TL_INLINE void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}
#endif

TL_INLINE void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const int32_t key = first_key(x, span);
    if ((span.first + 1) * KEYS > x->task.all_see || span.first * KEYS < x->task.all_see_from) {
        TL_FULLY
        for (int r = 0; r < TL_ROWS; r++) {
            const int32_t row = row_of(x, r), end = row_ends(&x->seq, row) - key, begin = row + x->seq.floor - key;
            TL_FULLY
            for (int j = 0; j < KEYS / 8; j++) {
                TL_FULLY
                for (int e = 0; e < 2; e++)
                    if (j * 8 + e >= end || j * 8 + e < begin) SCORE(s) = -TL_INF;
            }
        }
    }
#if TL_SHAPED == 2
    if (!x->a->bool_mask) return;
    if (x->a->mask_pairs && (span.first + 1) * KEYS <= x->lk)
        hide_masked(x, s, span, 1);
    else
        hide_masked(x, s, span, 0);
#endif
}
