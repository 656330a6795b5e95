/* The parts of the vocabulary for INT8 codes that the caller keeps, K and V both (nvptx_kernel.inc.h includes it where TL_CODES is
 * 1, beside nvptx_decode.inc.h). HIGH is arithmetic on scale * code: a code is exact in f16 and bf16, so the products are of
 * queries as given and codes, in f32, and scales of keys multiply scores. Weights are multiplied by their value's scale,
 * relative to a power of two for the row and tile, rounded to f16, and products with codes are added to O times that power. A key's
 * scale that is Inf counts as NaN, which is what a product of queries and Inf times codes of either sign is. Of a value's, a
 * weight becomes Inf or NaN, and its products with codes what they should. Rows that do not see one do not meet it, as codes
 * are finite. */

TL_INLINE uint32_t further8(uint32_t at, int32_t i)
{
    return (at ^ (uint32_t)(turned(i * ROWS8, 0, TURNING8) << 4)) + (uint32_t)(i * ROWS8 * PITCH8);
}

/* The KEYS rows of a tile. */
TL_INLINE void copy_codes(uint32_t to, const int8_t *from, int64_t seq)
{
    TL_FULLY
    for (int32_t i = 0; i < KEYS / ROWS8; i++) tl_copy(further8(to, i), from + i * ROWS8 * seq);
}

/* Zeros from row `there` on, counted from the lane's first. */
TL_INLINE void copy_codes_tail(uint32_t to, const int8_t *from, int64_t seq, int32_t there)
{
    TL_FULLY
    for (int32_t i = 0; i < KEYS / ROWS8; i++) {
        const int32_t has = i * ROWS8 < there;
        tl_copy_or_zero(further8(to, i), has ? from + i * ROWS8 * seq : from, has);
    }
}

/* Where scale i of a stage lies; scales of keys, then of values. */
TL_INLINE uint32_t scales_at(const tl_ctx *x, int32_t stage, int32_t i)
{
    return x->values + 2 * STAGEV + (uint32_t)((stage ? SCALES : 0) + i * 4);
}

TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    const launch *a = x->a;
    const int32_t tile = span.first * KEY_STEP, left = x->lk - tile;
    int64_t k_seq = a->k_seq, v_seq = a->v_seq;
    TL_OPAQUE_LONG(k_seq); /* their multiples would fill many registers */
    TL_OPAQUE_LONG(v_seq);
    const uint32_t keys = x->keys + (uint32_t)x->fill + x->to8, values = x->values + (uint32_t)x->fill + x->to8;
    const int8_t *k = x->k8 + tile * k_seq, *v = x->v8 + tile * v_seq;
    if (x->first_copy) { /* only the tile that the loop takes first can reach beyond the last key */
        copy_codes_tail(keys, k, k_seq, left - copier() / LANES8);
        copy_codes_tail(values, v, v_seq, left - copier() / LANES8);
    } else {
        copy_codes(keys, k, k_seq);
        copy_codes(values, v, v_seq);
    }
    const int32_t block = a->scale_keys == 1 ? 0 : (x->first + tile) / a->scale_keys; /* a tile lies in one */
    TL_FULLY
    for (int32_t i = 0; i < (KEYS + 31) / 32; i++) {
        const int32_t key = i * 32 + x->lane, has = key < left;
        if (key >= KEYS) break;
        const int64_t at = x->scales +
                           (int64_t)(a->scale_keys == 1 ? x->first + tile + (has ? key : 0) : block) * a->kv_heads;
        tl_copy4_or_zero(scales_at(x, x->fill, key), a->k_scale + at, has);
        tl_copy4_or_zero(scales_at(x, x->fill, KEYS + key), a->v_scale + at, has);
    }
}

/* Scales i, i + 1 of the stage in use. */
TL_INLINE void load_scales(const tl_ctx *x, int32_t i, float pair[2])
{
    const uint64_t both = tl_shared_load8(scales_at(x, x->use, i));
    pair[0] = tl_float((uint32_t)both);
    pair[1] = tl_float((uint32_t)(both >> 32));
}

/* ---- codes to 16 bits, exactly */

/* Two of the four codes in x, in f16: 1024 + 128 + code has 128 + code in its last bits. */
TL_INLINE uint32_t codes_f16(uint32_t x, uint32_t select)
{
    return tl_sub_f16_pair(tl_bytes(x ^ 0x80808080u, 0x64646464u, select), 0x64806480u);
}

/* The same in the type of the queries. bf16: 128 + the last seven bits, less 128 or 256 by the sign. */
TL_INLINE uint32_t codes_half(uint32_t x, uint32_t select)
{
#if TL_BF16
    return tl_add_bf16_pair(tl_bytes(x & 0x7f7f7f7fu, 0x43434343u, select),
                            tl_bytes(x & 0x80808080u, 0xc3c3c3c3u, select));
#else
    return codes_f16(x, select);
#endif
}

enum { BYTES_01 = 0x4140, BYTES_23 = 0x4342, BYTES_02 = 0x4240, BYTES_13 = 0x4341 };

/* A lane's part of a right operand, 16 channels of a key, is bytes 4 t to 4 t + 3 of them (t = lane % 4), as ldmatrix gives them:
 * fragments have channels in that order, Q's and K's. */
TL_INLINE void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)span;
    (void)rb;
    const uint32_t keys = x->keys + (uint32_t)x->use + x->k8_at;
    s->origin = 0.f;
    TL_FULLY
    for (int j = 0; j < KEYS / 8; j++) {
        TL_FULLY
        for (int e = 0; e < 4; e++) s->s[0][j][e] = 0.f;
    }
    TL_FULLY
    for (int step = 0; step < TL_D / 32; step++) {
        TL_FULLY
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t k[4];
            tl_fragment(k, step_at(keys, step, TURNING8) + (uint32_t)(j * 16 * PITCH8));
            TL_FULLY
            for (int i = 0; i < 4; i++)
                tl_mma_half(s->s[0][2 * j + i / 2], x->q[2 * step + i % 2], codes_half(k[i], BYTES_01),
                            codes_half(k[i], BYTES_23));
        }
    }
}

TL_INLINE void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)span;
    (void)rb;
    float of_key[KEYS / 8][2];
    TL_FULLY
    for (int j = 0; j < KEYS / 8; j++) {
        load_scales(x, j * 8 + (x->lane & 3) * 2, of_key[j]);
        TL_FULLY
        for (int e = 0; e < 2; e++) of_key[j][e] = tl_is_finite(of_key[j][e]) ? of_key[j][e] : TL_NAN;
    }
    scale_scores(x, s, of_key);
}

/* Weights times scales, of which the largest that the row sees of the tile becomes 2^14 to 2^15: what is 2^-28 of it or less loses
 * bits in f16. The factor 2^-8 keeps products finite, since no weight is above 2^8. */
TL_INLINE void tl_exp(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, const float ref[TL_ROWS], float sum[TL_ROWS])
{
    (void)span;
    (void)rb;
    float scales[KEYS / 8][2];
    TL_FULLY
    for (int j = 0; j < KEYS / 8; j++) load_scales(x, KEYS + j * 8 + (x->lane & 3) * 2, scales[j]);
    uint32_t top[TL_ROWS]; /* bits of magnitudes order as they do */
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        sum[r] = 0.f;
        top[r] = 0;
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            TL_FULLY
            for (int e = 0; e < 2; e++) {
                const float weight = tl_exp2_fast(SCORE(s) - ref[r]);
                sum[r] += weight;
                const int hidden = SCORE(s) == -TL_INF; /* its scale may be NaN */
                SCORE(s) = hidden ? 0.f : weight * 0x1p-8f * scales[j][e];
                const uint32_t size = tl_bits(SCORE(s)) & 0x7fffffffu;
                top[r] = size > top[r] && size < 0x7f800000u ? size : top[r];
            }
        }
    }
    /* Always, but only behind a vote does ptxas know that all lanes are there. */
    if (tl_vote_any((top[0] | top[1]) != 0)) TL_FULLY for (int with = 1; with < 4; with *= 2)
        {
            TL_FULLY
            for (int r = 0; r < TL_ROWS; r++) {
                const uint32_t other = tl_swap_bits(top[r], with);
                top[r] = other > top[r] ? other : top[r];
            }
        }
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const uint32_t least = 15, own = top[r] >> 23, exponent = own > least ? own : least; /* below: no reciprocal */
        const float inverse = tl_float((127 + 14 + 127 - exponent) << 23);
        x->value_scale[r] = tl_float((exponent - 14 + 8) << 23);
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            TL_FULLY
            for (int e = 0; e < 2; e++) SCORE(s) *= inverse;
            s->p[0][j][r] = tl_pack_f16(s->s[0][j][r * 2], s->s[0][j][r * 2 + 1]);
        }
    }
}

/* Columns of two products are the even and the odd ones of 16 channels: ldmatrix turns pairs of codes. So the lane has channels 4 t
 * to 4 t + 3, of which the first product has the first and third. */
TL_INLINE void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    (void)span;
    (void)rb;
    const uint32_t values = x->values + (uint32_t)x->use + x->v_at;
    TL_FULLY
    for (int d = 0; d < TL_D / 32; d++) {
        float sum[4][4];
        TL_FULLY
        for (int i = 0; i < 4; i++) {
            TL_FULLY
            for (int e = 0; e < 4; e++) sum[i][e] = 0.f;
        }
        TL_FULLY
        for (int j = 0; j < KEYS / 16; j++) {
            const uint32_t p[4] = {s->p[0][2 * j][0], s->p[0][2 * j][1], s->p[0][2 * j + 1][0], s->p[0][2 * j + 1][1]};
            uint32_t v[4];
            tl_fragment_transposed(v, step_at(values, d, TURNINGV) + (uint32_t)(j * 16 * PITCHV));
            TL_FULLY
            for (int i = 0; i < 2; i++) { /* of 16 channels each */
                tl_mma_f16(sum[2 * i], p, codes_f16(v[2 * i], BYTES_02), codes_f16(v[2 * i + 1], BYTES_02));
                tl_mma_f16(sum[2 * i + 1], p, codes_f16(v[2 * i], BYTES_13), codes_f16(v[2 * i + 1], BYTES_13));
            }
        }
        TL_FULLY
        for (int i = 0; i < 4; i++) {
            TL_FULLY
            for (int e = 0; e < 4; e++)
                acc->o[0][4 * d + i][e] = tl_fma_ptx(sum[i][e], x->value_scale[e / 2], acc->o[0][4 * d + i][e]);
        }
    }
}
