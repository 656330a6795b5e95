/* The mma.sync vocabulary of core/tile_loop.inc.h and the bare kernel around it. The including file says
 *   TL_D        head dimension, 64 or 128
 *   TL_ROUTED   1: tiles are INT8 or high, by word; 0: all high
 *   TL_LAUNCH   the name of the function that launches it (nvptx.h)
 *
 * A block of 4 warps takes 128 query rows of one head; a warp is the agent of the loop and owns 32 of them, as two 16-row
 * fragments. A lane holds two rows of each (TL_ROWS = 4), which it shares with the three neighbours of its quad. Keys come
 * in tiles of 64 through two stages of shared memory: while one is worked on, the next is copied. */
#include "nvptx.h"

static volatile int ran_on_host;

enum {
    WARPS = 4,
    THREADS = WARPS * 32,
    FRAGMENTS = 2, /* of 16 rows in a warp */
    KEYS = TL_DEVICE_KEYS,
    WARP_ROWS = 16 * FRAGMENTS,
    PITCH16 = TL_D * 2, /* bytes of a row of f16 and of codes in shared memory */
    PITCH8 = TL_D,
    STAGE = KEYS * PITCH16,
    SHARED_BYTES = TL_DEVICE_ROWS * PITCH16 + 4 * STAGE + (TL_ROUTED ? TL_DEVICE_ROWS * PITCH8 : 0)
};

/* A launch, as the kernel sees it: tl_device_call without what only the host needs. */
typedef struct {
    const uint16_t *q, *k, *v;
    uint16_t *o;
    float *lse;
    tl_device_strides q_stride, k_stride, v_stride, o_stride, lse_stride;
    tl_device_codes codes;
    int32_t heads_q, group_heads, lq, lk, reach, causal;
    float logit_scale;
    const uint64_t *words;
    int64_t words_batch, words_head, words_row;
    uint32_t group_inverse;
} launch;

#ifdef __NVPTX__
#pragma omp begin declare target device_type(nohost)
#include "ptx.h"
#include "core/online_softmax.h"
#include "core/routing.h"

/* ---- the geometry of a warp, in 32 bits: tl_task of this vocabulary */

#define TL_OWN_TASK

typedef struct {
    int32_t first, count, route, edge;
} tl_span;

typedef struct {
    int32_t tile_end;       /* of the block: all warps take part in every arrival */
    int32_t first_row_sees; /* keys below this are seen by every row of the warp */
    uint64_t word;
    uint32_t group_inverse;
} tl_task;

typedef int32_t tl_tokens; /* the warp is its only row block: there is nothing to choose */

TL_INLINE int32_t tl_task_rows(const tl_task *t)
{
    (void)t;
    return WARP_ROWS;
}

TL_INLINE int32_t tl_tile_low(const tl_task *t)
{
    (void)t;
    return 0;
}

TL_INLINE int32_t tl_tile_end(const tl_task *t) { return t->tile_end; }

TL_INLINE int32_t tl_group_of(const tl_task *t, int32_t tile)
{
    return (int32_t)((uint64_t)(uint32_t)tile * t->group_inverse >> 31);
}

TL_INLINE int32_t tl_route(const tl_task *t, int32_t tile)
{
    return TL_ROUTED ? (int32_t)(t->word >> tl_group_of(t, tile) & 1u) : TL_HIGH;
}

TL_INLINE tl_tokens tl_row_tokens(const tl_task *t, int32_t row, int32_t n)
{
    (void)t;
    (void)n;
    return row;
}

/* Never drops a span, not even one that the warp does not see. */
TL_INLINE tl_span tl_clip(const tl_task *t, tl_span s, tl_tokens rows)
{
    (void)rows;
    s.edge = (s.first + 1) * KEYS > t->first_row_sees;
    return s;
}

/* ---- the vocabulary */

#define TL_ROWS (2 * FRAGMENTS)
#define TL_ROW_BLOCKS 1
#define TL_SPAN_MAX 1
#define TL_SPAN_MIXED 0
#define TL_LAZY 8.f
#define TL_STATE_F16 0
#define TL_LAMP 0

/* Scores, then P in pairs of f16. The logit of a score x is x * scale - origin. */
typedef struct {
    float s[FRAGMENTS][KEYS / 8][4];
    uint32_t p[FRAGMENTS][KEYS / 8][2];
    float scale, origin;
} tl_scores;

typedef struct {
    float o[FRAGMENTS][TL_D / 8][4];
} tl_acc;

typedef struct {
    tl_task task;
    const launch *a;
    int32_t lane, row0;    /* the warp's first row */
    const uint16_t *k, *v; /* of this lane's first chunk in key tile 0 */
    const int8_t *k8;
    const uint16_t *q;
    const int8_t *q8;
    uint16_t *o;
    float *lse;
    const float *k_scale;
    float q_scale;                               /* times logit_scale */
    int32_t fill, use;                           /* offsets of the stages that are filled and used */
    float filled_scale, used_scale;              /* of their keys' codes: loaded a tile ahead */
    int32_t chunk_row;                           /* where this lane's copies begin */
    uint32_t bad;                                /* bit r: row r holds a NaN or Inf of V's */
    int32_t first_copy;                          /* key tile_end * KEYS may lie beyond the last key */
    uint32_t to16, to8;                          /* ... in shared memory, from the start of a tile */
    uint32_t keys, values;                       /* shared memory: stage 0 */
    uint32_t q16_at, q8_at, k16_at, k8_at, v_at; /* this lane's fragment addresses of channel 0 */
} tl_ctx;

TL_INLINE const tl_task *tl_task_of(const tl_ctx *x) { return &x->task; }

TL_INLINE int32_t tl_block_size(const tl_ctx *x)
{
    (void)x;
    return WARP_ROWS;
}

/* Rows of 16-byte chunks, permuted so that the eight rows which one 8x8 tile reads lie in different banks. The chunk of
 * channel step i is that of step 0 with i * 32 xored into its address. */
TL_INLINE uint32_t place16(int32_t row, int32_t chunk)
{
    return (uint32_t)(row * PITCH16 + ((chunk ^ (row & 7)) << 4));
}

TL_INLINE uint32_t place8(int32_t row, int32_t chunk)
{
    const int32_t turn = TL_D == 128 ? row & 7 : row >> 1 & 3; /* two rows of 64 bytes share a line of 128 */
    return (uint32_t)(row * PITCH8 + ((chunk ^ turn) << 4));
}

enum { ROWS16 = THREADS / (TL_D / 8), ROWS8 = THREADS / (TL_D / 16) }; /* rows that the block copies at once */

/* ---- data movement */

TL_INLINE void copy16(uint32_t to, const uint16_t *from, int64_t seq, int32_t rows)
{
    TL_FULLY
    for (int32_t i = 0; i < rows / ROWS16; i++) tl_copy(to + (uint32_t)(i * ROWS16 * PITCH16), from + i * ROWS16 * seq);
}

/* Zeros from row `there` on. */
TL_INLINE void copy16_tail(uint32_t to, const uint16_t *from, int64_t seq, int32_t rows, int32_t row, int32_t there)
{
    TL_FULLY
    for (int32_t i = 0; i < rows / ROWS16; i++) {
        const int32_t has = row + i * ROWS16 < there;
        tl_copy_or_zero(to + (uint32_t)(i * ROWS16 * PITCH16), has ? from + i * ROWS16 * seq : from - row * seq, has);
    }
}

TL_INLINE void copy8(uint32_t to, const int8_t *from, int32_t rows)
{
    TL_FULLY
    for (int32_t i = 0; i < rows / ROWS8; i++) tl_copy(to + (uint32_t)(i * ROWS8 * PITCH8), from + i * ROWS8 * TL_D);
}

TL_INLINE void tl_begin(tl_ctx *x, tl_acc *acc)
{
    const int32_t q_rows = x->a->lq - (x->row0 - x->row0 % TL_DEVICE_ROWS);
    copy16_tail(tl_shared_base() + x->to16, x->q, x->a->q_stride.seq, TL_DEVICE_ROWS, x->chunk_row, q_rows);
    if (TL_ROUTED) copy8(tl_shared_base() + TL_DEVICE_ROWS * PITCH16 + 4 * STAGE + x->to8, x->q8, TL_DEVICE_ROWS);
    TL_FULLY
    for (int m = 0; m < FRAGMENTS; m++) {
        TL_FULLY
        for (int d = 0; d < TL_D / 8; d++) {
            TL_FULLY
            for (int e = 0; e < 4; e++) acc->o[m][d][e] = 0.f;
        }
    }
    x->fill = x->use = 0;
    x->bad = 0;
    x->first_copy = 1;
    x->filled_scale = 0.f;
}

TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    const int64_t key = (int64_t)span.first * KEYS, k_seq = x->a->k_stride.seq, v_seq = x->a->v_stride.seq;
    const uint32_t keys = x->keys + (uint32_t)x->fill, values = x->values + (uint32_t)x->fill + x->to16;
    if (span.route == TL_INT8) {
        copy8(keys + x->to8, x->k8 + key * TL_D, KEYS);
        x->filled_scale = x->k_scale[span.first];
    } else if (x->first_copy)
        copy16_tail(keys + x->to16, x->k + key * k_seq, k_seq, KEYS, x->chunk_row, x->a->lk - span.first * KEYS);
    else
        copy16(keys + x->to16, x->k + key * k_seq, k_seq, KEYS);
    if (x->first_copy) /* only the tile that the loop takes first can reach beyond the last key */
        copy16_tail(values, x->v + key * v_seq, v_seq, KEYS, x->chunk_row, x->a->lk - span.first * KEYS);
    else
        copy16(values, x->v + key * v_seq, v_seq, KEYS);
}

/* The only barrier of a tile: everyone's copies have landed, and everyone has left the other stage. */
TL_INLINE void tl_arrive(tl_ctx *x, tl_span span)
{
    (void)span;
    tl_copies_wait();
    tl_barrier();
    x->first_copy = 0;
    x->fill = x->use ^ STAGE;
    x->used_scale = x->filled_scale;
    TL_OPAQUE(x->q16_at);
    TL_OPAQUE(x->k16_at);
    TL_OPAQUE(x->v_at);
    TL_OPAQUE(x->to16);
    if (TL_ROUTED) {
        TL_OPAQUE(x->q8_at);
        TL_OPAQUE(x->k8_at);
        TL_OPAQUE(x->to8);
    }
}

TL_INLINE void tl_leave(tl_ctx *x, tl_span span)
{
    (void)span;
    x->use ^= STAGE;
}

/* ---- products */

TL_INLINE void scores_high(float s[FRAGMENTS][KEYS / 8][4], uint32_t q_at, uint32_t k_at)
{
    TL_FULLY
    for (int step = 0; step < TL_D / 16; step++) {
        uint32_t q[FRAGMENTS][4];
        TL_FULLY
        for (int m = 0; m < FRAGMENTS; m++)
            tl_fragment(q[m], (q_at ^ (uint32_t)(step * 32)) + (uint32_t)(m * 16 * PITCH16));
        TL_FULLY
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t k[4];
            tl_fragment(k, (k_at ^ (uint32_t)(step * 32)) + (uint32_t)(j * 16 * PITCH16));
            TL_FULLY
            for (int m = 0; m < FRAGMENTS; m++) {
                if (step == 0) {
                    tl_mma_f16_first(s[m][2 * j], q[m], k[0], k[1]);
                    tl_mma_f16_first(s[m][2 * j + 1], q[m], k[2], k[3]);
                } else {
                    tl_mma_f16(s[m][2 * j], q[m], k[0], k[1]);
                    tl_mma_f16(s[m][2 * j + 1], q[m], k[2], k[3]);
                }
            }
        }
    }
}

TL_INLINE void scores_int8(float s[FRAGMENTS][KEYS / 8][4], uint32_t q_at, uint32_t k_at)
{
    TL_FULLY
    for (int step = 0; step < TL_D / 32; step++) {
        uint32_t q[FRAGMENTS][4];
        TL_FULLY
        for (int m = 0; m < FRAGMENTS; m++)
            tl_fragment(q[m], (q_at ^ (uint32_t)(step * 32)) + (uint32_t)(m * 16 * PITCH8));
        TL_FULLY
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t k[4];
            tl_fragment(k, (k_at ^ (uint32_t)(step * 32)) + (uint32_t)(j * 16 * PITCH8));
            TL_FULLY
            for (int m = 0; m < FRAGMENTS; m++) {
                if (step == 0) {
                    tl_mma_s8_first(s[m][2 * j], q[m], k[0], k[1]);
                    tl_mma_s8_first(s[m][2 * j + 1], q[m], k[2], k[3]);
                } else {
                    tl_mma_s8(s[m][2 * j], q[m], k[0], k[1]);
                    tl_mma_s8(s[m][2 * j + 1], q[m], k[2], k[3]);
                }
            }
        }
    }
}

TL_INLINE void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const uint32_t keys = x->keys + (uint32_t)x->use;
    if (span.route == TL_INT8) {
        scores_int8(s->s, x->q8_at, keys + x->k8_at);
        s->scale = x->q_scale * x->used_scale;
        s->origin = s->scale * TL_INT8_ORIGIN;
    } else {
        scores_high(s->s, x->q16_at, keys + x->k16_at);
        s->scale = x->a->logit_scale;
        s->origin = 0.f;
    }
}

TL_INLINE void tl_scores_wait(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

/* ---- score epilogue */

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    (void)x;
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) sink[r] = TL_NEVER;
}

/* Scale and origin fold into tl_row_max and tl_exp. */
TL_INLINE void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

/* Row r of the lane, counted from the block row of the warp. */
TL_INLINE int32_t row_of(const tl_ctx *x, int r) { return x->row0 + r * 8 + (x->lane >> 2); }

TL_INLINE void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const int32_t key = span.first * KEYS + (x->lane & 3) * 2;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int32_t end = row_of(x, r) + x->a->reach, seen = (end < x->a->lk ? end : x->a->lk) - key;
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            TL_FULLY
            for (int e = 0; e < 2; e++)
                if (j * 8 + e >= seen) s->s[r / 2][j][r % 2 * 2 + e] = -TL_INF;
        }
    }
}

TL_INLINE void tl_row_max(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t rb, float top[TL_ROWS])
{
    (void)x;
    (void)span;
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        float a = s->s[r / 2][0][r % 2 * 2], b = s->s[r / 2][0][r % 2 * 2 + 1];
        TL_FULLY
        for (int j = 1; j < KEYS / 8; j++) {
            a = tl_max_ptx(a, s->s[r / 2][j][r % 2 * 2]);
            b = tl_max_ptx(b, s->s[r / 2][j][r % 2 * 2 + 1]);
        }
        top[r] = tl_fma_ptx(tl_max_ptx(a, b), s->scale, -s->origin);
    }
}

TL_INLINE void tl_row_join_max(const tl_ctx *x, float top[TL_ROWS])
{
    (void)x;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        top[r] = tl_max_ptx(top[r], tl_swap(top[r], 1));
        top[r] = tl_max_ptx(top[r], tl_swap(top[r], 2));
    }
}

TL_INLINE void tl_row_join_sum(const tl_ctx *x, float sum[TL_ROWS])
{
    (void)x;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        sum[r] += tl_swap(sum[r], 1);
        sum[r] += tl_swap(sum[r], 2);
    }
}

TL_INLINE int tl_any(const tl_ctx *x, int predicate)
{
    (void)x;
    return tl_vote_any(predicate);
}

TL_INLINE void tl_exp(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, const float ref[TL_ROWS], float sum[TL_ROWS])
{
    (void)x;
    (void)span;
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const float offset = -(ref[r] + s->origin);
        sum[r] = 0.f;
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            const float p0 = tl_exp2_fast(tl_fma_ptx(s->s[r / 2][j][r % 2 * 2], s->scale, offset));
            const float p1 = tl_exp2_fast(tl_fma_ptx(s->s[r / 2][j][r % 2 * 2 + 1], s->scale, offset));
            sum[r] += p0 + p1;
            s->p[r / 2][j][r % 2] = tl_pack_f16(p0, p1);
        }
    }
}

TL_INLINE void tl_rescale(tl_ctx *x, tl_acc *acc, int32_t rb, const float lambda[TL_ROWS])
{
    (void)x;
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        TL_FULLY
        for (int d = 0; d < TL_D / 8; d++) {
            acc->o[r / 2][d][r % 2 * 2] *= lambda[r];
            acc->o[r / 2][d][r % 2 * 2 + 1] *= lambda[r];
        }
    }
}

/* ---- P V: the scores of a row lie in the lanes as the left operand of a product wants them */

TL_INLINE void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    (void)span;
    (void)rb;
    const uint32_t values = x->values + (uint32_t)x->use + x->v_at;
    TL_FULLY
    for (int j = 0; j < KEYS / 16; j++) {
        uint32_t p[FRAGMENTS][4];
        TL_FULLY
        for (int m = 0; m < FRAGMENTS; m++) {
            TL_FULLY
            for (int i = 0; i < 4; i++) p[m][i] = s->p[m][2 * j + i / 2][i % 2];
        }
        TL_FULLY
        for (int d = 0; d < TL_D / 16; d++) {
            uint32_t v[4];
            tl_fragment_transposed(v, (values ^ (uint32_t)(d * 32)) + (uint32_t)(j * 16 * PITCH16));
            TL_FULLY
            for (int m = 0; m < FRAGMENTS; m++) {
                tl_mma_f16(acc->o[m][2 * d], p[m], v[0], v[1]);
                tl_mma_f16(acc->o[m][2 * d + 1], p[m], v[2], v[3]);
            }
        }
    }
}

TL_INLINE void tl_values_wait(tl_ctx *x, tl_acc *acc)
{
    (void)x;
    (void)acc;
}

/* ---- end */

/* A row again, by all lanes of the warp and without tensor cores, from the keys that it sees and no other: for rows whose
 * values hold a NaN or Inf, which a weight of 0 does not hide. Not inlined, or it would take the loop's registers. */
static __attribute__((noinline)) void row_again(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o,
                                                int64_t k_seq, int64_t v_seq, int32_t end, float logit_scale)
{
    enum { MINE = TL_D / 32 }; /* channels of a lane */
    const int32_t first = tl_thread() % 32 * MINE;
    float acc[MINE] = {0.f}, m = TL_NEVER, l = 0.f;
    for (int32_t key = 0; key < end; key++) {
        float s = 0.f;
        TL_FULLY
        for (int c = 0; c < MINE; c++) s += tl_from_f16(q[first + c]) * tl_from_f16(k[key * k_seq + first + c]);
        TL_FULLY
        for (int with = 16; with; with >>= 1) s += tl_swap(s, with);
        s *= logit_scale;
        const float top = tl_max(m, s), ref = tl_reference(top), lambda = tl_exp2(m - ref), p = tl_exp2(s - ref);
        m = top;
        l = l * lambda + p;
        TL_FULLY
        for (int c = 0; c < MINE; c++) acc[c] = acc[c] * lambda + p * tl_from_f16(v[key * v_seq + first + c]);
    }
    TL_FULLY
    for (int c = 0; c < MINE; c++) o[first + c] = tl_to_f16(l == 0.f ? 0.f : acc[c] / l);
}

TL_INLINE void tl_store(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int32_t row = row_of(x, r);
        if (row >= x->a->lq) continue;
        float rest = 0.f; /* NaN where O is not finite */
        TL_FULLY
        for (int d = 0; d < TL_D / 8; d++) {
            TL_FULLY
            for (int e = 0; e < 2; e++) rest = tl_fma_ptx(acc->o[r / 2][d][r % 2 * 2 + e], 0.f, rest);
        }
        if (tl_is_nan(rest) && tl_is_finite(l[r])) x->bad |= 1u << r; /* a NaN or Inf of V's, not of a logit */
        const float inverse = l[r] == 0.f ? 0.f : 1.f / l[r];
        uint16_t *o = x->o + row * x->a->o_stride.seq + (x->lane & 3) * 2;
        TL_FULLY
        for (int d = 0; d < TL_D / 8; d++)
            *(TL_GLOBAL_SPACE uint32_t *)(o + d * 8) = tl_pack_f16(acc->o[r / 2][d][r % 2 * 2] * inverse,
                                                                   acc->o[r / 2][d][r % 2 * 2 + 1] * inverse);
        if (x->a->lse && (x->lane & 3) == 0) /* a row that saw nothing: 0 + log 0 */
            x->lse[row * x->a->lse_stride.seq] = ((m[r] == TL_NEVER ? 0.f : m[r]) + tl_log2_fast(l[r])) * TL_LN2;
    }
}

#include "core/tile_loop.inc.h"

/* ---- one block */

TL_INLINE int32_t shared_by_warp(int32_t x) { return TL_ROUTED ? tl_uniform(x) : x; } /* measured there only */

/* Which rows are a block's: tile of query head `head`; later tiles first where they see more. */
typedef struct {
    int32_t row_tiles, all_heads, batch, head, kv_head, tile;
} place;

TL_INLINE place place_of(const launch *a, int32_t block)
{
    place p;
    p.row_tiles = (a->lq + TL_DEVICE_ROWS - 1) / TL_DEVICE_ROWS;
    p.all_heads = shared_by_warp(block / p.row_tiles);
    p.batch = shared_by_warp(p.all_heads / a->heads_q);
    p.head = p.all_heads - p.batch * a->heads_q;
    p.kv_head = shared_by_warp(p.head / a->group_heads);
    p.tile = block - p.all_heads * p.row_tiles;
    if (a->causal) p.tile = p.row_tiles - 1 - p.tile;
    return p;
}

/* bad: which of the lane's rows hold a NaN or Inf, bit r for row r. Nothing that the loop knew is used, so that nothing had
 * to be kept for it. */
TL_INLINE void rows_again(const launch *a, uint32_t bad)
{
    int32_t block = tl_block(), thread = tl_thread();
    TL_OPAQUE(block);
    TL_OPAQUE(thread);
    const place at = place_of(a, block);
    const uint16_t *q = a->q + at.batch * a->q_stride.batch + at.head * a->q_stride.head;
    const uint16_t *k = a->k + at.batch * a->k_stride.batch + at.kv_head * a->k_stride.head;
    const uint16_t *v = a->v + at.batch * a->v_stride.batch + at.kv_head * a->v_stride.head;
    uint16_t *o = a->o + at.batch * a->o_stride.batch + at.head * a->o_stride.head;
    tl_warp_barrier();
    for (int32_t i = 0; i < WARP_ROWS; i++) { /* row i of the warp is row i / 8 of the lanes of quad i % 8 */
        const int32_t row = at.tile * TL_DEVICE_ROWS + thread / 32 * WARP_ROWS + i, past = row + a->reach;
        if (tl_vote_any(thread % 32 / 4 == i % 8 && (bad >> (i / 8) & 1u)))
            row_again(q + row * a->q_stride.seq, k, v, o + row * a->o_stride.seq, a->k_stride.seq, a->v_stride.seq,
                      past < a->lk ? past : a->lk, a->logit_scale);
    }
}

/* The word of the routing row, with the bits of groups cleared that hold a block without codes: those are high. */
TL_INLINE uint64_t usable_word(const tl_ctx *x, uint64_t word, float q_scale)
{
    uint32_t bad[2] = {0, 0};
    for (int32_t first = 0; first < x->task.tile_end; first += 32) { /* no lane leaves before the others */
        const int32_t tile = first + x->lane, group = tl_group_of(&x->task, tile);
        const uint32_t bit = tile < x->task.tile_end && x->k_scale[tile] < 0.f ? 1u << (group & 31) : 0u;
        bad[0] |= group < 32 ? bit : 0u;
        bad[1] |= group < 32 ? 0u : bit;
    }
    const uint64_t high = tl_join_or(bad[0]) | (uint64_t)tl_join_or(bad[1]) << 32;
    const uint64_t usable = q_scale < 0.f ? 0 : word & ~high;
    return (uint32_t)tl_uniform((int32_t)usable) | (uint64_t)(uint32_t)tl_uniform((int32_t)(usable >> 32)) << 32;
}

TL_INLINE void attend(const launch *a) /* a call would put everything into local memory */
{
    const place at = place_of(a, tl_block());
    const int32_t batch = at.batch, head = at.head, kv_head = at.kv_head, row = at.tile * TL_DEVICE_ROWS;
    const int32_t warp = shared_by_warp(tl_thread() / 32), key_tiles = (a->lk + KEYS - 1) / KEYS;
    const int32_t last = row + TL_DEVICE_ROWS < a->lq ? row + TL_DEVICE_ROWS : a->lq; /* the row after the block */
    const int32_t past = last - 1 + a->reach, end = past < 0 ? 0 : past < a->lk ? past : a->lk;
    const int64_t kv = (int64_t)batch * (a->heads_q / a->group_heads) + kv_head;

    tl_ctx x;
    x.a = a;
    x.lane = tl_thread() % 32;
    x.row0 = row + warp * WARP_ROWS;
    x.chunk_row = tl_thread() / (TL_D / 8);
    const int32_t chunk = tl_thread() % (TL_D / 8), row8 = tl_thread() / (TL_D / 16),
                  chunk8 = tl_thread() % (TL_D / 16);
    x.q = a->q + batch * a->q_stride.batch + head * a->q_stride.head + (row + x.chunk_row) * a->q_stride.seq +
          chunk * 8;
    x.k = a->k + batch * a->k_stride.batch + kv_head * a->k_stride.head + x.chunk_row * a->k_stride.seq + chunk * 8;
    x.v = a->v + batch * a->v_stride.batch + kv_head * a->v_stride.head + x.chunk_row * a->v_stride.seq + chunk * 8;
    x.o = a->o + batch * a->o_stride.batch + head * a->o_stride.head;
    x.lse = a->lse + batch * a->lse_stride.batch + head * a->lse_stride.head;
    x.to16 = place16(x.chunk_row, chunk);
    x.to8 = place8(row8, chunk8);

    const uint32_t shared = tl_shared_base();
    const int32_t lane = x.lane, left = lane & 15, right = (lane & 7) + (lane >> 4 << 3); /* rows of fragments */
    x.keys = shared + TL_DEVICE_ROWS * PITCH16;
    x.values = x.keys + 2 * STAGE;
    x.q16_at = shared + place16(warp * WARP_ROWS + left, lane >> 4);
    x.q8_at = x.values + 2 * STAGE + place8(warp * WARP_ROWS + left, lane >> 4);
    x.k16_at = place16(right, lane >> 3 & 1);
    x.k8_at = place8(right, lane >> 3 & 1);
    x.v_at = place16(left, lane >> 4);

    x.task.tile_end = shared_by_warp((end + KEYS - 1) / KEYS);
    const int32_t first_sees = x.row0 + a->reach;
    x.task.first_row_sees = first_sees < a->lk ? first_sees : a->lk;
    x.task.word = 0;
    x.task.group_inverse = a->group_inverse;
    if (TL_ROUTED) {
        const int64_t q_block = (int64_t)at.all_heads * at.row_tiles + at.tile;
        const float q_scale = a->codes.q_scale[q_block];
        x.q8 = a->codes.q_codes + (q_block * TL_DEVICE_ROWS + row8) * TL_D + chunk8 * 16;
        x.k8 = a->codes.k_codes + (kv * key_tiles * KEYS + row8) * TL_D + chunk8 * 16;
        x.k_scale = a->codes.k_scale + kv * key_tiles;
        x.q_scale = q_scale * a->logit_scale;
        uint64_t word = ~(uint64_t)0;
        if (a->words) word = a->words[batch * a->words_batch + kv_head * a->words_head + at.tile * a->words_row];
        x.task.word = usable_word(&x, word, q_scale);
    }
    tl_tile_loop(&x);
    if (a->causal && tl_vote_any(x.bad != 0)) rows_again(a, x.bad); /* without causal a row sees all there is */
}
#pragma omp end declare target
#else
static void attend(const launch *a)
{
    (void)a;
    ran_on_host = 1;
}
#endif

int TL_LAUNCH(const tl_device_call *call)
{
    const uint16_t *q = call->q, *k = call->k, *v = call->v;
    uint16_t *o = call->o;
    float *lse = call->lse;
    int8_t *q_codes = call->codes.q_codes, *k_codes = call->codes.k_codes;
    float *q_scale = call->codes.q_scale, *k_scale = call->codes.k_scale;
    const uint64_t *words = call->words;
    const int64_t q_batch = call->q_stride.batch, q_head = call->q_stride.head, q_seq = call->q_stride.seq;
    const int64_t k_batch = call->k_stride.batch, k_head = call->k_stride.head, k_seq = call->k_stride.seq;
    const int64_t v_batch = call->v_stride.batch, v_head = call->v_stride.head, v_seq = call->v_stride.seq;
    const int64_t o_batch = call->o_stride.batch, o_head = call->o_stride.head, o_seq = call->o_stride.seq;
    const int64_t lse_batch = call->lse_stride.batch, lse_head = call->lse_stride.head, lse_seq = call->lse_stride.seq;
    const int64_t words_batch = call->words_batch, words_head = call->words_head, words_row = call->words_row;
    const int32_t heads_q = call->heads_q, group_heads = call->heads_q / call->heads_k;
    const int32_t lq = call->lq, lk = call->lk, reach = call->reach, causal = call->causal;
    const float logit_scale = call->logit_scale;
    const uint32_t group_inverse = call->group_inverse;
    const int32_t blocks = call->batch * heads_q * ((lq + TL_DEVICE_ROWS - 1) / TL_DEVICE_ROWS);
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(q, k, v, o, lse, q_codes, k_codes, q_scale, k_scale, words) ompx_dyn_cgroup_mem(SHARED_BYTES)
    {
        const launch a = {q,
                          k,
                          v,
                          o,
                          lse,
                          {q_batch, q_head, q_seq},
                          {k_batch, k_head, k_seq},
                          {v_batch, v_head, v_seq},
                          {o_batch, o_head, o_seq},
                          {lse_batch, lse_head, lse_seq},
                          {q_codes, k_codes, q_scale, k_scale},
                          heads_q,
                          group_heads,
                          lq,
                          lk,
                          reach,
                          causal,
                          logit_scale,
                          words,
                          words_batch,
                          words_head,
                          words_row,
                          group_inverse};
        attend(&a);
    }
    return ran_on_host;
}
