/* The mma.sync vocabulary of core/tile_loop.inc.h and the bare kernel around it. The including file says
 *   TL_D        most channels of a head: 64, 128, or with TL_GENERAL 256, or with TL_SHAPED 64, 96, 128, 192, 256
 *   TL_DV       most channels of V, where they are fewer
 *   TL_BF16     1: Q, K, V and P in bf16; 0: in f16
 *   TL_ROUTED   1: tiles are INT8 or high, by word; 0: all high
 *   TL_GENERAL  1: everything else that a problem may ask for (nvptx_general.inc.h), at run time; 0: exactly TL_D channels,
 *               scores with nothing but a scale, causal or not
 *   TL_SHAPED   1: as TL_GENERAL 0, but at run time fewer channels, windows and sinks; 2: and all that changes or hides
 *               single scores (nvptx_shaped.inc.h). TL_ROUTED is 1; without codes every tile is high
 *   TL_DECODE   warps of a block, where each of them has all of its up to TL_DECODE_ROWS rows, and its own keys
 *               (nvptx_decode.inc.h); TL_ROUTED, TL_GENERAL and TL_SHAPED are 0. 0: another kernel
 *   TL_CODES    1: K and V are INT8 codes of the caller's with scales, exact in f16 and bf16 (nvptx_codes.inc.h); with
 *               TL_DECODE only
 *   TL_STATE_F16  ALGORITHMS A8
 *   TL_LAUNCH   the name of the function that launches it (nvptx.h)
 *   TL_FORM     the form of a plain kernel, where it is a candidate of bench tune; else nvptx_tuned.def says which.
 *
 * A block takes up to BLOCK_ROWS query rows of one head. A warp is the agent of the loop and owns 32 of them as two 16-row
 * fragments, or 16 as one where registers are short. A lane holds two rows of each, which it shares with the three
 * neighbours of its quad. Keys come in tiles of KEYS through two stages of shared memory: while one is worked on, the next is
 * copied. */
#include "nvptx.h"

#ifndef TL_SHAPED
#define TL_SHAPED 0
#endif
#ifndef TL_DECODE
#define TL_DECODE 0
#endif
#ifndef TL_CODES
#define TL_CODES 0
#endif
#ifndef TL_DV
#define TL_DV TL_D
#endif

static volatile int ran_on_host;

#if TL_GENERAL
#define TL_FORM TL_GENERAL_FORM(TL_D)
#elif TL_SHAPED
#define TL_FORM TL_SHAPED_FORM(TL_IMAGE_ARCH, TL_D)
#elif !defined TL_FORM && TL_DECODE
#define TL_FORM TL_DECODE_FORM(TL_D, TL_CODES, TL_DECODE)
#elif !defined TL_FORM && TL_ROUTED
#define TL_FORM TL_TUNED_FORM(TL_D, routed)
#elif !defined TL_FORM
#define TL_FORM TL_TUNED_FORM(TL_D, high)
#endif

enum {
    FRAGMENTS = TL_GENERAL || TL_DECODE > 0 || TL_DV > 128 ? 1 : 2, /* of 16 rows in a warp */
    WARP_ROWS = 16 * FRAGMENTS,
    BLOCK_ROWS = TL_FORM_ROWS(TL_FORM),
    SUB_BLOCKS = TL_DEVICE_ROWS / BLOCK_ROWS, /* of the rows that share a scale and a routing word */
    WARPS = TL_DECODE ? TL_FORM_WARPS(TL_FORM) : BLOCK_ROWS / WARP_ROWS,
    THREADS = WARPS * 32,
    COPIERS = TL_DECODE ? 32 : THREADS, /* threads that share the copies of a tile */
    KEYS = TL_FORM_KEYS(TL_FORM),
    PITCH16 = TL_D * 2, /* bytes of a row of 16-bit elements and of codes in shared memory */
    PITCH8 = TL_D,
    PITCHV = TL_DV * (TL_CODES ? 1 : 2),
    STAGE = KEYS * (TL_CODES ? PITCH8 : PITCH16),
    STAGEV = KEYS * PITCHV,
    SPLITS = TL_GENERAL && !TL_STATE_F16, /* keys may be split */
    SCALES = TL_CODES ? KEYS * 8 : 0,     /* bytes of a stage's scales: those of the keys, then of the values */
    STATE_PITCH = TL_DV * 4 + 32,         /* decoding: of a row of O, where a warp leaves its state in its stages */
    STATE_BYTES = TL_DECODE_ROWS * (STATE_PITCH + 8),
    STAGES_BYTES = 2 * (STAGE + STAGEV + SCALES),
    WARP_BYTES = STAGES_BYTES > STATE_BYTES ? STAGES_BYTES : STATE_BYTES, /* decoding: shared memory of a warp */
    KEY_STEP = TL_DECODE ? WARPS * KEYS : KEYS                            /* keys from a tile of a warp's to its next */
};

/* A launch, as the kernel sees it. */
#if TL_GENERAL || TL_SHAPED
typedef tl_general_launch launch;
#else
typedef struct {
    TL_PLAIN_FIELDS(TL_FIELD)
#if TL_DECODE
    TL_PART_FIELDS(TL_FIELD)
    TL_DECODE_FIELDS(TL_FIELD)
#endif
} launch;
#endif

#ifdef __NVPTX__
#pragma omp begin declare target device_type(nohost)
#include "core/online_softmax.h"
#include "core/routing.h"
#include "nvptx_half.h"
#include "nvptx_scores.h"

/* ---- the geometry of a warp, in 32 bits: tl_task of this vocabulary */

#define TL_OWN_TASK

typedef struct {
    int32_t first, count, route, edge;
} tl_span;

typedef struct {
    int32_t tile_low, tile_end;    /* of the block: all warps take part in every arrival */
    int32_t keys;                  /* of a tile, KEYS unless routing groups are smaller */
    int32_t all_see, all_see_from; /* keys below this, and from this on, are seen by every row of the warp */
    uint64_t word;
    uint32_t group_inverse;
#if TL_GENERAL || TL_SHAPED
    int32_t scattered; /* single keys may be hidden: every tile needs tl_mask */
#endif
#if TL_GENERAL
    const uint64_t *words; /* NULL: every tile is INT8 */
    const uint8_t *flags;  /* of the KV head's keys */
    int32_t int8;          /* some tile may be INT8 */
#endif
} tl_task;

typedef int32_t tl_tokens; /* the warp is its only row block: there is nothing to choose */

TL_INLINE int32_t tl_task_rows(const tl_task *t)
{
    (void)t;
    return WARP_ROWS;
}

TL_INLINE int32_t tl_tile_low(const tl_task *t) { return TL_GENERAL || TL_SHAPED > 0 ? t->tile_low : 0; }
TL_INLINE int32_t tl_tile_end(const tl_task *t) { return t->tile_end; }

TL_INLINE int32_t tl_group_of(const tl_task *t, int32_t tile)
{
    return (int32_t)((uint64_t)(uint32_t)tile * t->group_inverse >> 31);
}

/* Of a plain kernel: the tile of 64 keys, which has a scale and a routing bit, that tile `tile` of KEYS keys lies in. */
TL_INLINE int32_t routed_tile(int32_t tile) { return KEYS < TL_DEVICE_KEYS ? tile / (TL_DEVICE_KEYS / KEYS) : tile; }

#if TL_GENERAL
/* INT8 where the word says so and no token of the tile is flagged. */
TL_INLINE int32_t tl_route(const tl_task *t, int32_t tile)
{
    if (!t->int8 || (t->words && !tl_word_bit(t->words, tl_group_of(t, tile)))) return TL_HIGH;
    uint32_t flagged = 0;
    for (int32_t i = 0; i < t->keys / 16; i++) flagged |= t->flags[tile * t->keys / 16 + i];
    return tl_uniform(flagged ? TL_HIGH : TL_INT8);
}
#else
TL_INLINE int32_t tl_route(const tl_task *t, int32_t tile)
{
    return TL_ROUTED ? (int32_t)(t->word >> tl_group_of(t, routed_tile(tile)) & 1u) : TL_HIGH;
}
#endif

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
#if TL_GENERAL
    s.edge = t->scattered || t->keys < KEYS || (s.first + 1) * t->keys > t->all_see ||
             s.first * t->keys < t->all_see_from;
#elif TL_SHAPED
    s.edge = t->scattered || (s.first + 1) * KEYS > t->all_see || s.first * KEYS < t->all_see_from;
#else
    s.edge = s.first * KEY_STEP + KEYS > t->all_see;
#endif
    return s;
}

/* ---- the vocabulary */

#define TL_ROWS (2 * FRAGMENTS)
#define TL_ROW_BLOCKS 1
#define TL_SPAN_MAX 1
#define TL_SPAN_MIXED 0
#define TL_LAZY (TL_STATE_F16 ? 0.f : 8.f)
#define TL_LAMP 0
#define TL_WATCHES (!TL_GENERAL && !TL_STATE_F16 && !TL_DECODE)
#define TL_COUNTS_SINK(x) (((x)->lane & 3) == 0) /* four lanes share a row */

/* Scores, then P in pairs. The logit of a score x is x * scale - origin. */
typedef struct {
    float s[FRAGMENTS][KEYS / 8][4];
    uint32_t p[FRAGMENTS][KEYS / 8][2];
    float scale, origin;
} tl_scores;

typedef struct {
    float o[FRAGMENTS][TL_DV / 8][4];
} tl_acc;

typedef struct {
    tl_task task;
    const launch *a;
    int32_t lane, row0; /* the warp's first row */
    int32_t lq, lk, reach;
    const uint16_t *k, *v; /* of this lane's first chunk in key tile 0 */
    const int8_t *k8;
    uint16_t *o;
    float *lse;
    const float *k_scale;
    float q_scale;                  /* times logit_scale */
    int32_t fill, use;              /* offsets of the stages that are filled and used */
    float filled_scale, used_scale; /* of their keys' codes: loaded a tile ahead */
    int32_t chunk_row;              /* where this lane's copies begin */
    uint32_t bad; /* bit r: row r holds a NaN or Inf of V's; bit TL_ROWS + r: as below; decoding: some row may */
    volatile uint32_t *vast; /* bit r: row r had a vast logit. In local memory, as the loop has no register for it */
    int32_t scrub;           /* V is taken with zeros in their place */
    int32_t first_copy;      /* key tile_end * KEYS may lie beyond the last key */
    uint32_t to16, to8, tov; /* ... in shared memory, from the start of a tile */
    uint32_t keys, values;   /* shared memory: stage 0 */
    uint32_t q16_at, q8_at, k16_at, k8_at, v_at; /* this lane's fragment addresses of channel 0 */
#if TL_GENERAL || TL_SHAPED
    tl_device_sequence seq;
    int32_t head, diagonal;
#endif
#if TL_DECODE
    uint32_t q[TL_D / 16][4]; /* the fragments of all queries */
    int32_t ends[TL_ROWS];    /* of the keys that the lane's rows see, from the warp's first key on */
#if TL_CODES
    const int8_t *v8;
    int32_t first;        /* the warp's first key, in the sequence */
    int64_t scales;       /* where the KV head's scales of the sequence begin */
    float value_scale[2]; /* of the tile in use and each row: what its weights are multiples of, a power of two */
#endif
#endif
#if TL_GENERAL
    int32_t rows_end;                 /* the row after the block's last */
    int32_t chunk_bytes, value_bytes; /* of this lane's chunk that lie in a row of Q and K, and of V */
    int32_t code_row;                 /* bytes of a row of codes */
    int32_t chunk_row8, chunk_there8; /* where this lane's copies of codes begin; 0: not in a row */
    float q_scales[2], q_means[2];    /* of the lane's rows, without logit_scale */
    uint32_t was_bad;                 /* bad, of the run before, in whichever lane of the quad */
#endif
} tl_ctx;

TL_INLINE const tl_task *tl_task_of(const tl_ctx *x) { return &x->task; }

TL_INLINE int32_t tl_block_size(const tl_ctx *x)
{
    (void)x;
    return WARP_ROWS;
}

/* Rows of 16-byte chunks, permuted so that the eight rows which one 8x8 tile reads lie in different banks: within every
 * TURNING chunks, those of a whole number of 128-byte lines if rows are of such, else as many as divide a row. The chunk of
 * channel step i is that of step 0 with i * 32 xored into its address, as far as these chunks go; beyond them it is added. */
#define TL_TURNING(pitch) ((pitch) % 128 == 0 ? 8 : (pitch) % 64 == 0 ? 4 : 2)
enum { TURNING16 = TL_TURNING(PITCH16), TURNING8 = TL_TURNING(PITCH8), TURNINGV = TL_TURNING(PITCHV) };

TL_INLINE int32_t turned(int32_t row, int32_t chunk, int32_t turning)
{
    return chunk ^ (turning == 8 ? row & 7 : turning == 4 ? row >> 1 & 3 : row >> 2 & 1);
}

TL_INLINE uint32_t place_in(int32_t row, int32_t chunk, int32_t pitch)
{
    return (uint32_t)(row * pitch + (turned(row, chunk, TL_TURNING(pitch)) << 4));
}

TL_INLINE uint32_t step_at(uint32_t at, int32_t step, int32_t turning)
{
    const uint32_t offset = (uint32_t)(step * 32), within = (uint32_t)(turning * 16 - 1);
    return (at ^ (offset & within)) + (offset & ~within);
}

/* ---- data movement: a row of chunks is copied by the largest power of two of lanes that divides it, in so many parts */

enum {
    LANES16 = TL_D / 8 & -(TL_D / 8),
    LANES8 = TL_D / 16 & -(TL_D / 16),
    PARTS16 = TL_D / 8 / LANES16,
    PARTSV = TL_DV / 8 / LANES16,
    PARTS8 = TL_D / 16 / LANES8,
    ROWS16 = COPIERS / LANES16, /* rows that are copied at once */
    ROWS8 = COPIERS / LANES8
};

/* Of those who share the copies of a tile. */
TL_INLINE int32_t copier(void) { return TL_DECODE ? tl_thread() % 32 : tl_thread(); }

/* What they have copied and written, they all see. */
TL_INLINE void copiers_barrier(void)
{
    if (TL_DECODE)
        tl_barrier_of_warp(tl_thread() / 32);
    else
        tl_barrier();
}

/* Bytes of the lane's chunk of a part that lie in a row of d channels. */
TL_INLINE int32_t bytes16(int32_t d, int32_t part)
{
    return !TL_SHAPED || (tl_thread() % LANES16 + part * LANES16) * 8 < d ? 16 : 0;
}

/* The lane's chunk of a part, in row i * ROWS16 further on. pitch: of rows of Q and K, or of V. */
TL_INLINE uint32_t further16(uint32_t at, int32_t i, int32_t part, int32_t pitch)
{
    return (at ^ (uint32_t)((i * ROWS16 & 7) << 4)) + (uint32_t)(i * ROWS16 * pitch + part * LANES16 * 16);
}

TL_INLINE void copy16(uint32_t to, const uint16_t *from, int64_t seq, int32_t rows, int32_t pitch, int32_t d)
{
    TL_FULLY
    for (int32_t part = 0; part < pitch / 16 / LANES16; part++) {
        TL_FULLY
        for (int32_t i = 0; i < rows / ROWS16; i++) {
            const uint32_t there = further16(to, i, part, pitch);
            const uint16_t *here = from + i * ROWS16 * seq + part * LANES16 * 8;
            if (TL_SHAPED)
                tl_copy_bytes(there, here, bytes16(d, part));
            else
                tl_copy(there, here);
        }
    }
}

/* Zeros from row `there` on. */
TL_INLINE void copy16_tail(uint32_t to, const uint16_t *from, int64_t seq, int32_t rows, int32_t row, int32_t there,
                           int32_t pitch, int32_t d)
{
    TL_FULLY
    for (int32_t part = 0; part < pitch / 16 / LANES16; part++) {
        TL_FULLY
        for (int32_t i = 0; i < rows / ROWS16; i++) {
            const int32_t has = row + i * ROWS16 < there;
            tl_copy_bytes(further16(to, i, part, pitch),
                          (has ? from + i * ROWS16 * seq : from - row * seq) + part * LANES16 * 8,
                          has ? bytes16(d, part) : 0);
        }
    }
}

TL_INLINE void copy8(uint32_t to, const int8_t *from, int32_t rows)
{
    TL_FULLY
    for (int32_t part = 0; part < PARTS8; part++) {
        TL_FULLY
        for (int32_t i = 0; i < rows / ROWS8; i++)
            tl_copy(to + (uint32_t)(i * ROWS8 * PITCH8 + part * LANES8 * 16),
                    from + i * ROWS8 * TL_D + part * LANES8 * 16);
    }
}

TL_INLINE void tl_begin(tl_ctx *x, tl_acc *acc)
{
    TL_FULLY
    for (int m = 0; m < FRAGMENTS; m++) {
        TL_FULLY
        for (int d = 0; d < TL_DV / 8; d++) {
            TL_FULLY
            for (int e = 0; e < 4; e++) acc->o[m][d][e] = 0.f;
        }
    }
    x->fill = x->use = 0;
    x->bad = 0;
    x->first_copy = 1;
    x->filled_scale = 0.f;
}

/* A warp without rows only copies, and is there when others wait for all of the block: at the same barriers, as synccheck wants
 * it. Its scores are zeros. */
TL_INLINE int is_idle(const tl_ctx *x)
{
#if TL_GENERAL
    return x->row0 >= x->rows_end;
#else
    (void)x;
    return 0;
#endif
}

/* A row that saw nothing: 0 + log 0. */
TL_INLINE float lse_of(float m, float l) { return (tl_reference(m) + tl_log2_fast(l)) * TL_LN2; }

/* An offset of a stage of K, as one of V. */
TL_INLINE uint32_t stage_of_values(int32_t stage) { return (uint32_t)(STAGEV == STAGE || stage == 0 ? stage : STAGEV); }

/* Where the lane's copies of V go. */
TL_INLINE uint32_t values_to(const tl_ctx *x, int32_t stage)
{
    return x->values + stage_of_values(stage) + (PITCHV == PITCH16 ? x->to16 : x->tov);
}

TL_INLINE int32_t channels(const tl_ctx *x);
TL_INLINE int32_t value_channels(const tl_ctx *x);
TL_INLINE int32_t row_of(const tl_ctx *x, int r);

#if TL_GENERAL || TL_SHAPED
#include "nvptx_general.inc.h"
#endif
#if TL_SHAPED
#include "nvptx_shaped.inc.h"
#endif
#if TL_DECODE
#include "nvptx_decode.inc.h"
#endif
#if TL_CODES
#include "nvptx_codes.inc.h"
#elif !TL_GENERAL
TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    const int64_t key = (int64_t)span.first * KEY_STEP;
    int64_t k_seq = x->a->k_seq, v_seq = x->a->v_seq;
    if (TL_DECODE) { /* their multiples would fill 64 registers */
        TL_OPAQUE_LONG(k_seq);
        TL_OPAQUE_LONG(v_seq);
    }
    const uint32_t keys = x->keys + (uint32_t)x->fill, values = values_to(x, x->fill);
    if (span.route == TL_INT8) {
        copy8(keys + x->to8, x->k8 + key * TL_D, KEYS);
        x->filled_scale = x->k_scale[routed_tile(span.first)];
    } else if (x->first_copy)
        copy16_tail(keys + x->to16, x->k + key * k_seq, k_seq, KEYS, x->chunk_row, x->lk - span.first * KEY_STEP,
                    PITCH16, channels(x));
    else
        copy16(keys + x->to16, x->k + key * k_seq, k_seq, KEYS, PITCH16, channels(x));
    if (x->first_copy) /* only the tile that the loop takes first can reach beyond the last key */
        copy16_tail(values, x->v + key * v_seq, v_seq, KEYS, x->chunk_row, x->lk - span.first * KEY_STEP, PITCHV,
                    value_channels(x));
    else
        copy16(values, x->v + key * v_seq, v_seq, KEYS, PITCHV, value_channels(x));
}
#endif

/* The lane's own chunks of the tile that has just arrived. Did they hold a NaN or Inf? */
TL_INLINE int scrub_values(const tl_ctx *x)
{
    const uint32_t at = values_to(x, x->use);
    uint32_t changed = 0;
#pragma clang loop unroll_count(TL_DECODE ? 1 : 8)
    for (int32_t i = 0; i < KEYS / ROWS16 * PARTSV; i++) {
        const uint32_t chunk = further16(at, i / PARTSV, i % PARTSV, PITCHV);
        const tl_chunk held = tl_shared_load(chunk), kept = tl_scrubbed(held);
        TL_FULLY
        for (int word = 0; word < 4; word++) changed |= held[word] ^ kept[word];
        tl_shared_store(chunk, kept);
    }
    copiers_barrier();
    return changed != 0;
}

/* The only barrier of a tile: everyone's copies have landed, and everyone has left the other stage. */
TL_INLINE void tl_arrive(tl_ctx *x, tl_span span)
{
    tl_copies_wait();
    copiers_barrier();
#if TL_DECODE
    if (x->scrub && tl_clip(&x->task, span, 0).edge) x->bad |= (uint32_t)scrub_values(x);
#else
    (void)span;
    if (x->scrub) (void)scrub_values(x);
#endif
#if TL_GENERAL
    if (span.route == TL_INT8 && x->a->k_inverse) quantise_keys(x, span.first * x->task.keys);
#endif
    x->first_copy = 0;
    x->fill = x->use ^ STAGE;
    x->used_scale = x->filled_scale;
    TL_OPAQUE(x->q16_at);
    TL_OPAQUE(x->k16_at);
    TL_OPAQUE(x->v_at);
    TL_OPAQUE(x->to16);
    if (STAGEV != STAGE) TL_OPAQUE(x->tov);
    if (TL_ROUTED || TL_CODES) {
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

/* Fragment m of the queries, 16 channels from step * 16 on. */
TL_INLINE void query_fragment(uint32_t q[4], const tl_ctx *x, int step, int m)
{
#if TL_DECODE
    (void)m;
    TL_FULLY
    for (int i = 0; i < 4; i++) q[i] = x->q[step][i];
#else
    tl_fragment(q, step_at(x->q16_at, step, TURNING16) + (uint32_t)(m * 16 * PITCH16));
#endif
}

/* d: channels that there are, of TL_D. */
TL_INLINE void scores_high(float s[FRAGMENTS][KEYS / 8][4], const tl_ctx *x, uint32_t k_at, int32_t d)
{
    TL_FULLY
    for (int step = 0; step < TL_D / 16; step++) {
        if (TL_GENERAL && step * 16 >= d) continue;
        uint32_t q[FRAGMENTS][4];
        TL_FULLY
        for (int m = 0; m < FRAGMENTS; m++) query_fragment(q[m], x, step, m);
        TL_FULLY
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t k[4];
            tl_fragment(k, step_at(k_at, step, TURNING16) + (uint32_t)(j * 16 * PITCH16));
            TL_FULLY
            for (int m = 0; m < FRAGMENTS; m++) {
                if (step == 0) {
                    tl_mma_half_first(s[m][2 * j], q[m], k[0], k[1]);
                    tl_mma_half_first(s[m][2 * j + 1], q[m], k[2], k[3]);
                } else {
                    tl_mma_half(s[m][2 * j], q[m], k[0], k[1]);
                    tl_mma_half(s[m][2 * j + 1], q[m], k[2], k[3]);
                }
            }
        }
    }
}

TL_INLINE void scores_int8(float s[FRAGMENTS][KEYS / 8][4], uint32_t q_at, uint32_t k_at, int32_t d)
{
    TL_FULLY
    for (int step = 0; step < TL_D / 32; step++) {
        if (TL_GENERAL && step * 32 >= d) continue;
        uint32_t q[FRAGMENTS][4];
        TL_FULLY
        for (int m = 0; m < FRAGMENTS; m++)
            tl_fragment(q[m], step_at(q_at, step, TURNING8) + (uint32_t)(m * 16 * PITCH8));
        TL_FULLY
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t k[4];
            tl_fragment(k, step_at(k_at, step, TURNING8) + (uint32_t)(j * 16 * PITCH8));
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

TL_INLINE int32_t channels(const tl_ctx *x)
{
#if TL_GENERAL || TL_SHAPED
    return x->a->d;
#else
    (void)x;
    return TL_D;
#endif
}

TL_INLINE int32_t value_channels(const tl_ctx *x)
{
#if TL_GENERAL || TL_SHAPED
    return x->a->dv;
#else
    (void)x;
    return TL_D;
#endif
}

#if !TL_CODES
TL_INLINE void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const uint32_t keys = x->keys + (uint32_t)x->use;
    if (is_idle(x)) {
        s->scale = 1.f;
        s->origin = 0.f;
        TL_FULLY
        for (int m = 0; m < FRAGMENTS; m++) {
            TL_FULLY
            for (int j = 0; j < KEYS / 8; j++) {
                TL_FULLY
                for (int e = 0; e < 4; e++) s->s[m][j][e] = 0.f;
            }
        }
        return;
    }
    if (TL_ROUTED && span.route == TL_INT8) {
        scores_int8(s->s, x->q8_at, keys + x->k8_at, channels(x));
        s->scale = x->q_scale * x->used_scale;
        s->origin = s->scale * TL_INT8_ORIGIN;
    } else {
        scores_high(s->s, x, keys + x->k16_at, channels(x));
        s->scale = x->a->logit_scale;
        s->origin = 0.f;
    }
}

#endif

TL_INLINE void tl_scores_wait(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

/* ---- score epilogue */

/* Row r of the lane, counted from the block row of the warp. */
TL_INLINE int32_t row_of(const tl_ctx *x, int r) { return x->row0 + r * 8 + (x->lane >> 2); }

#if !TL_GENERAL && !TL_SHAPED
TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    (void)x;
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) sink[r] = TL_NEVER;
}
#endif

#if !TL_GENERAL && !TL_SHAPED && !TL_DECODE
/* Scale and origin fold into tl_row_max and tl_exp. */
TL_INLINE void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

TL_INLINE void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)rb;
    const int32_t key = span.first * KEYS + (x->lane & 3) * 2;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int32_t end = row_of(x, r) + x->reach, seen = (end < x->lk ? end : x->lk) - key;
        TL_FULLY
        for (int j = 0; j < KEYS / 8; j++) {
            TL_FULLY
            for (int e = 0; e < 2; e++)
                if (j * 8 + e >= seen) s->s[r / 2][j][r % 2 * 2 + e] = -TL_INF;
        }
    }
}
#endif

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

#if !TL_CODES
TL_INLINE void tl_exp(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, const float ref[TL_ROWS], float sum[TL_ROWS])
{
    (void)x;
    (void)span;
    (void)rb;
    float offset[TL_ROWS];
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        offset[r] = -(ref[r] + s->origin);
        sum[r] = 0.f;
    }
    if (is_idle(x)) return;
    TL_FULLY
    for (int j = 0; j < KEYS / 8; j++) { /* keys outside: the first product with V needs its keys of all rows */
        TL_FULLY
        for (int r = 0; r < TL_ROWS; r++) {
            const float p0 = tl_exp2_fast(tl_fma_ptx(s->s[r / 2][j][r % 2 * 2], s->scale, offset[r]));
            const float p1 = tl_exp2_fast(tl_fma_ptx(s->s[r / 2][j][r % 2 * 2 + 1], s->scale, offset[r]));
            sum[r] += p0 + p1;
            s->p[r / 2][j][r % 2] = tl_pack_half(p0, p1);
        }
    }
}

#endif

/* A score is scaled and the reference subtracted in one fma, exactly, but the reference was rounded. From 2^24 on that makes a
 * difference to weights, and from 2^27 on they may overflow: such a row is computed again, with rounded logits. */
TL_INLINE int is_vast(float m) { return tl_is_finite(m) && tl_abs(m) >= 0x1p24f && m != TL_NEVER; }

#if TL_WATCHES
/* Those of ALiBi and bias are rounded as they are made. */
TL_INLINE int rounds_logits(const tl_ctx *x)
{
#if TL_SHAPED == 2
    return x->a->alibi || x->a->bias;
#else
    (void)x;
    return 0;
#endif
}

TL_INLINE void tl_watch(const tl_ctx *x, int32_t rb, const float m[TL_ROWS])
{
    (void)rb;
    uint32_t found = 0;
    if (rounds_logits(x)) return;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) found |= is_vast(m[r]) ? 1u << r : 0u;
    if (found) *x->vast |= found;
}
#endif

TL_INLINE void tl_rescale(tl_ctx *x, tl_acc *acc, int32_t rb, const float lambda[TL_ROWS])
{
    (void)x;
    (void)rb;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        TL_FULLY
        for (int d = 0; d < TL_DV / 8; d++) {
            acc->o[r / 2][d][r % 2 * 2] *= lambda[r];
            acc->o[r / 2][d][r % 2 * 2 + 1] *= lambda[r];
        }
    }
}

/* ---- P V: the scores of a row lie in the lanes as the left operand of a product wants them */

#if !TL_CODES
TL_INLINE void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    (void)span;
    (void)rb;
    const uint32_t values = x->values + stage_of_values(x->use) + x->v_at;
    if (is_idle(x)) return;
    TL_FULLY
    for (int j = 0; j < KEYS / 16; j++) {
        uint32_t p[FRAGMENTS][4];
        TL_FULLY
        for (int m = 0; m < FRAGMENTS; m++) {
            TL_FULLY
            for (int i = 0; i < 4; i++) p[m][i] = s->p[m][2 * j + i / 2][i % 2];
        }
        TL_FULLY
        for (int d = 0; d < TL_DV / 16; d++) {
            if (TL_GENERAL && d * 16 >= value_channels(x)) continue;
            uint32_t v[4];
            tl_fragment_transposed(v, step_at(values, d, TURNINGV) + (uint32_t)(j * 16 * PITCHV));
            TL_FULLY
            for (int m = 0; m < FRAGMENTS; m++) {
                tl_mma_half(acc->o[m][2 * d], p[m], v[0], v[1]);
                tl_mma_half(acc->o[m][2 * d + 1], p[m], v[2], v[3]);
            }
        }
    }
}

#endif

TL_INLINE void tl_values_wait(tl_ctx *x, tl_acc *acc)
{
    (void)x;
    TL_FULLY
    for (int m = 0; m < FRAGMENTS && TL_STATE_F16; m++) {
        TL_FULLY
        for (int d = 0; d < TL_DV / 8; d++) {
            TL_FULLY
            for (int e = 0; e < 4; e++) acc->o[m][d][e] = tl_round_f16_ptx(acc->o[m][d][e]);
        }
    }
}

/* ---- end */

#if !TL_GENERAL && !TL_SHAPED && !TL_CODES
/* Where a NaN or Inf of V's is hidden from a row that meets its tile, its weight of 0 does not hide it from a product. The
 * block then runs once more with zeros in the place of such values, so that they leave no trace, and this puts them where
 * they belong: into the columns of the rows that see them. One row, by all lanes of the warp and without tensor cores. lse:
 * where the row's goes; NULL: not wanted. whole: all columns and lse, of a row with vast logits. Not inlined, or it would take
 * the loop's registers. */
static __attribute__((noinline)) void row_again(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *o,
                                                float *lse, int64_t k_seq, int64_t v_seq, int32_t end,
                                                float logit_scale, int whole)
{
    enum { MINE = TL_D / 32 }; /* channels of a lane */
    const int32_t first = tl_thread() % 32 * MINE;
    float acc[MINE] = {0.f}, m = TL_NEVER, l = 0.f;
    for (int32_t key = 0; key < end; key++) {
        float s = 0.f;
        TL_FULLY
        for (int c = 0; c < MINE; c++) s += tl_load_half(q + first + c) * tl_load_half(k + key * k_seq + first + c);
        TL_FULLY
        for (int with = 16; with; with >>= 1) s += tl_swap(s, with);
        s = TL_DECODE ? tl_log2_logit(s * logit_scale) : s * logit_scale; /* as the loop has it */
        const float top = tl_max(m, s), ref = tl_reference(top), lambda = tl_exp2(m - ref), p = tl_exp2(s - ref);
        m = top;
        l = l * lambda + p;
        TL_FULLY
        for (int c = 0; c < MINE; c++) acc[c] = acc[c] * lambda + p * tl_load_half(v + key * v_seq + first + c);
    }
    for (int c = 0; c < MINE; c++)
        if (whole || !tl_is_finite(acc[c]))
            ((TL_GLOBAL_SPACE uint16_t *)o)[first + c] = (uint16_t)tl_pack_half(acc[c] / l, 0.f);
    if (whole && lse) *lse = lse_of(m, l);
}
#endif

#if !TL_DECODE
/* O is not finite though the sum of weights is: a NaN or Inf of V's, not of a logit. */
TL_INLINE int holds_bad_value(const tl_acc *acc, int r, float l)
{
    float rest = 0.f; /* NaN where O is not finite */
    TL_FULLY
    for (int d = 0; d < TL_DV / 8; d++) {
        TL_FULLY
        for (int e = 0; e < 2; e++) rest = tl_fma_ptx(acc->o[r / 2][d][r % 2 * 2 + e], 0.f, rest);
    }
    return tl_is_nan(rest) && tl_is_finite(l);
}

TL_INLINE void tl_store(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    (void)rb;
    const uint32_t vast = TL_WATCHES ? *x->vast : 0;
    TL_FULLY
    for (int r = 0; r < TL_ROWS; r++) {
        const int32_t row = row_of(x, r);
#if TL_GENERAL
        (void)vast; /* logits are rounded there */
        if (row >= x->rows_end) continue;
        if (holds_bad_value(acc, r, l[r])) x->bad |= 1u << r;
        if (SPLITS && x->a->splits > 1) {
            store_part(x, acc, r, row, m[r], l[r]);
            continue;
        }
        store_row(x, acc, r, row, l[r]);
#else
        if (row >= x->lq) continue;
        if (holds_bad_value(acc, r, l[r])) x->bad |= 1u << r;
        if (vast >> r & 1u) x->bad |= 1u << (TL_ROWS + r);
#if TL_WATCHES && TL_SHAPED
        if (is_vast(m[r]) && !rounds_logits(x))
            x->bad |= 1u << (TL_ROWS + r); /* a sink's, from which nothing has moved */
#endif
        const float inverse = l[r] == 0.f ? 0.f : 1.f / l[r];
        uint16_t *o = x->o + row * x->a->o_seq + (x->lane & 3) * 2;
        TL_FULLY
        for (int d = 0; d < TL_DV / 8; d++)
            if (!TL_SHAPED || d * 8 < value_channels(x))
                *(TL_GLOBAL_SPACE uint32_t *)(o + d * 8) = tl_pack_half(acc->o[r / 2][d][r % 2 * 2] * inverse,
                                                                        acc->o[r / 2][d][r % 2 * 2 + 1] * inverse);
#endif
        if (x->a->lse && (x->lane & 3) == 0) x->lse[row * x->a->lse_seq] = lse_of(m[r], l[r]);
    }
}
#endif

#include "core/tile_loop.inc.h"

/* ---- one block */

#if !TL_GENERAL && !TL_DECODE
/* Which rows are a block's: those from `row` on, in row tile `tile` of query head `head` of a sequence. */
typedef struct {
    int32_t head, kv_head, tile, row;
    tl_device_sequence seq;
} place;

/* Tile after tile of a head, so that K and V stay in cache. Where later rows see more, they go first, so that the last
 * blocks to begin are short: tile by tile over as many heads as the cache holds. */
TL_INLINE place place_of(const launch *a, int32_t block)
{
    place p;
    const int32_t each = blocks_in(a->lq, TL_DEVICE_ROWS), row_tiles = a->sequences ? a->all_row_tiles : each;
    int32_t head, tile;
    const int32_t part = block % SUB_BLOCKS;
    block /= SUB_BLOCKS;
    if (a->causal) {
        const int32_t heads = a->sequences ? a->heads_q : a->batch * a->heads_q;
        const int32_t first = block / (a->heads_apart * row_tiles) * a->heads_apart, left = heads - first;
        const int32_t apart = left < a->heads_apart ? left : a->heads_apart;
        const int32_t rest = block - first * row_tiles, turn = rest / apart;
        head = tl_uniform(first + rest - turn * apart);
        tile = tl_uniform(row_tiles - 1 - turn);
    } else {
        head = tl_uniform(block / row_tiles);
        tile = block - head * row_tiles;
    }
    if (a->sequences) {
        p.seq = find_sequence(a->sequences, a->batch, tile, OF_ROW_TILES);
        p.head = head;
        p.tile = tl_uniform(tile - p.seq.row_tiles);
        p.seq.batch = tl_uniform(p.seq.batch);
        p.seq.row_tiles = tl_uniform(p.seq.row_tiles);
        p.seq.lq = tl_uniform(p.seq.lq);
        p.seq.lk = tl_uniform(p.seq.lk);
        p.seq.reach = tl_uniform(p.seq.reach);
        p.seq.floor = tl_uniform(p.seq.floor);
        p.seq.diagonal = tl_uniform(p.seq.diagonal);
        p.seq.group_inverse = (uint32_t)tl_uniform((int32_t)p.seq.group_inverse);
    } else {
        const int32_t batch = tl_uniform(head / a->heads_q);
        p.head = head - batch * a->heads_q;
        p.tile = tile;
        p.seq = (tl_device_sequence){.words = batch * a->words_batch,
                                     .batch = batch,
                                     .lq = a->lq,
                                     .lk = a->lk,
                                     .reach = a->reach,
                                     .row_tiles = batch * each,
                                     .k_blocks = batch * blocks_in(a->lk, TL_DEVICE_KEYS),
                                     .group_inverse = a->group_inverse};
#if TL_SHAPED
        p.seq.floor = a->floor;
        p.seq.diagonal = a->diagonal;
#endif
    }
    p.row = p.tile * TL_DEVICE_ROWS + (a->causal ? SUB_BLOCKS - 1 - part : part) * BLOCK_ROWS;
    p.kv_head = tl_uniform(p.head / a->group_heads);
    return p;
}

TL_INLINE const uint16_t *q_of(const launch *a, const place *p)
{
    return a->q + p->seq.batch * a->q_batch + p->head * a->q_head + p->seq.q_start * a->q_seq;
}

TL_INLINE const uint16_t *k_of(const launch *a, const place *p)
{
    return a->k + p->seq.batch * a->k_batch + p->kv_head * a->k_head + p->seq.k_start * a->k_seq;
}

TL_INLINE const uint16_t *v_of(const launch *a, const place *p)
{
    return a->v + p->seq.batch * a->v_batch + p->kv_head * a->v_head + p->seq.k_start * a->v_seq;
}

TL_INLINE uint16_t *o_of(const launch *a, const place *p)
{
    return (uint16_t *)a->o + p->seq.batch * a->o_batch + p->head * a->o_head + p->seq.q_start * a->o_seq;
}

TL_INLINE float *lse_at(const launch *a, const place *p)
{
    return a->lse + p->seq.batch * a->lse_batch + p->head * a->lse_head + p->seq.q_start * a->lse_seq;
}
#endif

/* Where the lane's copies begin, and its fragments: what follows from the thread alone. */
TL_INLINE void place_lane(tl_ctx *x, int32_t warp)
{
    const int32_t lane = tl_thread() % 32, chunk = copier() % LANES16, chunk8 = copier() % LANES8;
    const int32_t left = lane & 15, right = (lane & 7) + (lane >> 4 << 3); /* rows of fragments */
    const uint32_t shared = tl_shared_base();
    x->lane = lane;
    x->chunk_row = copier() / LANES16;
    x->to16 = place_in(x->chunk_row, chunk, PITCH16);
    x->tov = place_in(x->chunk_row, chunk, PITCHV);
    x->to8 = place_in(copier() / LANES8, chunk8, PITCH8);
    x->keys = TL_DECODE ? shared + (uint32_t)(warp * WARP_BYTES) : shared + BLOCK_ROWS * PITCH16;
    x->values = x->keys + 2 * STAGE;
    x->q16_at = shared + place_in(warp * WARP_ROWS + left, lane >> 4, PITCH16);
    x->q8_at = x->values + 2 * STAGEV + place_in(warp * WARP_ROWS + left, lane >> 4, PITCH8);
    x->k16_at = place_in(right, lane >> 3 & 1, PITCH16);
    x->k8_at = place_in(right, lane >> 3 & 1, PITCH8);
    x->v_at = place_in(left, lane >> 4, PITCHV);
}

#if TL_DECODE
#include "nvptx_decode_block.inc.h"
#elif !TL_GENERAL
#if !TL_SHAPED
/* bad: tl_ctx has it. Nothing that the loop knew is used, so that nothing had to be kept for it. */
TL_INLINE void rows_again(const launch *a, int32_t block, uint32_t bad)
{
    int32_t thread = tl_thread();
    TL_OPAQUE(block);
    TL_OPAQUE(thread);
    const place at = place_of(a, block);
    const uint16_t *q = q_of(a, &at), *k = k_of(a, &at), *v = v_of(a, &at);
    uint16_t *o = o_of(a, &at);
    float *lse = a->lse ? lse_at(a, &at) : NULL;
    tl_warp_barrier();
    for (int32_t i = 0; i < WARP_ROWS; i++) { /* row i of the warp is row i / 8 of the lanes of quad i % 8 */
        const int32_t row = at.row + thread / 32 * WARP_ROWS + i, past = row + at.seq.reach;
        const int32_t mine = thread % 32 / 4 == i % 8;
        const int whole = tl_vote_any(mine && (bad >> (TL_ROWS + i / 8) & 1u));
        if (tl_vote_any(mine && (bad >> (i / 8) & 1u)) || whole)
            row_again(q + row * a->q_seq, k, v, o + row * a->o_seq, lse ? lse + row * a->lse_seq : NULL, a->k_seq,
                      a->v_seq, past < at.seq.lk ? past : at.seq.lk, a->logit_scale, whole);
    }
}
#endif

#if TL_ROUTED
/* The word of the routing row, with the bits of groups cleared that hold a block without codes: those are high. */
TL_INLINE uint64_t usable_word(const tl_ctx *x, uint64_t word, float q_scale)
{
    uint32_t bad[2] = {0, 0};
    const int32_t end = routed_tile(x->task.tile_end + TL_DEVICE_KEYS / KEYS - 1),
                  low = routed_tile(tl_tile_low(&x->task));
    for (int32_t first = low; first < end; first += 32) { /* no lane leaves before the others */
        const int32_t tile = first + x->lane, group = tl_group_of(&x->task, tile);
        const uint32_t bit = tile < end && x->k_scale[tile] < 0.f ? 1u << (group & 31) : 0u;
        bad[0] |= group < 32 ? bit : 0u;
        bad[1] |= group < 32 ? 0u : bit;
    }
    const uint64_t high = tl_join_or(bad[0]) | (uint64_t)tl_join_or(bad[1]) << 32;
    const uint64_t usable = q_scale < 0.f ? 0 : word & ~high;
    return (uint32_t)tl_uniform((int32_t)usable) | (uint64_t)(uint32_t)tl_uniform((int32_t)(usable >> 32)) << 32;
}

/* The codes of the block's queries and of its KV head's keys, and which tiles are INT8. */
TL_INLINE void take_codes(tl_ctx *x, const place *at)
{
    const launch *a = x->a;
    const int64_t codes = (int64_t)at->kv_head * a->all_k_blocks + at->seq.k_blocks;
    const int64_t q_block = (int64_t)at->head * a->all_row_tiles + at->seq.row_tiles + at->tile;
    /* From an address that all lanes share, or ptxas would not keep the scale of scores in a uniform register. Then it does
     * not spread the exponentials between the products with V either: the loop is slower. */
    const float q_scale = a->q_scale[q_block];
    copy8(x->values + 2 * STAGEV + x->to8,
          a->q_codes + (q_block * TL_DEVICE_ROWS + at->row % TL_DEVICE_ROWS + tl_thread() / LANES8) * TL_D +
              tl_thread() % LANES8 * 16,
          BLOCK_ROWS);
    x->k8 = a->k_codes + (codes * TL_DEVICE_KEYS + tl_thread() / LANES8) * TL_D + tl_thread() % LANES8 * 16;
    x->k_scale = a->k_scale + codes;
    x->q_scale = q_scale * a->logit_scale;
    uint64_t word = ~(uint64_t)0;
    if (a->words) word = a->words[at->seq.words + at->kv_head * a->words_head + at->tile * a->words_row];
    x->task.word = usable_word(x, word, q_scale);
}
#endif

/* Its `bad`. Always inline: a call would put everything into local memory. */
TL_INLINE uint32_t attend(const launch *a, int32_t block, int32_t scrub)
{
    const place at = place_of(a, block);
    const int32_t row = at.row, lk = at.seq.lk, lq = at.seq.lq, reach = at.seq.reach;
    const int32_t warp = tl_uniform(tl_thread() / 32), chunk = tl_thread() % LANES16;
    const int32_t last = row + BLOCK_ROWS < lq ? row + BLOCK_ROWS : lq; /* the row after the block */
    const int32_t past = last - 1 + reach, end = past < 0 ? 0 : past < lk ? past : lk;
    volatile uint32_t vast = 0;

    tl_ctx x;
    x.a = a;
    x.vast = &vast;
    x.scrub = scrub;
    x.k8 = NULL;
    x.k_scale = NULL;
    x.q_scale = 0.f;
    x.lq = lq;
    x.lk = lk;
    x.reach = reach;
    x.row0 = row + warp * WARP_ROWS;
    place_lane(&x, warp);
    x.o = o_of(a, &at);
    x.lse = lse_at(a, &at);
    copy16_tail(tl_shared_base() + x.to16, q_of(a, &at) + (row + x.chunk_row) * a->q_seq + chunk * 8, a->q_seq,
                BLOCK_ROWS, x.chunk_row, lq - row, PITCH16, channels(&x));

    const int32_t first_sees = x.row0 + reach;
#if TL_SHAPED
    x.seq = at.seq;
    x.head = at.head;
    x.diagonal = at.seq.diagonal;
    const int32_t begin = row_begins(&at.seq, row), begins = row_begins(&at.seq, x.row0 + WARP_ROWS - 1);
    x.task.tile_low = tl_uniform(begin / KEYS);
    x.task.tile_end = tl_uniform(end > begin ? (end + KEYS - 1) / KEYS : 0);
    x.task.all_see_from = begins;
    x.task.scattered = TL_SHAPED == 2 && a->bool_mask;
#else
    x.task.tile_end = tl_uniform((end + KEYS - 1) / KEYS);
#endif
    x.k = k_of(a, &at) + x.chunk_row * a->k_seq + chunk * 8;
    x.v = v_of(a, &at) + x.chunk_row * a->v_seq + chunk * 8;
    x.task.all_see = first_sees < lk ? first_sees : lk;
    x.task.word = 0;
    x.task.group_inverse = at.seq.group_inverse;
#if TL_ROUTED
    if (!TL_SHAPED || a->q_codes) take_codes(&x, &at);
#endif
    tl_tile_loop(&x);
    return x.bad;
}

/* The block with scrubbed values. Not inlined, or the loop of the first run would spill. */
static __attribute__((noinline)) void attend_again(const launch *a, int32_t block, uint32_t bad)
{
    (void)attend(a, block, 1);
    if (!tl_vote_any(bad != 0)) return;
#if TL_SHAPED
    const place at = place_of(a, block);
    tl_ctx x;
    x.a = a;
    x.seq = at.seq;
    x.head = at.head;
    x.diagonal = at.seq.diagonal;
    x.lane = tl_thread() % 32;
    x.row0 = at.row + tl_thread() / 32 * WARP_ROWS;
    x.lse = a->lse ? lse_at(a, &at) : NULL;
    rows_again(&x, bad);
#else
    rows_again(a, block, bad);
#endif
}

TL_INLINE void attend_well(const launch *a, int32_t block)
{
    const uint32_t bad = attend(a, block, 0);
    const int all_seen = !TL_SHAPED && !a->causal; /* no value is hidden */
    if (!tl_barrier_any(all_seen ? bad >> TL_ROWS != 0 : bad != 0)) return;
    const launch copy = *a; /* the address of *a itself must not leave, or it would lie in memory for the loop, too */
    attend_again(&copy, block, bad);
}

TL_INLINE void run(const launch *a) { attend_well(a, tl_block()); }
#endif

#if TL_GENERAL
/* The rows of the lane that hold a NaN or Inf of V's; bad: those of the run before. */
TL_INLINE uint32_t attend(const launch *a, int32_t scrub, uint32_t bad)
{
    const int32_t split = tl_block() % a->splits, block = tl_block() / a->splits;
    const int32_t head = block / a->all_row_tiles, row_tile = block - head * a->all_row_tiles;
    const int32_t kv_head = head / a->group_heads, chunk = tl_thread() % (TL_D / 8), chunk8 = tl_thread() % (TL_D / 16);
    tl_ctx x;
    x.a = a;
    x.scrub = scrub;
    x.was_bad = bad | tl_swap_bits(bad, 1); /* each lane has seen its own channels */
    x.was_bad |= tl_swap_bits(x.was_bad, 2);
    x.seq = sequence_of(a, row_tile, OF_ROW_TILES);
    const tl_device_sequence *s = &x.seq;
    const int32_t tiles = (s->lq + a->tile_rows - 1) / a->tile_rows;
    const int32_t tile = a->causal ? tiles - 1 - (row_tile - s->row_tiles) : row_tile - s->row_tiles;
    const int32_t row = tile * a->tile_rows, warp = tl_thread() / 32;
    x.head = head;
    x.lk = s->lk;
    x.diagonal = s->diagonal;
    x.row0 = row + warp * WARP_ROWS;
    x.rows_end = row + a->tile_rows < s->lq ? row + a->tile_rows : s->lq;
    place_lane(&x, warp);
    x.chunk_row8 = tl_thread() / (TL_D / 16);
    x.code_row = (a->d + 31) / 32 * 32;
    x.chunk_there8 = chunk8 * 16 < x.code_row;
    const int32_t bytes = (a->d - chunk * 8) * 2, value_bytes = (a->dv - chunk * 8) * 2;
    x.chunk_bytes = bytes < 0 ? 0 : bytes < 16 ? bytes : 16;
    x.value_bytes = value_bytes < 0 ? 0 : value_bytes < 16 ? value_bytes : 16;
    x.k = a->k + s->batch * a->k_batch + kv_head * a->k_head + (s->k_start + x.chunk_row) * a->k_seq + chunk * 8;
    x.v = a->v + s->batch * a->v_batch + kv_head * a->v_head + (s->k_start + x.chunk_row) * a->v_seq + chunk * 8;
    x.lse = lse_rows(a, s, head);
    x.q_scale = 1.f;
    copy16_part(tl_shared_base() + x.to16,
                a->q + s->batch * a->q_batch + head * a->q_head + (s->q_start + row + x.chunk_row) * a->q_seq +
                    chunk * 8,
                a->q_seq, BLOCK_ROWS, x.chunk_row, x.rows_end - row, x.chunk_bytes, a->unaligned & 1);

    const int32_t part = part_keys(a, s->lk), part_begin = split * part, part_end = part_begin + part;
    const int32_t row_begin = row_begins(s, row), row_end = row_ends(s, x.rows_end - 1);
    const int32_t begin = row_begin > part_begin ? row_begin : part_begin,
                  end = row_end < part_end ? row_end : part_end;
    const int32_t warp_last = x.row0 + WARP_ROWS < x.rows_end ? x.row0 + WARP_ROWS - 1 : x.rows_end - 1;
    x.task.keys = a->tile_keys;
    x.task.tile_low = tl_uniform(begin / a->tile_keys);
    x.task.tile_end = tl_uniform(end > begin ? (end + a->tile_keys - 1) / a->tile_keys : 0);
    x.task.all_see = row_ends(s, x.row0);
    x.task.all_see_from = row_begins(s, warp_last);
    x.task.scattered = a->bool_mask || a->bias;
    x.task.group_inverse = s->group_inverse;
    x.task.words = NULL;
    x.task.int8 = a->int8;
    if (a->int8) {
        const int64_t q_token = ((int64_t)head * a->all_q_blocks + s->q_blocks) * TL_DEVICE_ROWS;
        const int64_t k_token = ((int64_t)kv_head * a->all_k_blocks + s->k_blocks) * TL_DEVICE_KEYS;
        if (a->k_inverse)
            quantise_queries(&x, a->q_inverse + q_token + row, x.rows_end - row);
        else {
            const int8_t *q8 = a->q_codes + (q_token + row + x.chunk_row8) * x.code_row + chunk8 * 16;
            copy8_part(x.values + 2 * STAGE + x.to8, q8, x.code_row, BLOCK_ROWS, x.chunk_row8,
                       x.chunk_there8 ? x.rows_end - row : 0);
            x.k8 = a->k_codes + (k_token + x.chunk_row8) * x.code_row + chunk8 * 16;
        }
        x.k_scale = a->k_scale + k_token;
        x.task.flags = a->k_flags + k_token / 16;
        x.task.int8 = tl_uniform(rows_are_finite(a->q_flags + q_token / 16, row, x.rows_end));
        if (a->words) x.task.words = a->words + s->words + kv_head * a->words_head + row / a->block_m * a->words_row;
        TL_FULLY
        for (int r = 0; r < TL_ROWS; r++) {
            const int32_t mine = row_of(&x, r);
            x.q_scales[r] = mine < x.rows_end ? a->q_scale[q_token + mine] : 1.f;
            x.q_means[r] = mine < x.rows_end && a->q_mean ? a->q_mean[q_token + mine] : 0.f;
        }
    }
    tl_tile_loop(&x);
    if (scrub && a->splits == 1 && tl_vote_any(bad != 0)) rows_again(&x, bad);
    return x.bad;
}

/* Again with scrubbed values where they hold a NaN or Inf that a row may not see. */
TL_INLINE void run(const launch *a)
{
    uint32_t bad = 0;
    for (int32_t scrub = 0;; scrub = 1) {
        TL_OPAQUE(scrub); /* one text for both */
        const uint32_t found = attend(a, tl_uniform(scrub), bad);
        if (scrub || !tl_barrier_any(found != 0)) break;
        bad = found;
    }
}

#if !TL_STATE_F16
/* The rows of one row tile of one head, each by a warp. */
TL_INLINE void run_merge(const launch *a)
{
    const int32_t head = tl_block() / a->all_row_tiles, row_tile = tl_block() - head * a->all_row_tiles;
    tl_ctx x;
    x.a = a;
    x.head = head;
    x.lane = tl_thread() % 32;
    x.seq = sequence_of(a, row_tile, OF_ROW_TILES);
    x.diagonal = x.seq.diagonal;
    x.lse = lse_rows(a, &x.seq, head);
    const int32_t row = (row_tile - x.seq.row_tiles) * a->tile_rows;
    const int32_t end = row + a->tile_rows < x.seq.lq ? row + a->tile_rows : x.seq.lq;
    for (int32_t i = row + tl_thread() / 32; i < end; i += WARPS) merge_row(&x, i);
}
#endif
#endif
#pragma omp end declare target
#else
static void run(const launch *a)
{
    (void)a;
    ran_on_host = 1;
}
#if TL_GENERAL && !TL_STATE_F16
static void run_merge(const launch *a)
{
    (void)a;
    ran_on_host = 1;
}
#endif
#endif

int TL_LAUNCH(const tl_device_call *call)
{
    TL_PLAIN_FIELDS(TL_CAPTURE)
#if TL_GENERAL || TL_SHAPED
    const int32_t row_tiles = call->heads_q * call->all_row_tiles;
    TL_GENERAL_FIELDS(TL_CAPTURE)
    const int32_t blocks = TL_GENERAL ? row_tiles * splits : row_tiles;
    const int32_t form = TL_GENERAL ? TL_FORM
                                    : call->form; /* the host does not know the image that the device has taken */
    const uint32_t shared = (uint32_t)TL_SHARED_BYTES(form, TL_D, TL_DV, TL_GENERAL || call->int8);
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS, TL_GENERAL_POINTERS) ompx_dyn_cgroup_mem(shared)
    {
        const launch a = {TL_PLAIN_FIELDS(TL_PASS) TL_GENERAL_FIELDS(TL_PASS)};
        run(&a);
    }
#if TL_GENERAL && !TL_STATE_F16
    if (splits > 1) {
#pragma omp target teams ompx_bare num_teams(row_tiles) thread_limit(THREADS) device(call->device)                     \
    is_device_ptr(TL_PLAIN_POINTERS, TL_GENERAL_POINTERS)
        {
            const launch a = {TL_PLAIN_FIELDS(TL_PASS) TL_GENERAL_FIELDS(TL_PASS)};
            run_merge(&a);
        }
    }
#endif
#elif TL_DECODE
    TL_PART_FIELDS(TL_CAPTURE)
    TL_DECODE_FIELDS(TL_CAPTURE)
    const int32_t blocks = call->heads_q / call->group_heads * call->all_row_tiles;
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS, TL_DECODE_POINTERS) ompx_dyn_cgroup_mem((uint32_t)WARPS *WARP_BYTES)
    {
        const launch a = {TL_PLAIN_FIELDS(TL_PASS) TL_PART_FIELDS(TL_PASS) TL_DECODE_FIELDS(TL_PASS)};
        run(&a);
    }
#else
    const int32_t rows = TL_FORM_ROWS(call->form), threads = rows / WARP_ROWS * 32;
    const int32_t blocks = call->heads_q * call->all_row_tiles * (TL_DEVICE_ROWS / rows);
    const uint32_t shared = (uint32_t)TL_SHARED_BYTES(call->form, TL_D, TL_DV, TL_ROUTED);
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(threads) device(call->device)                        \
    is_device_ptr(TL_PLAIN_POINTERS) ompx_dyn_cgroup_mem(shared)
    {
        const launch a = {TL_PLAIN_FIELDS(TL_PASS)};
        run(&a);
    }
#endif
    return ran_on_host;
}
