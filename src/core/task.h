/* The rows one agent works on, and the geometry of the tiles they meet: shared text of every vocabulary. */
#ifndef TL_CORE_TASK_H
#define TL_CORE_TASK_H

#include "mask.h"
#include "routing.h"

/* What a kernel counts of LampAttention: sub-blocks, and tiles by how many of theirs were computed high. */
enum {
    TL_COUNT_SUB_BLOCKS,
    TL_COUNT_RECOMPUTED,
    TL_COUNT_EXECUTED,
    TL_COUNT_FORCED,
    TL_COUNT_STAGE_ONE,
    TL_COUNT_STAGE_TWO,
    TL_COUNT_SATURATED, /* logits at the end of their format */
    TL_COUNT_HISTOGRAM, /* 0 .. 32 */
    TL_COUNTS = TL_COUNT_HISTOGRAM + 33
};

/* Rows are stacked head by head: row r is query token token0 + r % tokens of head r / tokens. All of them share one KV
 * head, one routing row, and so one pass over K and V. */
typedef struct {
    tl_mask_geometry mask;
    int64_t token0;
    int32_t tokens, heads;
    int32_t tile_keys;             /* keys of a key tile: block_n, at most 64 */
    int32_t route_all;             /* the route of every tile where words is NULL */
    const uint64_t *words;         /* the routing row's words */
    int64_t group_keys;            /* keys of a group: g * block_n */
    int32_t scattered;             /* single keys may be hidden (boolean mask): every span needs tl_mask */
    int32_t tile_begin, tile_past; /* this task's tiles: one split of the keys, or 0 and INT32_MAX */
    int32_t split, splits;         /* which of how many */
} tl_task;

/* Neighbouring key tiles [first, first + count). Bit i of route is the route of tile first + i. edge: some row does not see
 * all of their keys. */
typedef struct {
    int32_t first, count, route, edge;
} tl_span;

TL_INLINE int32_t tl_task_rows(const tl_task *t) { return t->tokens * t->heads; }

TL_INLINE int32_t tl_route(const tl_task *t, int32_t tile)
{
    if (!t->words) return t->route_all;
    return tl_word_bit(t->words, (int64_t)tile * t->tile_keys / t->group_keys);
}

/* The first tile of the task that some row sees, and the one after the last; not above it: none. */
TL_INLINE int32_t tl_tile_low(const tl_task *t)
{
    return (int32_t)tl_max64(tl_key_begin(&t->mask, t->token0) / t->tile_keys, t->tile_begin);
}
TL_INLINE int32_t tl_tile_end(const tl_task *t)
{
    return (int32_t)tl_min64(tl_ceil_div(tl_key_end(&t->mask, t->token0 + t->tokens - 1), t->tile_keys), t->tile_past);
}

/* The tokens of rows [row, row + n): lowest and highest. Rows that span two heads take all tokens. */
typedef struct {
    int64_t first, last;
} tl_tokens;

TL_INLINE tl_tokens tl_row_tokens(const tl_task *t, int32_t row, int32_t n)
{
    const int32_t a = row % t->tokens;
    tl_tokens k = {t->token0, t->token0 + t->tokens - 1};
    if (a + n <= t->tokens) {
        k.first = t->token0 + a;
        k.last = k.first + n - 1;
    }
    return k;
}

/* What a row block of those tokens sees of a span. Both key ends are monotone in the token, so the last token's end and the
 * first token's begin bound what any of them sees. */
TL_INLINE tl_span tl_clip(const tl_task *t, tl_span s, tl_tokens k)
{
    const int64_t low = (int64_t)s.first * t->tile_keys, high = low + (int64_t)s.count * t->tile_keys;
    const int64_t begin = tl_max64(low, tl_key_begin(&t->mask, k.first));
    const int64_t end = tl_min64(high, tl_key_end(&t->mask, k.last));
    if (begin >= end) {
        s.count = 0;
        return s;
    }
    const int32_t first = (int32_t)(begin / t->tile_keys), past = (int32_t)tl_ceil_div(end, t->tile_keys);
    s.route >>= first - s.first;
    s.first = first;
    s.count = past - first;
    s.edge = t->scattered || (int64_t)past * t->tile_keys > tl_key_end(&t->mask, k.first) ||
             (int64_t)first * t->tile_keys < tl_key_begin(&t->mask, k.last);
    return s;
}

#endif
