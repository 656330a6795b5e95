/* The parts of the vocabulary that a general problem needs other than a plain one (nvptx_kernel.inc.h includes it where
 * TL_GENERAL is 1): partial tiles, rows of any alignment, scales per token, masks, bias, softcap, ALiBi, sinks, windows,
 * sequences of their own lengths. And a row on its own, which problems of TL_SHAPED need as well. */

#if TL_GENERAL
/* ---- data movement */

/* Up to eight elements, wherever they lie. */
TL_INLINE void gather(uint32_t to, const uint16_t *from, int32_t count)
{
    uint32_t x[8];
    TL_FULLY
    for (int i = 0; i < 8; i++) x[i] = i < count ? ((const TL_GLOBAL_SPACE uint16_t *)from)[i] : 0u;
    tl_shared_store(to, (tl_chunk){x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16});
}

/* Row i of the lane's is row + i * ROWS16 of a tile, of which rows below `there` exist; the rest is zeros. bytes: of a
 * chunk, 0 beyond the row's end. */
TL_INLINE void copy16_part(uint32_t to, const uint16_t *from, int64_t seq, int32_t rows, int32_t row, int32_t there,
                           int32_t bytes, int32_t unaligned)
{
    for (int32_t i = 0; i < rows / ROWS16; i++) {
        const int32_t has = row + i * ROWS16 < there ? bytes : 0;
        const uint16_t *at = has ? from + i * ROWS16 * seq : from;
        if (unaligned)
            gather(to + (uint32_t)(i * ROWS16 * PITCH16), at, has / 2);
        else
            tl_copy_bytes(to + (uint32_t)(i * ROWS16 * PITCH16), at, has);
    }
}

TL_INLINE void copy8_part(uint32_t to, const int8_t *from, int32_t code_row, int32_t rows, int32_t row, int32_t there)
{
    for (int32_t i = 0; i < rows / ROWS8; i++) {
        const int32_t has = row + i * ROWS8 < there;
        tl_copy_or_zero(to + (uint32_t)(i * ROWS8 * PITCH8), has ? from + (int64_t)(i * ROWS8) * code_row : from, has);
    }
}

TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    const launch *a = x->a;
    const int32_t tile = x->task.keys, key = span.first * tile, left = x->lk - key, there = left < tile ? left : tile;
    const uint32_t keys = x->keys + (uint32_t)x->fill, values = x->values + (uint32_t)x->fill + x->to16;
    if (span.route == TL_INT8 && !a->k_inverse) /* codes are padded with zeros */
        copy8_part(keys + x->to8, x->k8 + (int64_t)key * x->code_row, x->code_row, KEYS, x->chunk_row8,
                   x->chunk_there8 ? tile : 0);
    else
        copy16_part(keys + x->to16, x->k + key * a->k_seq, a->k_seq, KEYS, x->chunk_row, there, x->chunk_bytes,
                    a->unaligned & 2);
    copy16_part(values, x->v + key * a->v_seq, a->v_seq, KEYS, x->chunk_row, there, x->value_bytes, a->unaligned & 4);
}

/* ---- quantising on the fly: the codes of what the lane has copied itself, the same as those made before */

/* chunk: the first channel's, of eight. mean: of all channels, or NULL. */
TL_INLINE uint64_t codes_of(tl_chunk x, float inverse, const float *mean, int32_t channel, int32_t d)
{
    uint64_t codes = 0;
    if (inverse == 0.f) return 0; /* also a token that nothing sees, whatever it holds */
    TL_FULLY
    for (int i = 0; i < 8; i++) {
        float y = i % 2 ? tl_high_half(x[i / 2]) : tl_low_half(x[i / 2]);
        if (mean && channel + i < d) y -= mean[channel + i];
        codes |= (uint64_t)(uint8_t)tl_code(y, inverse) << (8 * i);
    }
    return codes;
}

/* Where the codes of row chunk_row + i * ROWS16 go. */
TL_INLINE uint32_t codes_at(const tl_ctx *x, int32_t i)
{
    const int32_t chunk = tl_thread() % (TL_D / 8);
    return place_in(x->chunk_row + i * ROWS16, chunk / 2, PITCH8) + (uint32_t)(chunk % 2 * 8);
}

/* The tile in use, in place: everyone has read before anyone writes. key: its first. What follows from the launch is found here,
 * so that the loop keeps nothing for it. */
TL_INLINE void quantise_keys(const tl_ctx *x, int32_t key)
{
    const launch *a = x->a;
    const int32_t heads = a->heads_q / a->group_heads, kv_head = x->head / a->group_heads;
    const float *mean = a->mean ? a->mean + ((int64_t)x->seq.batch * heads + kv_head) * a->d : NULL;
    const float *inverses = a->k_inverse + (x->k_scale - a->k_scale) + key;
    const uint32_t keys = x->keys + (uint32_t)x->use;
    const int32_t channel = tl_thread() % (TL_D / 8) * 8;
    uint64_t codes[KEYS / ROWS16];
    TL_FULLY
    for (int i = 0; i < KEYS / ROWS16; i++) {
        const int32_t row = x->chunk_row + i * ROWS16;
        const float inverse = row < x->task.keys ? inverses[row] : 0.f;
        codes[i] = codes_of(tl_shared_load(keys + x->to16 + (uint32_t)(i * ROWS16 * PITCH16)), inverse, mean, channel,
                            a->d);
    }
    tl_barrier();
    TL_FULLY
    for (int i = 0; i < KEYS / ROWS16; i++) tl_shared_store8(keys + codes_at(x, i), codes[i]);
    tl_barrier();
}

/* inverse: of the block's first row; there: its rows. The queries are on their way; the first arrival has the barrier that
 * makes their codes known. */
TL_INLINE void quantise_queries(const tl_ctx *x, const float *inverse, int32_t there)
{
    const uint32_t queries = tl_shared_base() + x->to16, to = x->values + 2 * STAGE;
    tl_copies_wait();
    for (int32_t i = 0; i < BLOCK_ROWS / ROWS16; i++) {
        const int32_t row = x->chunk_row + i * ROWS16;
        const tl_chunk chunk = tl_shared_load(queries + (uint32_t)(i * ROWS16 * PITCH16));
        tl_shared_store8(to + codes_at(x, i), codes_of(chunk, row < there ? inverse[row] : 0.f, NULL, 0, 0));
    }
}

/* ---- score epilogue */

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) /* counts once, however many parts the keys have */
        sink[r] = x->a->sinks && tl_block() % x->a->splits == 0 ? tl_log2_logit(x->a->sinks[x->head]) : TL_NEVER;
}

/* All scores of the lane: row r, key `key` + j * 8 + e. */
#define EACH_SCORE                                                                                                     \
    TL_FULLY for (int r = 0; r < TL_ROWS; r++) TL_FULLY for (int j = 0; j < KEYS / 8; j++)                             \
        TL_FULLY for (int e = 0; e < 2; e++)
#define SCORE(s) (s)->s[0][j][r * 2 + e]

TL_INLINE void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const launch *a = x->a;
    const int32_t first = span.first * x->task.keys, key = first + (x->lane & 3) * 2;
    if (is_idle(x)) {
        s->scale = 1.f;
        s->origin = 0.f;
        return;
    }
    if (span.route == TL_INT8) {
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            TL_FULLY
            for (int e = 0; e < 2; e++) {
                const float scale = key + j * 8 + e < first + x->task.keys ? x->k_scale[key + j * 8 + e] : 1.f;
                TL_FULLY
                for (int r = 0; r < TL_ROWS; r++)
                    SCORE(s) = (SCORE(s) - TL_INT8_ORIGIN) * x->q_scales[r] * scale + x->q_means[r];
            }
        }
    }
    s->scale = 1.f;
    s->origin = 0.f;
    EACH_SCORE SCORE(s) *= a->softmax_scale;
    if (a->softcap > 0.f) {
        const float cap = a->softcap;
        EACH_SCORE SCORE(s) = softcapped(SCORE(s), cap);
    }
    if (a->alibi) {
        const float slope = a->alibi[x->seq.batch * a->alibi_batch + x->head];
        const int32_t diagonal = x->diagonal;
        EACH_SCORE SCORE(s) = with_alibi(SCORE(s), slope, key + j * 8 + e - row_of(x, r) - diagonal);
    }
    if (a->bias) {
        TL_FULLY
        for (int r = 0; r < TL_ROWS; r++) {
            const int32_t row = row_of(x, r);
            const int64_t at = bias_at(a, x->seq.batch, x->head, row);
            TL_FULLY
            for (int j = 0; j < KEYS / 8; j++) {
                TL_FULLY
                for (int e = 0; e < 2; e++)
                    if (row < x->rows_end && key + j * 8 + e < x->lk)
                        SCORE(s) = with_bias(SCORE(s),
                                             load_typed(a->bias, at + (key + j * 8 + e) * a->bias_k, a->bias_dtype));
            }
        }
    }
    EACH_SCORE SCORE(s) = tl_log2_logit(SCORE(s));
    if (TL_STATE_F16) EACH_SCORE SCORE(s) = tl_round_f16_ptx(SCORE(s));
}

TL_INLINE void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const launch *a = x->a;
    const int32_t first = span.first * x->task.keys, key = first + (x->lane & 3) * 2;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int32_t row = row_of(x, r), begin = row_begins(&x->seq, row), tile_end = first + x->task.keys;
        const int32_t row_sees = row < x->rows_end ? row_ends(&x->seq, row) : 0,
                      end = row_sees < tile_end ? row_sees : tile_end;
        const int64_t at = mask_at(a, x->seq.batch, x->head, row);
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            TL_FULLY
            for (int e = 0; e < 2; e++) {
                const int32_t k = key + j * 8 + e;
                if (k < begin || k >= end || (a->bool_mask && !a->bool_mask[at + k * a->mask_k])) SCORE(s) = -TL_INF;
            }
        }
    }
}

#endif

/* ---- end */

/* An output of the row, channel by channel: rows of O need no alignment. */
TL_INLINE void store_element(const tl_ctx *x, int64_t at, float y)
{
    if (x->a->o_dtype == TYPE_F32)
        ((TL_GLOBAL_SPACE float *)x->a->o)[at] = y;
    else
        ((TL_GLOBAL_SPACE uint16_t *)x->a->o)[at] = (uint16_t)(x->a->o_dtype == TYPE_F16 ? tl_pack_f16(y, 0.f)
                                                                                         : tl_pack_bf16(y, 0.f));
}

TL_INLINE int64_t output_row(const tl_ctx *x, int32_t row)
{
    return x->seq.batch * x->a->o_batch + x->head * x->a->o_head + (x->seq.q_start + row) * x->a->o_seq;
}

#if TL_GENERAL
TL_INLINE void store_row(const tl_ctx *x, const tl_acc *acc, int r, int32_t row, float l)
{
    const int64_t at = output_row(x, row) + (x->lane & 3) * 2;
    const int32_t left = x->a->dv - (x->lane & 3) * 2;
    TL_FULLY
    for (int d = 0; d < TL_D / 8; d++) {
        TL_FULLY
        for (int e = 0; e < 2; e++)
            if (d * 8 + e < left) store_element(x, at + d * 8 + e, l == 0.f ? 0.f : acc->o[0][d][r * 2 + e] / l);
    }
}

/* ---- split keys (num_splits): each part leaves the state of its rows, as the tile loop has it, for merge_row */

/* Keys of a part: whole tiles. */
TL_INLINE int32_t part_keys(const launch *a, int32_t lk)
{
    if (a->splits == 1) return lk;
    if (a->split_keys) return a->split_keys;
    const int32_t tiles = blocks_in(lk, a->split_tile);
    return blocks_in(tiles, a->splits) * a->split_tile;
}

TL_INLINE int64_t parts_of(const tl_ctx *x, int32_t row)
{
    const int64_t of_all = x->seq.q_start + (int64_t)x->seq.batch * x->a->rows_each + row;
    return (of_all * x->a->heads_q + x->head) * x->a->splits;
}

TL_INLINE void store_part(const tl_ctx *x, const tl_acc *acc, int r, int32_t row, float m, float l)
{
    const int64_t at = parts_of(x, row) + tl_block() % x->a->splits;
    float *o = x->a->part_o + at * x->a->dv + (x->lane & 3) * 2;
    const int32_t left = x->a->dv - (x->lane & 3) * 2;
    TL_FULLY
    for (int d = 0; d < TL_D / 8; d++) {
        TL_FULLY
        for (int e = 0; e < 2; e++)
            if (d * 8 + e < left) o[d * 8 + e] = acc->o[0][d][r * 2 + e];
    }
    if ((x->lane & 3) != 0) return;
    x->a->part_m[at] = m;
    x->a->part_l[at] = x->was_bad >> r & 1u ? tl_float(tl_bits(l) | 0x80000000u) : l;
}

TL_INLINE float *lse_rows(const launch *a, const tl_device_sequence *s, int32_t head)
{
    return a->lse ? a->lse + s->batch * a->lse_batch + head * a->lse_head + s->q_start * a->lse_seq : NULL;
}
#endif

/* The NaN and Inf of V's into the columns of a row that sees them, after a run with zeros in their place. By all lanes of the
 * warp, without tensor cores. whole: all columns and the LSE, of a row with vast logits. */
TL_INLINE void row_again(const tl_ctx *x, int32_t row, int whole)
{
    enum { MINE = TL_D / 32 }; /* channels of a lane: lane + 32 i */
    const launch *a = x->a;
    const int32_t lane = x->lane, kv_head = x->head / a->group_heads, end = row_ends(&x->seq, row);
    const uint16_t *q = a->q + x->seq.batch * a->q_batch + x->head * a->q_head + (x->seq.q_start + row) * a->q_seq;
    const uint16_t *k = a->k + x->seq.batch * a->k_batch + kv_head * a->k_head + x->seq.k_start * a->k_seq;
    const uint16_t *v = a->v + x->seq.batch * a->v_batch + kv_head * a->v_head + x->seq.k_start * a->v_seq;
    const float slope = a->alibi ? a->alibi[x->seq.batch * a->alibi_batch + x->head] : 0.f;
    float acc[MINE] = {0.f}, m = TL_NEVER, l = 0.f;
    if (a->sinks) {
        m = tl_log2_logit(a->sinks[x->head]);
        l = m == TL_NEVER ? 0.f : 1.f;
    }
    for (int32_t key = row_begins(&x->seq, row); key < end; key++) {
        if (is_hidden(a, x->seq.batch, x->head, row, key)) continue;
        float s = 0.f;
        for (int32_t c = lane; c < a->d; c += 32) s += tl_load_half(q + c) * tl_load_half(k + key * a->k_seq + c);
        TL_FULLY
        for (int with = 16; with; with >>= 1) s += tl_swap(s, with);
        s *= a->softmax_scale;
        if (a->softcap > 0.f) s = softcapped(s, a->softcap);
        if (a->alibi) s = with_alibi(s, slope, key - row - x->diagonal);
        if (a->bias) s += load_typed(a->bias, bias_at(a, x->seq.batch, x->head, row) + key * a->bias_k, a->bias_dtype);
        s = tl_log2_logit(s);
        const float top = tl_max(m, s), ref = tl_reference(top), lambda = tl_exp2(m - ref), p = tl_exp2(s - ref);
        m = top;
        l = l * lambda + p;
        TL_FULLY
        for (int i = 0; i < MINE; i++)
            if (lane + 32 * i < a->dv) acc[i] = acc[i] * lambda + p * tl_load_half(v + key * a->v_seq + lane + 32 * i);
    }
    const int64_t at = output_row(x, row);
    TL_FULLY
    for (int i = 0; i < MINE; i++)
        if (lane + 32 * i < a->dv && (whole || !tl_is_finite(acc[i]))) store_element(x, at + lane + 32 * i, acc[i] / l);
    if (whole && x->lse && lane == 0) x->lse[row * a->lse_seq] = lse_of(m, l);
}

#if TL_GENERAL && !TL_STATE_F16
/* The states that the parts have left of one row, joined as tl_merge_splits joins them, by all lanes of a warp: one that has
 * seen nothing is neutral. */
TL_INLINE void merge_row(const tl_ctx *x, int32_t row)
{
    enum { MINE = TL_D / 32, AT_ONCE = 8 }; /* MINE: channels of a lane, lane + 32 i */
    const launch *a = x->a;
    const int32_t lane = x->lane;
    const int64_t parts = parts_of(x, row), out = output_row(x, row);
    float acc[MINE] = {0.f}, m = TL_NEVER, l = 0.f;
    int bad = 0;
    for (int32_t i = lane; i < a->splits; i += 32) m = tl_max(a->part_m[parts + i], m);
    TL_FULLY
    for (int with = 16; with; with >>= 1) m = tl_max(m, tl_swap(m, with));
    for (int32_t first = 0; first < a->splits; first += 32) {
        const int32_t left = a->splits - first, count = left < 32 ? left : 32, mine = lane < count;
        const float weight = mine ? tl_exp2(a->part_m[parts + first + lane] - tl_reference(m)) : 0.f;
        const float part_l = mine ? a->part_l[parts + first + lane] : 0.f;
        bad |= (int)(tl_bits(part_l) >> 31);
        l += weight * tl_abs(part_l);
        const float *o = a->part_o + (parts + first) * a->dv + lane;
        for (int32_t i = 0; i < count; i += AT_ONCE) {
            float w[AT_ONCE];
            TL_FULLY
            for (int j = 0; j < AT_ONCE; j++) w[j] = tl_from_lane(weight, i + j);
            TL_FULLY
            for (int j = 0; j < AT_ONCE; j++) {
                TL_FULLY
                for (int c = 0; c < MINE; c++)
                    if (i + j < count && lane + 32 * c < a->dv) acc[c] += w[j] * o[(int64_t)(i + j) * a->dv + 32 * c];
            }
        }
    }
    TL_FULLY
    for (int with = 16; with; with >>= 1) l += tl_swap(l, with);
    TL_FULLY
    for (int c = 0; c < MINE; c++)
        if (lane + 32 * c < a->dv) store_element(x, out + lane + 32 * c, l == 0.f ? 0.f : acc[c] / l);
    if (x->lse && lane == 0) x->lse[row * a->lse_seq] = lse_of(m, l);
    if (tl_vote_any(bad)) row_again(x, row, 0);
}
#endif

TL_INLINE void rows_again(const tl_ctx *x, uint32_t bad)
{
    tl_warp_barrier();
    for (int32_t i = 0; i < WARP_ROWS; i++) { /* row i of the warp is row i / 8 of the lanes of quad i % 8 */
        const int32_t mine = x->lane / 4 == i % 8;
        const int whole = tl_vote_any(mine && (bad >> (TL_ROWS + i / 8) & 1u));
        if (tl_vote_any(mine && (bad >> (i / 8) & 1u)) || whole) row_again(x, x->row0 + i, whole);
    }
}

/* ---- one block */

/* Are the rows [first, end) free of NaN and Inf? flags: of the head's 16-token groups. */
TL_INLINE int rows_are_finite(const uint8_t *flags, int32_t first, int32_t end)
{
    uint32_t flagged = 0;
    for (int32_t i = first / 16; i * 16 < end; i++) flagged |= flags[i];
    return !flagged;
}
