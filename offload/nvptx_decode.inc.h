/* The parts of the vocabulary for decoding, where a KV head has few rows and many keys (nvptx_kernel.inc.h includes it where
 * TL_DECODE is 1). Each warp of a block is an agent of the tile loop with all of the block's rows and every WARPS-th tile of
 * its keys, two stages of its own, and no barrier but the warp's: what matters is how many bytes are on their way. Scores
 * become logits by the general kernel's arithmetic (softmax_scale, then log2 e: launch.logit_scale is the former here). */

/* All scores of the lane: row r, key j * 8 + e behind its first one of the tile. */
#define EACH_SCORE                                                                                                     \
    TL_FULLY for (int r = 0; r < TL_ROWS; r++) TL_FULLY for (int j = 0; j < KEYS / 8; j++)                             \
        TL_FULLY for (int e = 0; e < 2; e++)
#define SCORE(s) (s)->s[0][j][r * 2 + e]

/* Scores become logits in log2 units: score * softmax_scale * log2 e, of a finite logit a finite one (tl_log2_logit). factor: of
 * keys j * 8 + e, both in one. Where that leaves the range of common numbers, again with each factor by itself: each score by
 * its own size, whatever its neighbours are. */
TL_INLINE void scale_scores(const tl_ctx *x, tl_scores *s, const float of_key[KEYS / 8][2])
{
    const float scale = x->a->logit_scale, factor = scale * TL_LOG2E;
    float top = 0.f;
    TL_FULLY
    for (int j = 0; j < KEYS / 8; j++) {
        TL_FULLY
        for (int e = 0; e < 2; e++) top = tl_max_ptx(tl_abs(of_key[j][e] * factor), top);
    }
    EACH_SCORE top = tl_max_ptx(tl_abs(SCORE(s) * (of_key[j][e] * factor)), top);
    if (top < 1e38f)
        EACH_SCORE SCORE(s) *= of_key[j][e] * factor;
    else
        EACH_SCORE
        {
            const float common = SCORE(s) * (of_key[j][e] * factor);
            SCORE(s) = tl_abs(common) < 1e38f ? common : tl_log2_logit(SCORE(s) * of_key[j][e] * scale);
        }
    s->scale = 1.f;
}

#if !TL_CODES
TL_INLINE void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)span;
    (void)rb;
    float ones[KEYS / 8][2];
    TL_FULLY
    for (int j = 0; j < KEYS / 8; j++) ones[j][0] = ones[j][1] = 1.f;
    scale_scores(x, s, ones);
}
#endif

TL_INLINE void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const int32_t key = span.first * KEY_STEP + (x->lane & 3) * 2;
    EACH_SCORE if (key + j * 8 + e >= x->ends[r]) SCORE(s) = -TL_INF;
}

/* ---- the state of a warp's rows, left in its stages: O, then m, then l. Rows lie so that lanes which store side by side meet
 * different banks. */

enum { STATE_M = TL_DECODE_ROWS * STATE_PITCH, STATE_L = STATE_M + TL_DECODE_ROWS * 4 };

TL_INLINE void tl_store(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    (void)x;
    (void)rb;
    int32_t thread = tl_thread();
    TL_OPAQUE(thread); /* nothing of what follows need be kept over the loop */
    const int32_t lane = thread % 32;
    const uint32_t state = tl_shared_base() + (uint32_t)(thread / 32 * WARP_BYTES);
    tl_barrier_of_warp(thread / 32);
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int32_t row = r * 8 + (lane >> 2);
#if TL_CODES /* the lane has four channels side by side: see tl_values_issue */
        const uint32_t at = state + (uint32_t)(row * STATE_PITCH + (lane & 3) * 16);
        TL_FULLY
        for (int d = 0; d < TL_D / 16; d++)
            tl_shared_store(at + (uint32_t)(d * 64),
                            (tl_chunk){tl_bits(acc->o[0][2 * d][r * 2]), tl_bits(acc->o[0][2 * d + 1][r * 2]),
                                       tl_bits(acc->o[0][2 * d][r * 2 + 1]), tl_bits(acc->o[0][2 * d + 1][r * 2 + 1])});
#else
        const uint32_t at = state + (uint32_t)(row * STATE_PITCH + (lane & 3) * 8);
        TL_FULLY
        for (int d = 0; d < TL_D / 8; d++)
            tl_shared_store8(at + (uint32_t)(d * 32),
                             (uint64_t)tl_bits(acc->o[0][d][r * 2]) | (uint64_t)tl_bits(acc->o[0][d][r * 2 + 1]) << 32);
#endif
        if (lane & 3) continue;
        tl_shared_store4(state + (uint32_t)(STATE_M + row * 4), tl_bits(m[r]));
        tl_shared_store4(state + (uint32_t)(STATE_L + row * 4), tl_bits(l[r]));
    }
}
