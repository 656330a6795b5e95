/* The vector vocabulary of the tile loop, once for every instruction set and every format of its operands. A kernel's source
 * includes its primitives and its three products first (simd/operands.h), defines
 *   TL_SYMBOL, TL_SYMBOL_NAME  the kernel's symbol, and that as a string
 *   TL_ISA                     its instruction set, as kernels.def names it
 * and includes this file, which makes the kernel.
 *
 * K and V are packed once per KV head, by panels of 16 keys and of 16 of V's channels, so that the products are register
 * tiles of some rows by some panels, fed by whole vectors of the packed operand and by single numbers of Q or P. Packing
 * converts types and fills tails: the products see neither.
 *
 * A row's bits depend neither on its neighbours nor on how rows are grouped: whatever register tile a score or an element of
 * O is part of, its terms are added in one order.
 */
#include "simd/operands.h"
#if TL_CHUNKED
#include "simd/chunks.h"
#define TL_GUESSES 1
#endif

#define TL_LAMP 0
#define TL_SPLITS 1
#define TL_SPAN_MIXED 1
#ifndef TL_VALUES_UP_TO_1
#define TL_VALUES_UP_TO_1 0
#endif
#ifndef TL_HIGH_TAKES_ROWS
#define TL_HIGH_TAKES_ROWS 0
#endif
#ifndef TL_VALUES_BEGIN
#define TL_VALUES_BEGIN 0
#endif
_Static_assert(TL_ROW_BLOCKS <= 32, "fresh");
#define TL_LAZY (TL_STATE_F16 || TL_VALUES_UP_TO_1 ? 0.f : 8.f)

typedef struct {
    tl_operands in;
    tl_high high;
    tl_int8 int8;
    tl_values values;
    float *o;       /* [rows][in.o_stride] */
    uint32_t fresh; /* bit rb: nothing was added to that row block's O yet; it is 0, whatever its memory holds */
    float *scores;  /* [TL_ROWS][TL_SCORE_STRIDE] */
#if TL_CHUNKED
    const float *guess; /* [TL_ROWS] references of the next scores' rows, as they are now */
    tl_chunk_space *chunk;
#endif
} tl_ctx;

/* Scores of one row block against its part of a span. Logits in log2 units, if need be after tl_logits. */
typedef struct {
    float *s;     /* [TL_ROWS][TL_SCORE_STRIDE] */
    int32_t cols; /* in use: a multiple of TL_PANEL, no further than the block's last row sees */
#if TL_CHUNKED
    int32_t masked; /* columns from `seen` on, which no row sees, are -Inf; every row sees those before; top is good */
    int32_t seen;
    int32_t weighed;      /* s holds P already, of these references */
    float guess[TL_ROWS]; /* [row] */
    float top[TL_ROWS];   /* [row] its largest score */
#endif
} tl_scores;

typedef struct {
    float *o;
} tl_acc;

TL_INLINE const tl_task *tl_task_of(const tl_ctx *x) { return &x->in.cpu.task; }

TL_INLINE int32_t tl_block_size(const tl_ctx *x)
{
    (void)x;
    return TL_ROWS;
}

TL_INLINE int32_t tl_rows_here(const tl_ctx *x, int32_t rb)
{
    const int32_t left = tl_task_rows(tl_task_of(x)) - rb * TL_ROWS;
    return left < TL_ROWS ? left : TL_ROWS;
}

/* Where only one task meets the keys of a KV head, it packs them as they arrive: span by span, and they stay in cache.
 * INT8 scales must not reach over a span's end. */
TL_INLINE int tl_packs_on_arrival(const tl_shape *shape)
{
    return shape->one_task && shape->tile_keys == 64 && (!shape->int8 || shape->unit_keys == 64);
}

/* ---- memory */

static void tl_lay_out_keys(tl_ctx *x, const tl_shape *shape, int64_t n, tl_arena *a)
{
    const int64_t keys = tl_round_up(n, TL_PANEL);
    tl_high_lay_out_keys(&x->high, shape, keys, a);
    tl_int8_lay_out_keys(&x->int8, shape, keys, a);
    tl_values_lay_out_keys(&x->values, shape, keys, a);
}

/* Lays the scratch out; with base NULL only to learn the size. */
static void tl_lay_out(tl_ctx *x, const tl_shape *shape, tl_arena *a)
{
    const int64_t rows = tl_round_up((int64_t)shape->task_tokens * shape->task_heads, TL_ROWS);
    tl_operands *in = &x->in;
    in->d = shape->head_dim_qk;
    in->dv = shape->head_dim_v;
    in->q_stride = (int32_t)tl_round_up(in->d, TL_PANEL);
    in->o_stride = (int32_t)tl_round_up(in->dv, TL_PANEL);
    in->q = tl_take(a, TL_HIGH_TAKES_ROWS && !shape->int8 ? 0 : rows * in->q_stride * 4);
    in->token = tl_take(a, tl_max64(in->q_stride, in->o_stride) * 4);
    x->o = tl_take(a, rows * in->o_stride * 4);
    x->scores = tl_take(a, (int64_t)TL_ROWS * TL_SCORE_STRIDE * 4);
#if TL_CHUNKED
    x->chunk = tl_take(a, (int64_t)sizeof *x->chunk);
#endif
    tl_high_lay_out_task(&x->high, shape, rows, a);
    tl_int8_lay_out_task(&x->int8, shape, rows, a);
    tl_values_lay_out_task(&x->values, shape, rows, a);
    if (tl_packs_on_arrival(shape)) tl_lay_out_keys(x, shape, TL_SPAN_KEYS, a);
}

/* ---- packing */

/* Bit r is set if some tile of keys [begin, end) takes route r. */
static int tl_unit_routes(const tl_call *call, const tl_sequence *seq, int32_t kv_head, int64_t begin, int64_t end)
{
    const tlamp_policy *policy = call->policy;
    if (!seq->words) return policy->kind == TLAMP_POLICY_HIGH ? 1 << TL_HIGH : 1 << TL_INT8;
    const int64_t group_keys = (int64_t)seq->group * policy->block_n, rows = tl_ceil_div(seq->lq, policy->block_m);
    int routes = 0;
    for (int64_t m = 0; m < rows; m++) {
        const uint64_t *words = seq->words + kv_head * call->words_head + m * call->words_row;
        for (int64_t group = begin / group_keys; group * group_keys < end; group++)
            routes |= 1 << tl_word_bit(words, group);
    }
    return routes;
}
/* Packs one unit, keys [begin, end) of which may lie beyond the last; routes as from tl_unit_routes. */
static void tl_pack_unit(tl_ctx *x, int64_t begin, int64_t end, int routes)
{
    const int int8 = routes >> TL_INT8 & 1;
    if (x->in.cpu.call->shape.int8) tl_int8_scales(&x->in, &x->int8, begin, end);
    if (int8) tl_int8_pack(&x->in, &x->int8, begin, end);
    if (routes >> TL_HIGH & 1) tl_high_pack(&x->in, &x->high, begin, end);
    tl_values_pack(&x->in, &x->values, begin, end);
}

/* ---- data movement */

TL_INLINE void tl_begin(tl_ctx *x, tl_acc *acc)
{
    const tl_cpu *c = &x->in.cpu;
    const int32_t rows = tl_task_rows(&c->task);
    const int high = tl_meets(&c->task, TL_HIGH), int8 = tl_meets(&c->task, TL_INT8);
    const int widened = (high && !TL_HIGH_TAKES_ROWS) || (int8 && !TL_INT8_TAKES_ROWS);
    for (int32_t r = 0; r < rows && widened; r++)
        tl_widen_query(x->in.q + (int64_t)r * x->in.q_stride, c, tl_head_of(c, r), tl_token_of(c, r));
    if (high) tl_high_begin(&x->in, &x->high);
    if (int8) tl_int8_begin(&x->in, &x->int8);
    acc->o = x->o;
    x->fresh = UINT32_MAX;
}

/* Called for the first span, and then whenever one has arrived, for the next. */
TL_INLINE void tl_prefetch(tl_ctx *x, tl_span span)
{
    x->in.ahead = (int64_t)span.first * x->in.cpu.task.tile_keys - x->in.span;
    x->in.ahead_head = x->in.cpu.kv_head;
}

/* Behind the task's last span: where the next task is likely to begin. Where keys are split that is the last span of the
 * split behind this one, or of the next KV head's first; heads first: of the next KV head's same split, or of the first
 * one's next. */
static void tl_expect_next_task(tl_ctx *x)
{
    const tl_task *t = tl_task_of(x);
    const tl_shape *shape = &x->in.cpu.call->shape;
    const int64_t tiles = tl_ceil_div(x->in.cpu.seq->lk, t->tile_keys), each = (int64_t)t->tile_past - t->tile_begin;
    const int another = t->split + 1 < t->splits && t->tile_past < tiles; /* split behind this one */
    const int last = x->in.cpu.kv_head + 1 == shape->heads_k;
    int64_t past = another ? t->tile_past + each : each;
    x->in.ahead_head = x->in.cpu.kv_head + !another;
    if (shape->heads_first) {
        past = last && another ? t->tile_past + each : t->tile_past;
        x->in.ahead_head = last && another ? 0 : x->in.cpu.kv_head + 1;
    }
    past = tl_min64(past, tiles);
    x->in.ahead = x->in.cpu.seq->lk; /* nothing, unless */
    if (past > 0 && x->in.ahead_head < shape->heads_k)
        x->in.ahead = (past - 1) / TL_SPAN_MAX * TL_SPAN_MAX * t->tile_keys;
    x->in.ahead -= x->in.span;
}

static void tl_arrive(tl_ctx *x, tl_span span)
{
    const int32_t tile = x->in.cpu.task.tile_keys;
    x->in.span = (int64_t)span.first * tile;
    x->in.span_keys = tl_min64((int64_t)span.count * tile, x->in.cpu.seq->lk - x->in.span);
    tl_expect_next_task(x); /* until tl_prefetch knows of a further span */
    if (!tl_packs_on_arrival(&x->in.cpu.call->shape)) return;
    const int64_t first = (int64_t)span.first * 64, past = tl_round_up(x->in.cpu.seq->lk, TL_PANEL);
    x->in.first = first;
    for (int32_t i = 0; i < span.count; i++)
        tl_pack_unit(x, first + i * 64, tl_min64(first + i * 64 + 64, past), 1 << (span.route >> i & 1));
}

TL_INLINE void tl_leave(tl_ctx *x, tl_span span)
{
    (void)x;
    (void)span;
}

/* ---- products */

/* Columns of one route. */
typedef struct {
    int32_t route, j, n;
} tl_run;

TL_INLINE tl_run tl_run_at(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t j)
{
    const int32_t tile = tl_task_of(x)->tile_keys;
    tl_run run = {span.route >> (j / tile) & 1, j, tile};
    while (j + run.n < s->cols && (span.route >> ((j + run.n) / tile) & 1) == run.route) run.n += tile;
    run.n = tl_least(run.n, s->cols - j);
    return run;
}

#if TL_CHUNKED
TL_INLINE void tl_guess(tl_ctx *x, const float m[TL_ROWS]) { x->guess = m; }

static int tl_some_flagged(const tl_ctx *x, const tl_scores *s, tl_span span, int64_t at)
{
    tl_run run;
    for (int32_t j = 0; j < s->cols; j += run.n) {
        run = tl_run_at(x, s, span, j);
        if (run.route == TL_INT8 ? tl_int8_flagged(&x->int8, at + j, run.n) : tl_high_flagged(&x->high, at + j, run.n))
            return 1;
    }
    return 0;
}

/* Of the columns, how many all rows of the block see, and no row sees further ones; -1: rows differ. */
static int32_t tl_same_columns(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t rb)
{
    if (!span.edge) return s->cols;
    const tl_task *t = tl_task_of(x);
    const tl_tokens k = tl_row_tokens(t, rb * TL_ROWS, tl_rows_here(x, rb));
    const int64_t key = (int64_t)span.first * t->tile_keys;
    const int64_t first = tl_min64(tl_key_end(&t->mask, k.first) - key, s->cols);
    const int64_t last = tl_min64(tl_key_end(&t->mask, k.last) - key, s->cols);
    const int same = !t->scattered && first == last && first > 0 && tl_key_begin(&t->mask, k.last) <= key;
    return same ? (int32_t)first : -1;
}

/* Can weights be made at once? The references must be known: a row's own, or where it has seen nothing its largest score. */
static int tl_can_weigh(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t rows)
{
    const int32_t whole = (1 << span.count) - 1;
    if (TL_VALUES_UP_TO_1 || !s->masked) return 0;
    if (tl_task_of(x)->tile_keys % TL_BLOCK_COLUMNS && span.route != 0 && span.route != whole) return 0;
    for (int32_t r = 0; r < rows; r++)
        if (!tl_is_finite(x->guess[r]) && x->guess[r] != TL_NEVER) return 0;
    return 1;
}

/* Columns [j, j + n) of one route, with the products of row block rb at `block`. */
static tl_chunk tl_chunk_at(tl_ctx *x, const tl_scores *s, int32_t route, int32_t rb, int64_t at, int32_t j, int32_t n,
                            float *block, int64_t stride)
{
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb);
    tl_chunk c = {.block = block, .stride = stride, .rows = rows, .begin = j, .cols = n, .factor = x->in.factor};
    c.seen = s->masked ? s->seen - j : n;
    if (route == TL_INT8) {
        c.q_scale = x->int8.q_scale + first;
        c.q_mean = x->int8.q_mean + first;
        c.k_scale = x->int8.scale + at + j;
    }
    return c;
}

static void tl_chunk_products(tl_ctx *x, int32_t route, int32_t rb, int64_t at, int32_t n, float *block, int64_t stride)
{
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb);
    for (int32_t i = 0; i < n; i += TL_BLOCK_COLUMNS) {
        const int32_t cols = tl_least(TL_BLOCK_COLUMNS, n - i);
        if (route == TL_INT8)
            tl_int8_block(&x->int8, first, rows, at + i, cols, block + i, stride);
        else
            tl_high_block(&x->high, first, rows, at + i, cols, block + i, stride);
    }
}

static void tl_begin_rows(tl_ctx *x, int32_t rows)
{
    for (int32_t r = 0; r < rows; r++) {
        tl_v_store(x->chunk->top[r], tl_v_set(-TL_INF));
        tl_v_store(x->chunk->sum[r], tl_v_set(0.f));
    }
}

/* Scores, or weights of the references in s->guess, chunk by chunk. */
static void tl_chunked_scores(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, int64_t at)
{
    const int32_t rows = tl_rows_here(x, rb);
    tl_run run;
    tl_begin_rows(x, rows);
    for (int32_t j = 0; j < s->cols; j += run.n) {
        run = tl_run_at(x, s, span, j);
        for (int32_t i = j, n; i < j + run.n; i += n) {
            n = tl_least(TL_CHUNK_COLUMNS, j + run.n - i);
            tl_chunk_products(x, run.route, rb, at + i, n, x->chunk->products, TL_CHUNK_STRIDE);
            const tl_chunk c = tl_chunk_at(x, s, run.route, rb, at, i, n, x->chunk->products, TL_CHUNK_STRIDE);
            tl_chunk_rows(&c, x->chunk, s->weighed ? s->guess : NULL, s->s);
        }
    }
    for (int32_t r = 0; r < rows; r++) s->top[r] = tl_v_top(tl_v_load(x->chunk->top[r]));
}

/* The same of rows some of which have seen nothing: weights of what will be their references, once all products are there. */
static void tl_first_weights(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, int64_t at)
{
    const int32_t rows = tl_rows_here(x, rb);
    const int one = s->cols <= TL_CHUNK_COLUMNS; /* or where scores go, which make room */
    float *block = one ? x->chunk->products : s->s;
    const int64_t stride = one ? TL_CHUNK_STRIDE : TL_SCORE_STRIDE;
    tl_run run;
    tl_begin_rows(x, rows);
    for (int32_t j = 0; j < s->cols; j += run.n) {
        run = tl_run_at(x, s, span, j);
        tl_chunk_products(x, run.route, rb, at + j, run.n, block + j, stride);
        const tl_chunk c = tl_chunk_at(x, s, run.route, rb, at, j, run.n, block + j, stride);
        tl_chunk_tops(&c, x->chunk);
    }
    for (int32_t r = 0; r < rows; r++) {
        s->top[r] = tl_v_top(tl_v_load(x->chunk->top[r]));
        if (s->guess[r] == TL_NEVER) s->guess[r] = s->top[r];
        s->weighed &= tl_is_finite(s->guess[r]);
    }
    for (int32_t j = 0; j < s->cols; j += run.n) {
        run = tl_run_at(x, s, span, j);
        const tl_chunk c = tl_chunk_at(x, s, run.route, rb, at, j, run.n, block + j, stride);
        tl_chunk_rows(&c, x->chunk, s->weighed ? s->guess : NULL, s->s);
    }
}

static void tl_products(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, int64_t at)
{
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb);
    const int flagged = tl_some_flagged(x, s, span, at);
    int fresh = 0;
    s->seen = tl_same_columns(x, s, span, rb);
    s->masked = !flagged && s->seen >= 0 && tl_logits_are_plain(x->in.cpu.call);
    s->weighed = tl_can_weigh(x, s, span, rows);
    for (int32_t r = 0; r < rows; r++) {
        s->guess[r] = x->guess[r];
        fresh |= s->guess[r] == TL_NEVER;
    }
    if (s->weighed && fresh)
        tl_first_weights(x, s, span, rb, at);
    else
        tl_chunked_scores(x, s, span, rb, at);
    tl_run run;
    for (int32_t j = 0; flagged && j < s->cols; j += run.n) {
        run = tl_run_at(x, s, span, j);
        if (run.route == TL_INT8)
            tl_int8_mend(&x->in, &x->int8, first, rows, at + j, run.n, s->s + j);
        else
            tl_high_mend(&x->in, &x->high, first, rows, at + j, run.n, s->s + j);
    }
}
#else
static void tl_products(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, int64_t at)
{
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb);
    tl_run run;
    for (int32_t j = 0; j < s->cols; j += run.n) {
        run = tl_run_at(x, s, span, j);
        if (run.route == TL_INT8)
            tl_int8_scores(&x->in, &x->int8, first, rows, at + j, run.n, s->s + j);
        else
            tl_high_scores(&x->in, &x->high, first, rows, at + j, run.n, s->s + j);
    }
}
#endif

static void tl_scores_issue(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_task *t = tl_task_of(x);
    const int64_t key = (int64_t)span.first * t->tile_keys;
    const int64_t seen = tl_key_end(&t->mask, tl_row_tokens(t, rb * TL_ROWS, tl_rows_here(x, rb)).last) - key;
    s->s = x->scores;
    s->cols = (int32_t)tl_round_up(tl_min64(seen, (int64_t)span.count * t->tile_keys), TL_PANEL);
    tl_products(x, s, span, rb, key - x->in.first);
}

TL_INLINE void tl_scores_wait(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    (void)x;
    (void)s;
    (void)span;
    (void)rb;
}

/* Column j of P, whose V is not finite and so was left out. Rows that do not see the key leave it out: 0 * NaN is NaN. */
static void tl_values_nonfinite(tl_ctx *x, int32_t row, int32_t rows, const float *p, int32_t j, int64_t key, float *o)
{
    const tl_cpu *c = &x->in.cpu;
    float *v = x->in.token;
    tl_widen_value(v, c, key);
    for (int32_t r = 0; r < rows; r++, p += TL_SCORE_STRIDE, o += x->in.o_stride) {
        if (!tl_row_sees(c, row + r, key)) continue;
        const tl_v weight = tl_v_set(tl_values_weight(p, j));
        for (int32_t i = 0; i < x->in.o_stride; i += TL_LANES)
            tl_v_store(o + i, tl_v_fma(weight, tl_v_load(v + i), tl_v_load(o + i)));
    }
}

static void tl_values_issue(tl_ctx *x, tl_acc *acc, tl_scores *s, tl_span span, int32_t rb)
{
    const int32_t first = rb * TL_ROWS, rows = tl_rows_here(x, rb);
    const int64_t key = (int64_t)span.first * x->in.cpu.task.tile_keys, at = key - x->in.first;
    float *o = acc->o + (int64_t)first * x->in.o_stride;
    x->in.fresh = x->fresh >> rb & 1;
    x->fresh &= ~(1u << rb);
    if (x->in.fresh && !TL_VALUES_BEGIN) memset(o, 0, sizeof *o * (size_t)((int64_t)rows * x->in.o_stride));
    tl_values_run(&x->in, &x->values, rows, s->s, at, s->cols, o);
    for (int32_t j = 0; j < s->cols; j += TL_PANEL)
        for (int32_t i = 0, marks = x->values.nonfinite[(at + j) / TL_PANEL]; marks >> i; i++)
            if (marks >> i & 1) tl_values_nonfinite(x, first, rows, s->s, j + i, key + j + i, o);
    for (int32_t i = 0; TL_STATE_F16 && i < rows * x->in.o_stride; i += TL_LANES)
        tl_v_store(o + i, tl_v_hold(tl_v_load(o + i)));
}

TL_INLINE void tl_values_wait(tl_ctx *x, tl_acc *acc)
{
    (void)x;
    (void)acc;
}

/* ---- score epilogue */

TL_INLINE void tl_sinks(const tl_ctx *x, int32_t rb, float sink[TL_ROWS])
{
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < TL_ROWS; r++)
        sink[r] = r < n ? tl_sink_of(&x->in.cpu, rb * TL_ROWS + r) : TL_NEVER;
}

/* As tl_log2_logit. */
TL_INLINE tl_v tl_v_log2_logit(tl_v s)
{
    const tl_v limit = tl_v_set(2.35e38f), clamped = tl_v_max(tl_v_min(s, limit), tl_v_sub(tl_v_set(0.f), limit));
    const tl_v kept = tl_v_pick(tl_m_less(tl_v_abs(s), tl_v_set(TL_INF)), clamped, s);
    return tl_v_mul(kept, tl_v_set(TL_LOG2E));
}

/* As tl_tanh: a polynomial near 0, elsewhere 1 - 2 / (e^2x + 1). */
TL_INLINE tl_v tl_v_tanh(tl_v x)
{
    const tl_v one = tl_v_set(1.f), two = tl_v_set(2.f), z = tl_v_mul(x, x);
    tl_v p = tl_v_set(0.00227270322f);
    p = tl_v_fma(p, z, tl_v_set(-0.00832640007f));
    p = tl_v_fma(p, z, tl_v_set(0.0217636321f));
    p = tl_v_fma(p, z, tl_v_set(-0.0539586246f));
    p = tl_v_fma(p, z, tl_v_set(0.133333012f));
    p = tl_v_fma(p, z, tl_v_set(-0.333333343f));
    const tl_v small = tl_v_fma(tl_v_mul(x, z), p, x);
    const tl_v most = tl_v_min(tl_v_set(16.f), tl_v_abs(x)); /* NaN is kept; tanh 16 is 1 in f32 */
    const tl_v e = tl_v_exp2(tl_v_mul(most, tl_v_set(2.f * TL_LOG2E)));
    const tl_v t = tl_v_sub(one, tl_v_div(two, tl_v_add(e, one)));
    const tl_v large = tl_v_pick(tl_m_less(x, tl_v_set(0.f)), tl_v_sub(tl_v_set(0.f), t), t);
    return tl_v_pick(tl_m_less(z, tl_v_set(0.4f)), small, large);
}

/* tl_logits_row for neighbouring bias elements (or one for all keys) and positions that a float holds exactly. */
static void tl_logits_lanes(const tl_ctx *x, float *s, int32_t row, int64_t key, int32_t cols)
{
    const tl_cpu *c = &x->in.cpu;
    const tl_call *call = c->call;
    const int32_t head = tl_head_of(c, row), n = tl_least(cols, c->seq->lk - key);
    const int64_t token = tl_token_of(c, row), distance = key - (token + c->seq->lk - c->seq->lq);
    const float slope = call->alibi_slopes ? call->alibi_slopes[c->seq->batch * call->alibi_batch_stride + head] : 0.f;
    const int64_t bias_at = call->bias.data ? tl_score_offset(&call->bias, c->seq->batch, head, token, key) : 0;
    const unsigned char *bias = call->bias.data ? call->bias.data + bias_at * tl_dtype_bytes(call->bias.dtype) : NULL;
    const tl_v cap = tl_v_set(call->softcap), scale = tl_v_set(call->softmax_scale);
    for (int32_t i = 0; i < n; i += TL_LANES) {
        tl_v y = tl_v_mul(tl_v_load(s + i), scale);
        if (call->softcap > 0.f) y = tl_v_mul(cap, tl_v_tanh(tl_v_div(y, cap)));
        if (call->alibi_slopes) {
            const tl_vi at = tl_vi_add(tl_vi_set((int32_t)distance + i), tl_iota());
            y = tl_v_sub(y, tl_v_mul(tl_v_set(slope), tl_v_abs(tl_v_from_int(at))));
        }
        if (bias && call->bias.k == 1) y = tl_v_add(y, tl_load_lanes(bias, i, n - i, call->bias.dtype));
        if (bias && call->bias.k == 0) y = tl_v_add(y, tl_v_set(tl_load(bias, 0, call->bias.dtype)));
        tl_v_store(s + i, tl_v_log2_logit(y));
    }
}

static void tl_logits(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_call *call = x->in.cpu.call;
    const int64_t key = (int64_t)span.first * x->in.cpu.task.tile_keys, far = (int64_t)1 << 30;
    if (tl_logits_are_plain(call)) return; /* the products have applied the factor */
    const int lanes = (!call->bias.data || call->bias.k == 1 || call->bias.k == 0) && x->in.cpu.seq->lk < far &&
                      x->in.cpu.seq->lq < far;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *row = s->s + r * TL_SCORE_STRIDE;
        if (lanes)
            tl_logits_lanes(x, row, rb * TL_ROWS + r, key, s->cols);
        else
            tl_logits_row(&x->in.cpu, row, rb * TL_ROWS + r, key, s->cols);
    }
}

/* -Inf in keys [begin, end) that a boolean mask or a bias of -Inf hides: elements that are neighbours, or one for all. */
static void tl_mask_lanes(const tl_ctx *x, float *s, int32_t row, int64_t key, int32_t begin, int32_t end)
{
    const tl_cpu *c = &x->in.cpu;
    const tl_score_operand *mask = &c->call->bool_mask, *bias = &c->call->bias;
    const int32_t head = tl_head_of(c, row);
    const int64_t token = tl_token_of(c, row), batch = c->seq->batch;
    const tl_v never = tl_v_set(-TL_INF);
    for (int32_t i = begin; i < end; i += TL_LANES) {
        const int32_t n = tl_least(end - i, TL_LANES);
        tl_v y = n < TL_LANES ? tl_v_load_part(s + i, n) : tl_v_load(s + i);
        if (mask->data) {
            const unsigned char *m = mask->data + tl_score_offset(mask, batch, head, token, key + i);
            if (mask->k == 1)
                y = tl_v_pick(tl_m_bytes(m, n), y, never);
            else if (!*m)
                y = never;
        }
        if (bias->data) {
            const int64_t at = tl_score_offset(bias, batch, head, token, key + i);
            const tl_v b = bias->k == 1 ? tl_load_lanes(bias->data, at, n, bias->dtype)
                                        : tl_v_set(tl_load(bias->data, at, bias->dtype));
            y = tl_v_pick(tl_m_equal(b, never), never, y);
        }
        if (n < TL_LANES)
            tl_v_store_part(s + i, y, n);
        else
            tl_v_store(s + i, y);
    }
}

/* -Inf in [from, to), multiples of TL_LANES, outside [begin, end). */
TL_INLINE void tl_hide_outside(float *s, int32_t from, int32_t to, int32_t begin, int32_t end)
{
    const tl_v never = tl_v_set(-TL_INF);
    for (int32_t i = from; i < to; i += TL_LANES) {
        const tl_v y = tl_v_pick(tl_m_first(end - i), tl_v_load(s + i), never);
        tl_v_store(s + i, tl_v_pick(tl_m_first(begin - i), never, y));
    }
}

static void tl_mask(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb)
{
    const tl_cpu *c = &x->in.cpu;
    const int64_t key = (int64_t)span.first * c->task.tile_keys;
    const int64_t mask_k = c->call->bool_mask.data ? c->call->bool_mask.k : 1;
    const int64_t bias_k = c->call->bias.data ? c->call->bias.k : 1;
    const int lanes = (mask_k == 0 || mask_k == 1) && (bias_k == 0 || bias_k == 1);
#if TL_CHUNKED
    if (s->masked) return;
#endif
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *row = s->s + r * TL_SCORE_STRIDE;
        if (c->task.scattered && !lanes) {
            tl_mask_row(c, row, rb * TL_ROWS + r, key, s->cols);
            continue;
        }
        const int64_t token = tl_token_of(c, rb * TL_ROWS + r);
        const int32_t begin = (int32_t)tl_clamp64(tl_key_begin(&c->task.mask, token) - key, 0, s->cols);
        const int32_t end = (int32_t)tl_clamp64(tl_key_end(&c->task.mask, token) - key, begin, s->cols);
        const int32_t low = (int32_t)tl_round_up(begin, TL_LANES), high = end / TL_LANES * TL_LANES;
        if (c->task.scattered) tl_mask_lanes(x, row, rb * TL_ROWS + r, key, begin, end);
        tl_hide_outside(row, 0, low, begin, end);
        tl_hide_outside(row, high, s->cols, begin, end);
    }
}

static void tl_row_max(const tl_ctx *x, const tl_scores *s, tl_span span, int32_t rb, float top[TL_ROWS])
{
    const int32_t n = tl_rows_here(x, rb);
#if TL_CHUNKED
    if (s->masked) {
        for (int32_t r = 0; r < TL_ROWS; r++) top[r] = r < n ? s->top[r] : -TL_INF;
        return;
    }
#endif
    (void)span;
    for (int32_t r = 0; r < TL_ROWS; r++) {
        tl_v lane[2] = {tl_v_set(-TL_INF), tl_v_set(-TL_INF)};
        const float *row = s->s + r * TL_SCORE_STRIDE;
        for (int32_t i = 0; r < n && i < s->cols; i += TL_PANEL)
            TL_UNROLL for (int j = 0; j < TL_PARTS; j++) lane[j] = tl_v_max(tl_v_load(row + i + j * TL_LANES), lane[j]);
        top[r] = tl_v_top(tl_v_max(lane[0], lane[1]));   /* NaN is not a maximum */
        if (TL_STATE_F16) top[r] = tl_round_f16(top[r]); /* as tl_values_weigh rounds the logits */
    }
}

TL_INLINE void tl_row_join_max(const tl_ctx *x, float *top)
{
    (void)x;
    (void)top;
}

TL_INLINE void tl_row_join_sum(const tl_ctx *x, float *sum)
{
    (void)x;
    (void)sum;
}

TL_INLINE int tl_any(const tl_ctx *x, int predicate)
{
    (void)x;
    return predicate;
}

static void tl_exp(tl_ctx *x, tl_scores *s, tl_span span, int32_t rb, const float ref[TL_ROWS], float sum[TL_ROWS])
{
    const int32_t n = tl_rows_here(x, rb);
    for (int32_t r = n; r < TL_ROWS; r++) sum[r] = 0.f;
#if TL_CHUNKED
    if (s->weighed) {
        int right = 1;
        for (int32_t r = 0; r < n; r++) right &= ref[r] == s->guess[r];
        for (int32_t r = 0; right && r < n; r++) sum[r] = tl_v_sum(tl_v_load(x->chunk->sum[r]));
        if (right) return;
        s->weighed = 0;
        tl_chunked_scores(x, s, span, rb, (int64_t)span.first * tl_task_of(x)->tile_keys - x->in.first);
    }
#endif
    (void)span;
    for (int32_t r = 0; r < n; r++) sum[r] = tl_values_weigh(s->s + r * TL_SCORE_STRIDE, s->cols, ref[r]);
}

TL_INLINE void tl_rescale(tl_ctx *x, tl_acc *acc, int32_t rb, const float lambda[TL_ROWS])
{
    if (x->fresh >> rb & 1) return;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        float *o = acc->o + (int64_t)(rb * TL_ROWS + r) * x->in.o_stride;
        for (int32_t i = 0; lambda[r] != 1.f && i < x->in.o_stride; i += TL_LANES)
            tl_v_store(o + i, tl_v_mul(tl_v_load(o + i), tl_v_set(lambda[r])));
    }
}

/* ---- end */

static void tl_store(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    const tl_cpu *c = &x->in.cpu;
    const tl_call *call = c->call;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        const int32_t row = rb * TL_ROWS + r, head = tl_head_of(c, row);
        const int64_t token = tl_token_of(c, row);
        unsigned char *to = tl_out_row(&call->o, c->seq->batch, c->seq->q_start, token, head);
        const float *o = acc->o + (int64_t)row * x->in.o_stride;
        const int empty = l[r] == 0.f; /* no key was seen: O is 0, whatever V holds */
        if (empty || x->fresh >> rb & 1)
            memset(to, 0, (size_t)(x->in.dv * tl_dtype_bytes(call->o.dtype)));
        else
            tl_narrow(to, o, x->in.dv, 1.f / l[r], call->o.dtype);
        if (!call->lse) continue;
        const tlamp_lse_strides *s = &call->lse_stride;
        call->lse[c->seq->batch * s->batch + head * s->head + (c->seq->q_start + token) * s->seq] =
            empty ? -TL_INF : (m[r] + tl_log2(l[r])) * TL_LN2;
    }
}

/* ---- splits of the keys */

static void tl_store_partial(tl_ctx *x, const tl_acc *acc, int32_t rb, const float m[TL_ROWS], const float l[TL_ROWS])
{
    const int32_t n = tl_rows_here(x, rb);
    if (x->fresh >> rb & 1)
        memset(acc->o + (int64_t)rb * TL_ROWS * x->in.o_stride, 0, sizeof *acc->o * (size_t)n * (size_t)x->in.o_stride);
    for (int32_t r = 0; r < n; r++)
        tl_keep_partial(&x->in.cpu, rb * TL_ROWS + r, acc->o + (int64_t)(rb * TL_ROWS + r) * x->in.o_stride, m[r],
                        l[r]);
}

static void tl_begin_merge(tl_ctx *x, tl_acc *acc)
{
    acc->o = x->o;
    x->fresh = 0;
    memset(x->o, 0, sizeof *x->o * (size_t)tl_task_rows(tl_task_of(x)) * (size_t)x->in.o_stride);
}

TL_INLINE void tl_partial(const tl_ctx *x, int32_t rb, int32_t split, float m[TL_ROWS], float l[TL_ROWS])
{
    tl_load_partials(&x->in.cpu, rb * TL_ROWS, tl_rows_here(x, rb), TL_ROWS, split, m, l);
}

static void tl_add_partial(tl_ctx *x, tl_acc *acc, int32_t rb, int32_t split, const float weight[TL_ROWS])
{
    const int32_t dv = x->in.dv;
    for (int32_t r = 0, n = tl_rows_here(x, rb); r < n; r++) {
        const unsigned char *from = (const unsigned char *)tl_partial_output(&x->in.cpu, rb * TL_ROWS + r, split);
        float *o = acc->o + (int64_t)(rb * TL_ROWS + r) * x->in.o_stride;
        const tl_v w = tl_v_set(weight[r]);
        for (int32_t i = 0; i < dv; i += TL_LANES)
            tl_v_store(o + i, tl_v_fma(tl_load_lanes(from, i, dv - i, TL_F32), w, tl_v_load(o + i)));
    }
}

#include "core/tile_loop.inc.h"

/* ---- the kernel */

static int tl_supports(const tlamp_problem *problem)
{
    const tlamp_policy *p = problem->policy;
    const int kind = p->kind == TLAMP_POLICY_HIGH || p->kind == TLAMP_POLICY_INT8 || p->kind == TLAMP_POLICY_ROUTED ||
                     p->kind == TLAMP_POLICY_X3;
    return kind && tl_high_suits(problem) && tl_int8_suits(problem) && tl_values_suits(problem) &&
           p->state == (TL_STATE_F16 ? TLAMP_STATE_F16 : TLAMP_STATE_F32);
}

static size_t tl_scratch_bytes(const tl_shape *shape)
{
    tl_ctx x;
    tl_arena a = {NULL, 0};
    tl_lay_out(&x, shape, &a);
    return a.used;
}

static size_t tl_packed_bytes(const tl_shape *shape, int64_t lk)
{
    tl_ctx x;
    tl_arena a = {NULL, 0};
    if (!tl_packs_on_arrival(shape)) tl_lay_out_keys(&x, shape, lk, &a);
    return a.used;
}

static void tl_start(tl_ctx *x, void *scratch)
{
    const tl_cpu *c = &x->in.cpu;
    const tl_shape *shape = &c->call->shape;
    tl_lay_out(x, shape, &(tl_arena){scratch, 0});
    if (!tl_packs_on_arrival(shape)) tl_lay_out_keys(x, shape, c->seq->lk, &(tl_arena){c->prepared->packed, 0});
}

static void tl_survey(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                      int64_t unit, void *scratch)
{
    tl_ctx x = {.in.cpu = {.call = call, .seq = seq, .prepared = prepared, .kv_head = kv_head}};
    const int32_t d = call->shape.head_dim_qk;
    const tl_unit_keys keys = tl_survey_seen(call, seq, prepared, kv_head, unit);
    if (!prepared->mean) return;
    tl_start(&x, scratch);
    int64_t count = 0;
    float *sum = x.in.q; /* of whole panels */
    memset(sum, 0, sizeof *sum * (size_t)x.in.q_stride);
    for (int64_t key = keys.begin; key < keys.end; key++) {
        if (!tl_key_is_seen(seq, prepared, key)) continue;
        tl_widen_key(x.in.token, &x.in.cpu, key);
        if (!tl_is_finite(tl_peak(x.in.token, d))) continue;
        for (int32_t i = 0; i < d; i += TL_LANES)
            tl_v_store(sum + i, tl_v_add(tl_v_load(sum + i), tl_v_load(x.in.token + i)));
        count++;
    }
    memcpy(prepared->unit_sums + unit * d, sum, sizeof *sum * (size_t)d);
    prepared->unit_counts[unit] = count;
}

static void tl_pack(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                    int64_t unit, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.in.cpu = {.call = call, .seq = seq, .prepared = prepared, .counters = counters, .kv_head = kv_head}};
    tl_start(&x, scratch);
    const int64_t begin = unit * call->shape.unit_keys;
    const int64_t end = tl_min64(begin + call->shape.unit_keys, tl_round_up(seq->lk, TL_PANEL));
    tl_pack_unit(&x, begin, end, tl_unit_routes(call, seq, kv_head, begin, end));
}

static void tl_attend(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, const tl_task *task,
                      int32_t head, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.in.cpu = {*task, call, seq, prepared, counters, head, head / call->shape.group_heads}};
    tl_start(&x, scratch);
    x.in.factor = tl_logits_are_plain(call) ? call->softmax_scale * TL_LOG2E : 1.f;
    tl_agent_begin();
    tl_tile_loop(&x);
    tl_agent_end();
}

static void tl_merge(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, const tl_task *task,
                     int32_t head, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.in.cpu = {*task, call, seq, prepared, counters, head, head / call->shape.group_heads}};
    tl_start(&x, scratch);
    tl_merge_splits(&x);
}

extern const tl_kernel TL_SYMBOL;
const tl_kernel TL_SYMBOL = {
    .name = TL_SYMBOL_NAME,
    .isa = TL_ISA,
    .supports = tl_supports,
    .planes = TL_SUMS_PLANES,
    .max_rows = TL_ROWS * TL_ROW_BLOCKS,
    .scratch_bytes = tl_scratch_bytes,
    .packed_bytes = tl_packed_bytes,
    .survey = tl_survey,
    .pack = tl_pack,
    .attend = tl_attend,
    .merge = tl_merge,
};
