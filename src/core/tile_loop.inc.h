/* Attention of one task's rows against the key tiles they see: THE algorithm, once, for every instruction set.
 *
 * A vocabulary (cpu/simd/ISA.h) moves data and does arithmetic; everything that is decided is decided here. Before including
 * this file it defines
 *   TL_ROWS        most rows of a row block
 *   TL_ROW_BLOCKS  most row blocks of a task (1: the row block index below is the constant 0)
 *   TL_SPAN_MAX    most neighbouring key tiles in one span; TL_SPAN_MIXED: a span may mix routes
 *   TL_LAZY        how far a row's maximum may outgrow its reference before O is rescaled, log2 units
 *   TL_STATE_F16   1: m, l and O are held in f16 between tiles (ALGORITHMS A8); then TL_SPAN_MAX is 1, TL_LAZY 0
 *   TL_LAMP        1: LampAttention decides tile by tile (core/lamp_step.inc.h); then TL_SPAN_MAX is 1
 *   TL_GUESSES     1: tl_guess before each tl_scores_issue; may be left undefined: 0
 *   TL_WATCHES     1: tl_watch where references have moved; may be left undefined: 0
 *   TL_SPLITS      1: keys may be split among several tasks, whose states tl_merge_splits joins; not with LAMP
 * the types tl_ctx, tl_scores, tl_acc, and the functions
 *   tl_task_of(x)                    the task (core/task.h)
 *   tl_block_size(x)                 rows of a row block: TL_ROWS, or with LAMP the unit of its decisions, b_q
 *   tl_begin(x, acc)                 load Q in the forms the task's routes need; O = 0
 *   tl_sinks(x, rb, sink)            the logit of each row's sink in log2 units; -Inf: none
 *   tl_prefetch(x, span)             K and V of the span will be needed
 *   tl_arrive(x, span)               ... are readable from here
 *   tl_leave(x, span)                ... and may be dropped
 *   tl_guess(x, m)                   the references that the weights of the scores issued next will probably have: a backend
 *                                    may make both at once, and must know in tl_exp whether they were the right ones
 *   tl_scores_issue(x, s, span, rb)  QK by span.route
 *   tl_scores_wait(x, s, span, rb)   the products are readable
 *   tl_logits(x, s, span, rb)        scores become logits in log2 units: scale, softcap, bias
 *   tl_mask(x, s, span, rb)          -Inf where a row does not see a key; only for span.edge
 *   tl_row_max(x, s, span, rb, top)  largest logit of each row, own columns
 *   tl_row_join_max, tl_row_join_sum over the agents that share a row; nothing on a CPU
 *   tl_watch(x, rb, m)               the references of a row block, after some of them have moved
 *   tl_any(x, predicate)             over the row block: a vote where agents share it
 *   tl_exp(x, s, span, rb, ref, sum) logits become P = 2^(logit - ref), summed unrounded
 *   tl_rescale(x, acc, rb, lambda)   O *= lambda, row by row
 *   tl_values_issue(x, acc, s, span, rb), tl_values_wait(x, acc)   O += P V
 *   tl_store(x, acc, rb, m, l)       O / l and LSE = m + log l
 * and, where keys may be split,
 *   tl_store_partial(x, acc, rb, m, l)          keeps the state of the task's split
 *   tl_begin_merge(x, acc)                      O = 0
 *   tl_partial(x, rb, split, m, l)              the m and l that a split has left
 *   tl_add_partial(x, acc, rb, split, weight)   O += weight * that split's O, row by row
 *
 * The unit of work is an item: one row block against what it sees of one span. Items run span by span, so that K and V of a
 * span stay in cache (or in one stage of shared memory) while the row blocks pass. Tiles are taken from the last one that
 * is seen downwards: the tiles with partly hidden keys come first.
 */
#include "online_softmax.h"
#ifndef TL_OWN_TASK /* a GPU's vocabulary knows tl_task, tl_span and the functions on them in 32 bits (offload/) */
#include "task.h"
#endif

#ifndef TL_SPLITS
#define TL_SPLITS 0
#endif
#ifndef TL_GUESSES
#define TL_GUESSES 0
#endif
#ifndef TL_WATCHES
#define TL_WATCHES 0
#endif
#if !defined TL_ROWS || !defined TL_ROW_BLOCKS || !defined TL_SPAN_MAX || !defined TL_SPAN_MIXED ||                    \
    !defined TL_LAZY || !defined TL_STATE_F16 || !defined TL_LAMP
#error "the vocabulary must define its constants before including the tile loop"
#endif

/* Of the agents that share a row, the one that counts its sink; alone it is that one. */
#ifndef TL_COUNTS_SINK
#define TL_COUNTS_SINK(x) 1
#endif

/* A row block's running state (core/online_softmax.h). */
typedef struct {
    float m[TL_ROWS], l[TL_ROWS];
} tl_rows;

/* A number of the state, as it is kept until the next tile. */
TL_INLINE float tl_hold(float x) { return TL_STATE_F16 ? tl_round_f16(x) : x; }

typedef struct {
    tl_rows rows[TL_ROW_BLOCKS];
    tl_acc acc;
} tl_state;

typedef struct {
    tl_span span, own; /* own: what this row block sees of the span */
    int32_t rb;
} tl_item;

#define TL_RB(item) (TL_ROW_BLOCKS == 1 ? 0 : (item).rb) /* registers cannot be indexed at run time */

TL_INLINE int32_t tl_row_blocks(const tl_task *t, int32_t size) { return (tl_task_rows(t) + size - 1) / size; }

TL_INLINE int32_t tl_block_rows(const tl_task *t, int32_t rb, int32_t size)
{
    const int32_t left = tl_task_rows(t) - rb * size;
    return left < size ? left : size;
}

/* The span that ends just below key tile `end`; count 0: none left. Spans begin at multiples of TL_SPAN_MAX tiles (or at the
 * first tile), so that a row's sums are the same whatever rows are in its task. */
TL_INLINE tl_span tl_span_below(const tl_task *t, int32_t end)
{
    tl_span s = {end, 0, 0, 0};
    const int32_t low = tl_tile_low(t);
    while (s.first > low && (!s.count || s.first % TL_SPAN_MAX)) {
        const int32_t bit = tl_route(t, s.first - 1);
        if (!TL_SPAN_MIXED && s.count && bit != (s.route & 1)) break;
        s.route = s.route << 1 | bit;
        s.first--;
        s.count++;
    }
    return s;
}

/* One tile. */
TL_INLINE tl_span tl_span_at(const tl_task *t, int32_t tile)
{
    tl_span s = {tile, tile < tl_tile_end(t), 0, 0};
    if (s.count) s.route = tl_route(t, tile);
    return s;
}

/* The order of tiles. LAMP: rising, as Algorithm 1 says (ALGORITHMS B4). */
TL_INLINE tl_span tl_span_first(const tl_task *t)
{
    return TL_LAMP ? tl_span_at(t, tl_tile_low(t)) : tl_span_below(t, tl_tile_end(t));
}

TL_INLINE tl_span tl_span_after(const tl_task *t, tl_span s)
{
    return TL_LAMP ? tl_span_at(t, s.first + 1) : tl_span_below(t, s.first);
}

/* The next item with anything to do; span.count 0: none left. size: rows of a row block. */
TL_INLINE tl_item tl_item_next(const tl_task *t, int32_t size, tl_item i)
{
    while (i.span.count) {
        for (i.rb++; i.rb < tl_row_blocks(t, size); i.rb++) {
            i.own = tl_clip(t, i.span, tl_row_tokens(t, i.rb * size, tl_block_rows(t, i.rb, size)));
            if (i.own.count) return i;
        }
        i.span = tl_span_after(t, i.span);
        i.rb = -1;
    }
    return i;
}

#if TL_LAMP
#include "lamp_step.inc.h"
#else
/* One row block against one span (ALGORITHMS A1). */
TL_INLINE void tl_step(tl_ctx *x, tl_state *state, tl_scores *s, tl_span span, int32_t rb)
{
    tl_rows *row = &state->rows[rb];
    float top[TL_ROWS], ref[TL_ROWS], sum[TL_ROWS];

    tl_logits(x, s, span, rb);
    if (span.edge) tl_mask(x, s, span, rb);
    tl_row_max(x, s, span, rb, top);

    int grow = 0;
    for (int r = 0; r < TL_ROWS; r++) grow |= tl_moves(row->m[r], top[r], TL_LAZY);
    if (tl_any(x,
               grow)) { /* the vote only opens this block: each row moves by its own test, whatever its neighbours do */
        float lambda[TL_ROWS];
        tl_row_join_max(x, top);
        for (int r = 0; r < TL_ROWS; r++) {
            const int move = tl_moves(row->m[r], top[r], TL_LAZY);
            lambda[r] = tl_exp2(move ? row->m[r] - top[r] : 0.f); /* 1 at 0; no branch, which would part a warp */
            row->m[r] = move ? top[r] : row->m[r];
            row->l[r] *= lambda[r];
        }
        tl_rescale(x, &state->acc, rb, lambda);
#if TL_WATCHES
        tl_watch(x, rb, row->m);
#endif
    }

    for (int r = 0; r < TL_ROWS; r++) ref[r] = tl_reference(row->m[r]);
    tl_exp(x, s, span, rb, ref, sum);
    for (int r = 0; r < TL_ROWS; r++) row->l[r] = tl_hold(row->l[r] + sum[r]);

    tl_values_issue(x, &state->acc, s, span, rb);
    tl_values_wait(x, &state->acc);
}
#endif

TL_INLINE void tl_tile_loop(tl_ctx *x)
{
    const tl_task *t = tl_task_of(x);
    const int32_t size = tl_block_size(x), blocks = tl_row_blocks(t, size);
    tl_state state;
    tl_scores s;

    tl_begin(x, &state.acc);
    for (int32_t rb = 0; rb < blocks; rb++) { /* a sink is a key without a value that was seen first */
        tl_rows *row = &state.rows[rb];
        float sink[TL_ROWS];
        tl_sinks(x, rb, sink);
        for (int r = 0; r < TL_ROWS; r++) {
            row->m[r] = tl_hold(sink[r]);
            row->l[r] = row->m[r] == TL_NEVER || !TL_COUNTS_SINK(x)
                            ? 0.f
                            : tl_hold(tl_exp2(sink[r] - row->m[r])); /* 1, unless m was rounded */
        }
#if TL_LAMP
        tl_lamp_start(x, row);
#endif
    }
    tl_item item = {tl_span_first(t), {0, 0, 0, 0}, -1};
    if (item.span.count) tl_prefetch(x, item.span);
    item = tl_item_next(t, size, item);

    int fresh = 1; /* the item's span has not arrived */
    while (item.span.count) {
        const tl_item next = tl_item_next(t, size, item);
        const int last = /* of this span */
            TL_ROW_BLOCKS == 1 || !next.span.count || next.span.first != item.span.first;
        if (fresh) {
            tl_arrive(x, item.span);
            const tl_span then = tl_span_after(t, item.span);
            if (then.count) tl_prefetch(x, then);
        }
#if TL_GUESSES
        tl_guess(x, state.rows[TL_RB(item)].m);
#endif
        tl_scores_issue(x, &s, item.own, TL_RB(item));
        tl_scores_wait(x, &s, item.own, TL_RB(item));
        tl_step(x, &state, &s, item.own, TL_RB(item));
        if (last) tl_leave(x, item.span);
        fresh = last;
        item = next;
    }

    for (int32_t rb = 0; rb < blocks; rb++) {
        tl_row_join_sum(x, state.rows[rb].l);
#if TL_SPLITS
        if (t->splits > 1) {
            tl_store_partial(x, &state.acc, rb, state.rows[rb].m, state.rows[rb].l);
            continue;
        }
#endif
        tl_store(x, &state.acc, rb, state.rows[rb].m, state.rows[rb].l);
    }
}

#if TL_SPLITS
/* Joins the states that the splits of a task's keys have left, in the order of the splits, whoever ran them: with m the
 * largest reference, l = sum l_i 2^(m_i - m), and O alike. One that has seen nothing is neutral. */
TL_INLINE void tl_merge_splits(tl_ctx *x)
{
    const tl_task *t = tl_task_of(x);
    const int32_t size = tl_block_size(x), blocks = tl_row_blocks(t, size);
    tl_acc acc;

    tl_begin_merge(x, &acc);
    for (int32_t rb = 0; rb < blocks; rb++) {
        tl_rows all, one;
        float weight[TL_ROWS];
        for (int r = 0; r < TL_ROWS; r++) all.m[r] = TL_NEVER;
        for (int32_t split = 0; split < t->splits; split++) {
            tl_partial(x, rb, split, one.m, one.l);
            for (int r = 0; r < TL_ROWS; r++) all.m[r] = tl_max(one.m[r], all.m[r]);
        }
        for (int r = 0; r < TL_ROWS; r++) all.l[r] = 0.f;
        for (int32_t split = 0; split < t->splits; split++) {
            tl_partial(x, rb, split, one.m, one.l);
            for (int r = 0; r < TL_ROWS; r++) {
                weight[r] = tl_exp2(one.m[r] - tl_reference(all.m[r]));
                all.l[r] += weight[r] * one.l[r];
            }
            tl_add_partial(x, &acc, rb, split, weight);
        }
        tl_store(x, &acc, rb, all.m, all.l);
    }
}
#endif
