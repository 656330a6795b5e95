/* What the parts of a vector kernel share. A kernel's source includes
 *   the primitives of its instruction set     simd/avx2.h, ...
 *   a high product                            simd/products_f32.inc.h, ...   tl_high
 *   an INT8 product                           simd/products_int8.inc.h       tl_int8
 *   a P V product                             simd/values_f32.inc.h, ...     tl_values
 *   the vocabulary and the loop               simd/packed.inc.h
 * A product is a file of its own: it owns the packed form of its operand, the form of Q or P that it multiplies with, and its
 * register tiles. Another format is one more such file. What each must define:
 *
 *   typedef struct { ... } tl_high                        its memory: of the packed keys, of a task's queries, scratch
 *   int  tl_high_suits(problem)                           does it compute what this problem asks for? (pv is never AUTO)
 *   void tl_high_lay_out_keys(high, shape, keys, arena)   memory for so many keys, a multiple of TL_PANEL
 *   void tl_high_lay_out_task(high, shape, rows, arena)   memory of a worker: so many query rows, scratch
 *   void tl_high_pack(x, high, begin, end)                packs keys [begin, end), multiples of TL_PANEL
 *   void tl_high_begin(x, high)                           the form of the task's queries; x->q holds them as floats, unless
 *                                                         TL_HIGH_TAKES_ROWS is defined as 1
 *   void tl_high_scores(x, high, row, rows, at, n, s)     x->factor * q . k of rows [row, row + rows) and keys
 *                                                         [at, at + n), n a multiple of TL_PANEL, into s
 * tl_int8: the same names (suits: X3 or not; TL_INT8_TAKES_ROWS), and
 *   void tl_int8_scales(x, int8, begin, end)              comes before tl_int8_pack, for whole units
 * tl_values:
 *   tl_values_suits, tl_values_lay_out_keys, tl_values_lay_out_task, tl_values_pack as above, and
 *   TL_VALUES_UP_TO_1                                     1: P must not exceed 1, so that a row's reference is its maximum;
 *                                                         may be left undefined: 0
 *   uint16_t *nonfinite                                   a member of its struct: [keys / 16] bit j: V of the panel's key j
 *                                                         has a NaN or Inf, and is left out of the run
 *   float tl_values_weigh(p, n, ref)                      one row's logits become P = 2^(logit - ref), in place, in the form
 *                                                         that it multiplies with; returns their sum, unrounded (under
 *                                                         TL_STATE_F16 logits and P are rounded by tl_v_hold)
 *   void tl_values_run(x, values, rows, p, at, n, o)      O += P V: columns [0, n) of P, whose keys begin at `at`
 *   TL_VALUES_BEGIN                                       1: the run begins with O = 0 where x->fresh, and does not read it;
 *                                                         may be left undefined: 0, then O is set to 0 before
 *   float tl_values_weight(p, j)                          the number that column j of a row of P stands for
 *
 * With TL_CHUNKED (simd/chunks.h), in place of tl_high_scores and tl_int8_scores:
 *   void tl_high_block(high, row, rows, at, n, block, stride)   products of at most 32 rows and 32 keys; stride: numbers from one
 *                                                         row of the block to the next
 *   int  tl_high_flagged(high, at, n)                     is some query, or some of these keys, flagged?
 *   void tl_high_mend(x, high, row, rows, at, n, s)       scores of what is flagged
 *   tl_values_exp2(t), tl_values_put(p, i, a, b)          the steps of tl_values_weigh: 2^t; columns i .. i + 31 of a row of P
 *
 * Task memory is for whole row blocks. x is the tl_operands below, which tl_ctx contains; its fields are set before the
 * first of these functions is called. Rows of s, p and o lie TL_SCORE_STRIDE, TL_SCORE_STRIDE and x->o_stride floats apart.
 * `at` counts from the first packed key, x->first.
 */
#ifndef TL_CPU_SIMD_OPERANDS_H
#define TL_CPU_SIMD_OPERANDS_H

#include <string.h>

#include "simd/rows.h"

enum {
    TL_PANEL = 16,                  /* keys, or channels of V, that lie side by side in a packed operand */
    TL_PARTS = TL_PANEL / TL_LANES, /* vectors side by side in a panel */
    TL_MOST_ROWS = 16,              /* of a register tile: bounds of arrays that live in registers */
    TL_MOST_VECTORS = 8             /* side by side in a register tile */
};

#ifndef TL_ROWS /* a kernel's source may choose others before it includes its first product */
#define TL_ROWS 16
#define TL_ROW_BLOCKS 32
#endif
#ifndef TL_STATE_F16
#define TL_STATE_F16 0 /* 1: a kernel's source wants m, l and O in f16 between tiles (ALGORITHMS A8) */
#endif
#define TL_SPAN_MAX (TL_STATE_F16 ? 1 : 4)

#ifndef TL_SCORE_TAIL
#define TL_SCORE_TAIL 0 /* floats behind a row's scores, where the form of P needs them */
#endif

enum {
    TL_SPAN_KEYS = TL_SPAN_MAX * 64,
    TL_SCORE_STRIDE = TL_SPAN_KEYS + TL_SCORE_TAIL + 16 /* no power of two: rows would crowd a few cache sets */
};

#define TL_UNROLL_4 _Pragma("GCC unroll 4") /* long loops: fewer branches, and short enough a count to be predicted */

/* A call that stays one: inlined into a large caller, register tiles may spill. */
#define TL_CALL static __attribute__((noinline))

/* 1: a unit of its own makes products, by blocks (simd/chunks.h). */
#ifndef TL_CHUNKED
#define TL_CHUNKED 0
#endif

enum { TL_BLOCK_COLUMNS = 2 * TL_PANEL, TL_BLOCK_TILE = TL_PANEL * TL_PANEL }; /* of a block; numbers of a tile */

typedef struct {
    tl_cpu cpu;
    int32_t d, dv;
    int32_t q_stride, o_stride; /* d and dv, rounded up to whole panels */
    float factor;  /* the products leave q . k times this: the logit, where only a factor stands between; else 1 */
    int64_t first; /* packed key */
    int64_t span;  /* first key of the span that has arrived, and how many it has */
    int64_t span_keys;
    int64_t ahead;      /* from there to that of the span after it; past the last key where there is none */
    int32_t ahead_head; /* whose KV head that is: behind a task's last span, the next task's */
    int32_t fresh;      /* O of the rows that tl_values_run is to add to is 0 */
    float *q;           /* [rows][q_stride] the task's queries */
    float *token;       /* [max(q_stride, o_stride)] scratch: a row as floats */
} tl_operands;

/* The rows of 16 keys, or of their V, and what their codes are worth. */
typedef struct {
    const unsigned char *row[TL_PANEL];
    float scale[TL_PANEL];
} tl_panel_rows;

TL_INLINE int32_t tl_least(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

#ifndef TL_SUMS_PLANES
#define TL_SUMS_PLANES 0
#endif

#ifndef TL_OWN_AGENT
TL_INLINE void tl_agent_begin(void) {} /* takes up a task */
TL_INLINE void tl_agent_end(void) {}
#endif

/* A number that A8 says to hold in f16. */
TL_INLINE tl_v tl_v_hold(tl_v a) { return TL_STATE_F16 ? tl_v_from_f16(tl_v_to_f16(a)) : a; }

/* Some panel of keys [at, at + n) of the packed ones is marked. */
TL_INLINE int tl_any_marked(const unsigned char *panels, int64_t at, int32_t n)
{
    int found = 0;
    for (int32_t j = 0; j < n; j += TL_PANEL) found |= panels[(at + j) / TL_PANEL];
    return found;
}

/* TL_CODES codes as the 32 bits that they are. */
TL_INLINE int32_t tl_unit(const tl_qcode *codes)
{
    int32_t u;
    memcpy(&u, codes, sizeof u);
    return u;
}

/* ---- rows of tensors as vectors */

/* Elements i .. of a row as floats, the first n of them (n > 0; TL_LANES or more: a whole vector). */
TL_INLINE tl_v tl_load_lanes(const unsigned char *row, int64_t i, int64_t n, int32_t dtype)
{
    const float *f = (const float *)(const void *)row + i;
    const uint16_t *h = (const uint16_t *)(const void *)row + i;
    if (dtype == TL_F32) return n >= TL_LANES ? tl_v_load(f) : tl_v_load_part(f, (int32_t)n);
    if (dtype == TL_I8) return tl_v_load_i8((const int8_t *)row + i, tl_least(n, TL_LANES));
    const tl_half half = n >= TL_LANES ? tl_half_load(h) : tl_half_load_part(h, (int32_t)n);
    return dtype == TL_F16 ? tl_v_from_f16(half) : tl_v_from_bf16(half);
}

TL_INLINE void tl_store_lanes(unsigned char *row, int64_t i, int64_t n, int32_t dtype, tl_v x)
{
    float *f = (float *)(void *)row + i;
    uint16_t *h = (uint16_t *)(void *)row + i;
    if (dtype == TL_F32) {
        if (n >= TL_LANES)
            tl_v_store(f, x);
        else
            tl_v_store_part(f, x, (int32_t)n);
        return;
    }
    const tl_half half = dtype == TL_F16 ? tl_v_to_f16(x) : tl_v_to_bf16(x);
    if (n >= TL_LANES)
        tl_half_store(h, half);
    else
        tl_half_store_part(h, half, (int32_t)n);
}

TL_INLINE void tl_narrow_from(unsigned char *to, const float *x, int32_t n, tl_v factor, const int32_t dtype)
{
    int32_t i = 0;
    for (; dtype == TL_BF16 && i + 2 * TL_LANES <= n; i += 2 * TL_LANES)
        tl_half_store_bf16((uint16_t *)(void *)to + i, tl_v_mul(tl_v_load(x + i), factor),
                           tl_v_mul(tl_v_load(x + i + TL_LANES), factor));
    for (; i + TL_LANES <= n; i += TL_LANES) tl_store_lanes(to, i, TL_LANES, dtype, tl_v_mul(tl_v_load(x + i), factor));
    if (i < n) tl_store_lanes(to, i, n - i, dtype, tl_v_mul(tl_v_load(x + i), factor));
}

/* factor * x as a row of n elements. x is readable up to the next multiple of TL_LANES. */
static void tl_narrow(unsigned char *to, const float *x, int32_t n, float factor, int32_t dtype)
{
    switch (dtype) {
    case TL_F32: tl_narrow_from(to, x, n, tl_v_set(factor), TL_F32); break;
    case TL_F16: tl_narrow_from(to, x, n, tl_v_set(factor), TL_F16); break;
    default: tl_narrow_from(to, x, n, tl_v_set(factor), TL_BF16); break;
    }
}

TL_INLINE void tl_widen_from(float *to, const unsigned char *row, int32_t n, float scale, const int32_t dtype)
{
    const int32_t padded = (n + TL_PANEL - 1) / TL_PANEL * TL_PANEL;
    const tl_v factor = tl_v_set(scale);
    int32_t i = 0;
    for (; i + TL_LANES <= n; i += TL_LANES) { /* whole vectors, without a test of each */
        const tl_v a = tl_load_lanes(row, i, TL_LANES, dtype);
        tl_v_store(to + i, dtype == TL_I8 ? tl_v_mul(a, factor) : a);
    }
    for (; i < padded; i += TL_LANES) {
        const tl_v a = i < n ? tl_load_lanes(row, i, n - i, dtype) : tl_v_set(0.f);
        tl_v_store(to + i, dtype == TL_I8 ? tl_v_mul(a, factor) : a);
    }
}

/* A row of n elements as floats (codes: times scale), with zeros up to the next multiple of TL_PANEL. */
static void tl_widen(float *to, const unsigned char *row, int32_t n, int32_t dtype, float scale)
{
    switch (dtype) {
    case TL_F32: tl_widen_from(to, row, n, scale, TL_F32); break;
    case TL_F16: tl_widen_from(to, row, n, scale, TL_F16); break;
    case TL_BF16: tl_widen_from(to, row, n, scale, TL_BF16); break;
    default: tl_widen_from(to, row, n, scale, TL_I8); break;
    }
}

static void tl_widen_query(float *to, const tl_cpu *c, int32_t head, int64_t token)
{
    const tl_call *call = c->call;
    tl_widen(to, tl_row(&call->q, c->seq->batch, c->seq->q_start, token, head), call->shape.head_dim_qk, call->q.dtype,
             tl_query_scale(c, head, token));
}

static void tl_widen_key(float *to, const tl_cpu *c, int64_t key)
{
    const tl_call *call = c->call;
    tl_widen(to, tl_row(&call->k, c->seq->batch, c->seq->k_start, key, c->kv_head), call->shape.head_dim_qk,
             call->k.dtype, tl_key_scale(call, c->seq, c->kv_head, key));
}

TL_SHARED void tl_widen_value(float *to, const tl_cpu *c, int64_t key)
{
    const tl_call *call = c->call;
    tl_widen(to, tl_row(&call->v, c->seq->batch, c->seq->k_start, key, c->kv_head), call->shape.head_dim_v,
             call->v.dtype, tl_value_scale(call, c->seq, c->kv_head, key));
}

/* Stages h < n of a rotation (tl_hadamard), inside a vector. */
TL_INLINE tl_v tl_rotate_lanes(tl_v a, int32_t n)
{
    TL_UNROLL for (int h = 1; h < TL_LANES; h *= 2)
    {
        float sign[TL_LANES]; /* of the element itself: -1 in the upper lane of each pair h apart */
        TL_UNROLL for (int i = 0; i < TL_LANES; i++) sign[i] = i & h ? -1.f : 1.f;
        if (h < n) a = tl_v_fma(a, tl_v_load(sign), tl_v_swap(a, h));
    }
    return a;
}

/* As tl_hadamard, in the same order: a widened row of n elements, a power of two. */
TL_SHARED void tl_rotate(float *x, int32_t n)
{
    const tl_v scale = tl_v_set(tl_hadamard_scale(n));
    int32_t h = TL_LANES;
    if (n < TL_LANES)
        tl_v_store(x, tl_rotate_lanes(tl_v_mul(tl_v_load(x), scale), n));
    else
        for (int32_t i = 0; i < n; i += TL_LANES)
            tl_v_store(x + i, tl_rotate_lanes(tl_v_mul(tl_v_load(x + i), scale), TL_LANES));
    for (; 2 * h < n; h *= 4) /* two stages at a time */
        for (int32_t i = 0; i < n; i += 4 * h)
            for (float *y = x + i, *end = y + h; y < end; y += TL_LANES) {
                const tl_v a = tl_v_load(y), b = tl_v_load(y + h), c = tl_v_load(y + 2 * h), d = tl_v_load(y + 3 * h);
                const tl_v ab = tl_v_add(a, b), cd = tl_v_add(c, d), a_b = tl_v_sub(a, b), c_d = tl_v_sub(c, d);
                tl_v_store(y, tl_v_add(ab, cd));
                tl_v_store(y + h, tl_v_add(a_b, c_d));
                tl_v_store(y + 2 * h, tl_v_sub(ab, cd));
                tl_v_store(y + 3 * h, tl_v_sub(a_b, c_d));
            }
    for (float *y = x, *end = y + h; h < n && y < end; y += TL_LANES) { /* one is left: h is n / 2 */
        const tl_v a = tl_v_load(y), b = tl_v_load(y + h);
        tl_v_store(y, tl_v_add(a, b));
        tl_v_store(y + h, tl_v_sub(a, b));
    }
}

/* As it is quantised: as tl_load_coded_key. */
TL_SHARED void tl_widen_coded_key(float *to, const tl_cpu *c, int64_t key)
{
    const unsigned char *mean = (const unsigned char *)c->prepared->mean;
    const int32_t d = c->call->shape.head_dim_qk;
    tl_widen_key(to, c, key);
    for (int32_t i = 0; mean && i < d; i += TL_LANES)
        tl_v_store(to + i, tl_v_sub(tl_v_load(to + i), tl_load_lanes(mean, i, d - i, TL_F32)));
    if (c->call->policy->hadamard) tl_rotate(to, d);
}

/* max |x_i| of a widened row; Inf where one of them is Inf or NaN. */
TL_SHARED float tl_peak(const float *x, int32_t n)
{
    tl_v top = tl_v_set(0.f), bad = tl_v_set(0.f);
    for (int32_t i = 0; i < n; i += TL_LANES) {
        const tl_v a = tl_v_load(x + i);
        top = tl_v_max(tl_v_abs(a), top);
        bad = tl_v_fma(a, tl_v_set(0.f), bad); /* 0, or NaN for ever */
    }
    return tl_is_nan(tl_v_sum(bad)) ? TL_INF : tl_v_top(top);
}

/* One row's logits become P = 2^(logit - ref), in place; returns their sum. narrow: P is bf16 in an f32, from a short
 * polynomial, and its sum that before rounding. The logits were rounded when the products were stored, so that the largest
 * minus itself is 0 whatever its size. */
TL_INLINE float tl_weigh_as(const int narrow, float *p, int32_t n, float ref)
{
    tl_v lane[2] = {tl_v_set(0.f), tl_v_set(0.f)};
    const tl_v m = tl_v_set(ref);
    for (int32_t i = 0; i < n; i += TL_PANEL) TL_UNROLL for (int j = 0; j < TL_PARTS; j++)
        {
            const tl_v x = tl_v_sub(tl_v_hold(tl_v_load(p + i + j * TL_LANES)), m);
            const tl_v y = narrow ? tl_v_exp2_short(x) : tl_v_exp2(x);
            tl_v_store(p + i + j * TL_LANES, narrow ? tl_v_round_bf16(y) : tl_v_hold(y));
            lane[j] = tl_v_add(lane[j], y);
        }
    return tl_v_sum(tl_v_add(lane[0], lane[1]));
}
TL_INLINE float tl_weigh(float *p, int32_t n, float ref) { return tl_weigh_as(0, p, n, ref); }

/* Rows j .. j + TL_LANES - 1 of units c .. of a panel [units][16], given as rows. */
TL_INLINE void tl_store_square(float *panel, int32_t c, int32_t units, int32_t j, tl_v square[TL_LANES])
{
    tl_v_transpose(square);
    if (c + TL_LANES <= units)
        TL_UNROLL for (int i = 0; i < TL_LANES; i++) tl_v_store(panel + (c + i) * TL_PANEL + j, square[i]);
    else
        TL_UNROLL for (int i = 0; i < TL_LANES; i++) if (c + i < units)
            tl_v_store(panel + (c + i) * TL_PANEL + j, square[i]);
}

/* ---- a row block, cut for register tiles. Rows that make tiles of four and more take turns at each chunk of panels, so
 * that it stays in the first-level cache. The few left over take all panels in one go. */

/* Rows [row, row + rows) against items [at, at + n): keys, or panels of channels. */
typedef struct {
    int32_t row, rows, at, n, big; /* big: rows that make tiles of four and more */
} tl_piece;

/* The next rows of a block that make a register tile of at most `most`. */
TL_INLINE int32_t tl_tile_rows(const int32_t most, int32_t left)
{
    return left >= most ? most : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

TL_INLINE tl_piece tl_first_piece(const int32_t most, int32_t rows, int32_t n, const int32_t chunk)
{
    tl_piece p = {0, 0, 0, n, 0};
    while (rows - p.big >= 4) p.big += tl_tile_rows(most, rows - p.big);
    if (p.big) p.n = tl_least(chunk, n);
    p.rows = n > 0 && rows > 0 ? tl_tile_rows(most, rows) : 0;
    return p;
}

/* rows, n: of the block; rows 0: none left. */
TL_INLINE tl_piece tl_next_piece(const int32_t most, int32_t rows, int32_t n, const int32_t chunk, tl_piece p)
{
    p.row += p.rows;
    if (p.row == p.big && p.at + p.n < n) { /* the next chunk */
        p.row = 0;
        p.at += p.n;
        p.n = tl_least(chunk, n - p.at);
    } else if (p.row == p.big) {
        p.at = 0;
        p.n = n;
    }
    p.rows = p.row < rows ? tl_tile_rows(most, rows - p.row) : 0;
    return p;
}

#endif
