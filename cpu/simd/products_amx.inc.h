/* High products by AMX, from any type of Q and K: bf16 planes (simd/amx.h), whose products are summed in f32. Exact products
 * but for the smallest of f32; every score adds its terms in one order.
 *   keys     [keys / 16][d / 32][planes] tiles B
 *   queries  [rows / 16][d / 32][planes] tiles A
 * What planes cannot say (NaN, Inf) is computed pair by pair. */
#include "simd/operands.h"

typedef struct {
    int32_t steps, k_planes, q_planes; /* steps of TL_DEPTH channels */
    uint16_t *keys, *q;
    unsigned char *flagged, *panels_flagged; /* [keys] holds a NaN or Inf; [keys / 16] some key of the panel does */
    unsigned char *q_flagged;                /* [rows] */
    int32_t some_q_flagged;
} tl_high;

TL_INLINE int tl_high_suits(const tlamp_problem *problem)
{
    /* Up to one row tile: vectors are faster, which meet K and V in place. So they are where both Q and K have three planes: a
     * thread with a core of its own gains by six products in place of FMA, but hyperthreads share one tile unit, and lose. */
    const int64_t group = problem->num_heads_k ? problem->num_heads_q / problem->num_heads_k : 0;
    const tlamp_policy_kind kind = problem->policy->kind;
    const int high = kind == TLAMP_POLICY_HIGH || kind == TLAMP_POLICY_ROUTED;
    const int three = problem->q_dtype == TLAMP_F32 && problem->k_dtype == TLAMP_F32;
    return problem->max_seqlen_q * group > TL_PANEL && !(high && three);
}

static void tl_high_lay_out_keys(tl_high *h, const tl_shape *shape, int64_t keys, tl_arena *a)
{
    const int64_t n = shape->high ? keys : 0;
    h->steps = (int32_t)tl_ceil_div(shape->head_dim_qk, TL_DEPTH);
    h->k_planes = tl_planes_of(shape->k_dtype);
    h->keys = tl_take(a, n / TL_PANEL * h->steps * h->k_planes * TL_TILE_BYTES);
    h->flagged = tl_take(a, n);
    h->panels_flagged = tl_take(a, n / TL_PANEL);
}

static void tl_high_lay_out_task(tl_high *h, const tl_shape *shape, int64_t rows, tl_arena *a)
{
    const int64_t n = shape->high ? rows : 0;
    h->steps = (int32_t)tl_ceil_div(shape->head_dim_qk, TL_DEPTH);
    h->q_planes = tl_planes_of(shape->q_dtype);
    h->q = tl_take(a, n / TL_PANEL * h->steps * h->q_planes * TL_TILE_BYTES);
    h->q_flagged = tl_take(a, n);
}

/* ---- packing */

/* Channels c .. of a row as planes of 32 numbers, zeros from d on. Returns NaN in some lane where one is not finite. */
TL_INLINE tl_v tl_row_planes(const unsigned char *row, int32_t c, int32_t d, float scale, const int32_t dtype,
                             __m512i planes[TL_PLANES])
{
    const tl_v zero = tl_v_set(0.f);
    tl_v a = tl_load_lanes(row, c, d - c, dtype), b = zero;
    if (c + TL_PANEL < d) b = tl_load_lanes(row, c + TL_PANEL, d - c - TL_PANEL, dtype);
    if (dtype == TL_I8) {
        a = tl_v_mul(a, tl_v_set(scale));
        b = tl_v_mul(b, tl_v_set(scale));
    }
    const tl_v bad = tl_v_fma(a, zero, tl_v_mul(b, zero));
    TL_UNROLL for (int32_t i = 0; i < tl_planes_of(dtype); i++)
    {
        const __m512i high = tl_plane(&a);
        planes[i] = tl_planes_join(high, tl_plane(&b));
    }
    return bad;
}

TL_INLINE void tl_find_keys(const tl_operands *x, int64_t key, tl_panel_rows *k)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int64_t i = tl_min64(key + j, seq->lk - 1); /* what stands for keys that do not exist is never seen */
        k->row[j] = tl_row(&call->k, seq->batch, seq->k_start, i, x->cpu.kv_head);
        k->scale[j] = tl_key_scale(call, seq, x->cpu.kv_head, i);
    }
}

/* Packs them at `to`. Bit j of the result: key j holds a NaN or Inf. */
TL_INLINE int32_t tl_pack_high_from(const tl_panel_rows *k, uint16_t *to, int32_t d, const int32_t dtype)
{
    const int32_t planes = tl_planes_of(dtype);
    int32_t flagged = 0;
    for (int32_t c = 0; c < d; c += TL_DEPTH, to += planes * TL_TILE_HALVES) {
        __m512i square[TL_PLANES][TL_PANEL];
        TL_UNROLL for (int32_t j = 0; j < TL_PANEL; j++)
        {
            __m512i part[TL_PLANES];
            const tl_v bad = tl_row_planes(k->row[j], c, d, k->scale[j], dtype, part);
            flagged |= (int32_t)(_mm512_cmp_ps_mask(bad, bad, _CMP_UNORD_Q) != 0) << j;
            TL_UNROLL for (int32_t i = 0; i < planes; i++) square[i][j] = part[i];
        }
        for (int32_t i = 0; i < planes; i++) {
            tl_v lanes[TL_LANES];
            TL_UNROLL for (int32_t j = 0; j < TL_PANEL; j++) lanes[j] = _mm512_castsi512_ps(square[i][j]);
            tl_store_square((float *)(void *)(to + i * TL_TILE_HALVES), 0, TL_PANEL, 0, lanes);
        }
    }
    return flagged;
}

/* The same of bf16 keys, which are planes as they are. */
static int32_t tl_pack_high_halves(const tl_panel_rows *k, uint16_t *to, int32_t d)
{
    __m512i top = _mm512_setzero_si512();
    int32_t flagged = 0;
    for (int32_t c = 0; c < d; c += TL_DEPTH, to += TL_TILE_HALVES) {
        tl_v lanes[TL_LANES];
        TL_UNROLL for (int32_t j = 0; j < TL_PANEL; j++)
        {
            const __m512i a = tl_row_halves(k->row[j], c, d);
            top = tl_halves_top(top, a);
            lanes[j] = _mm512_castsi512_ps(a);
        }
        tl_store_square((float *)(void *)to, 0, TL_PANEL, 0, lanes);
    }
    for (int32_t j = 0; j < TL_PANEL && !tl_halves_are_finite(top); j++) {
        __m512i own = _mm512_setzero_si512();
        for (int32_t c = 0; c < d; c += TL_DEPTH) own = tl_halves_top(own, tl_row_halves(k->row[j], c, d));
        flagged |= !tl_halves_are_finite(own) << j;
    }
    return flagged;
}

static void tl_high_pack(const tl_operands *x, const tl_high *h, int64_t begin, int64_t end)
{
    for (int64_t key = begin; key < end; key += TL_PANEL) {
        const int64_t at = key - x->first;
        uint16_t *to = h->keys + at * (h->steps * h->k_planes * TL_DEPTH);
        int32_t flagged = 0;
        tl_panel_rows k;
        tl_find_keys(x, key, &k);
        switch (x->cpu.call->k.dtype) {
        case TL_F32: flagged = tl_pack_high_from(&k, to, x->d, TL_F32); break;
        case TL_F16: flagged = tl_pack_high_from(&k, to, x->d, TL_F16); break;
        case TL_BF16: flagged = tl_pack_high_halves(&k, to, x->d); break;
        default: flagged = tl_pack_high_from(&k, to, x->d, TL_I8); break;
        }
        h->panels_flagged[at / TL_PANEL] = flagged != 0;
        for (int32_t j = 0; j < TL_PANEL; j++) h->flagged[at + j] = (unsigned char)(flagged >> j & 1);
    }
}

/* ---- queries: from the tensor */

#define TL_HIGH_TAKES_ROWS 1

/* Where row r of the task begins in h->q. */
TL_INLINE uint16_t *tl_high_row(const tl_high *h, int32_t r)
{
    return h->q + (int64_t)(r / TL_PANEL) * h->steps * h->q_planes * TL_TILE_HALVES + r % TL_PANEL * TL_DEPTH;
}

/* Returns whether it holds a NaN or Inf. */
TL_INLINE int tl_high_query(const tl_high *h, const unsigned char *row, int32_t d, float scale, const int32_t dtype,
                            uint16_t *to)
{
    tl_v bad = tl_v_set(0.f);
    for (int32_t c = 0; c < d; c += TL_DEPTH) {
        __m512i planes[TL_PLANES];
        bad = tl_v_add(bad, tl_row_planes(row, c, d, scale, dtype, planes));
        for (int32_t i = 0; i < h->q_planes; i++, to += TL_TILE_HALVES) _mm512_store_si512(to, planes[i]);
    }
    return tl_is_nan(tl_v_sum(bad));
}

TL_INLINE int tl_high_query_halves(const unsigned char *row, int32_t d, uint16_t *to)
{
    __m512i top = _mm512_setzero_si512();
    for (int32_t c = 0; c < d; c += TL_DEPTH, to += TL_TILE_HALVES) {
        const __m512i a = tl_row_halves(row, c, d);
        top = tl_halves_top(top, a);
        _mm512_store_si512(to, a);
    }
    return !tl_halves_are_finite(top);
}

static void tl_high_begin(const tl_operands *x, tl_high *h)
{
    const tl_cpu *c = &x->cpu;
    const tl_operand *q = &c->call->q;
    h->some_q_flagged = 0;
    for (int32_t r = 0, n = tl_task_rows(&c->task); r < n; r++) {
        const int32_t head = tl_head_of(c, r);
        const int64_t token = tl_token_of(c, r);
        const unsigned char *row = tl_row(q, c->seq->batch, c->seq->q_start, token, head);
        uint16_t *to = tl_high_row(h, r);
        int flagged;
        switch (q->dtype) {
        case TL_F32: flagged = tl_high_query(h, row, x->d, 1.f, TL_F32, to); break;
        case TL_F16: flagged = tl_high_query(h, row, x->d, 1.f, TL_F16, to); break;
        case TL_BF16: flagged = tl_high_query_halves(row, x->d, to); break;
        default: flagged = tl_high_query(h, row, x->d, tl_query_scale(c, head, token), TL_I8, to); break;
        }
        h->q_flagged[r] = (unsigned char)flagged;
        h->some_q_flagged |= flagged;
    }
}

/* ---- products */

TL_INLINE void tl_high_tiles(const int two_rows, const int two_columns, const tl_high *h, int32_t row, int64_t at,
                             float *block, int64_t stride)
{
    const int64_t q_next = (int64_t)h->steps * h->q_planes * TL_TILE_BYTES;
    const int64_t k_next = (int64_t)h->steps * h->k_planes * TL_TILE_BYTES;
    const unsigned char *q = (const unsigned char *)h->q + row / TL_PANEL * q_next;
    const unsigned char *k = (const unsigned char *)h->keys + at / TL_PANEL * k_next;
    tl_tiles_zero(two_rows, two_columns);
    for (int32_t c = 0; c < h->steps; c++) {
        for (int32_t i = 0; i < h->q_planes; i++) {
            tl_tiles_a(two_rows, q + i * TL_TILE_BYTES, 64, q_next);
            for (int32_t j = 0; j < h->k_planes && tl_planes_meet(i, j); j++)
                tl_tiles_dot(TL_BF16_BY_BF16, two_rows, two_columns, k + j * TL_TILE_BYTES, k_next);
        }
        q += h->q_planes * TL_TILE_BYTES;
        k += h->k_planes * TL_TILE_BYTES;
    }
    tl_tiles_store(two_rows, two_columns, block, stride);
}

static void tl_high_block(const tl_high *h, int32_t row, int32_t rows, int64_t at, int32_t n, float *block,
                          int64_t stride)
{
    if (rows > TL_PANEL && n > TL_PANEL)
        tl_high_tiles(1, 1, h, row, at, block, stride);
    else if (rows > TL_PANEL)
        tl_high_tiles(1, 0, h, row, at, block, stride);
    else if (n > TL_PANEL)
        tl_high_tiles(0, 1, h, row, at, block, stride);
    else
        tl_high_tiles(0, 0, h, row, at, block, stride);
}

TL_INLINE int tl_high_flagged(const tl_high *h, int64_t at, int32_t n)
{
    return h->some_q_flagged || tl_any_marked(h->panels_flagged, at, n);
}

static void tl_high_mend(const tl_operands *x, const tl_high *h, int32_t row, int32_t rows, int64_t at, int32_t n,
                         float *s)
{
    const tl_cpu *c = &x->cpu;
    const int64_t key = x->first + at;
    for (int32_t r = 0; r < rows; r++) {
        tl_widen_query(x->token, c, tl_head_of(c, row + r), tl_token_of(c, row + r));
        for (int32_t j = 0; j < n && key + j < c->seq->lk; j++)
            if (h->q_flagged[row + r] || h->flagged[at + j])
                s[r * TL_SCORE_STRIDE + j] = tl_dot_flagged(c, x->token, key + j) * x->factor;
    }
}
