/* Routing words (ALGORITHMS A3): group j of a routing row is bit j % 64 of its word j / 64; 1 is INT8, 0 is high. */
#ifndef TL_CORE_ROUTING_H
#define TL_CORE_ROUTING_H

#include "port.h"

enum { TL_HIGH = 0, TL_INT8 = 1 };

TL_INLINE int tl_word_bit(const uint64_t *row, int64_t group) { return (int)(row[group >> 6] >> (group & 63) & 1u); }

/* Key tiles per group such that one word covers lk keys: W = block_n * ceil(max(ceil(lk / 64), block_n) / block_n)
 * (S1 App. B), g = W / block_n. */
TL_INLINE int32_t tl_auto_group(int64_t lk, int32_t block_n)
{
    return (int32_t)tl_ceil_div(tl_max64(tl_ceil_div(lk, 64), block_n), block_n);
}

TL_INLINE int64_t tl_num_groups(int64_t lk, int32_t block_n, int32_t group)
{
    return tl_ceil_div(lk, (int64_t)block_n * group);
}

#endif
