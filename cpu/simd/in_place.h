/* What the products share that read K and V as they lie in the tensors (simd/products_rows.inc.h, simd/values_rows.inc.h). */
#ifndef TL_CPU_SIMD_IN_PLACE_H
#define TL_CPU_SIMD_IN_PLACE_H

#include "simd/operands.h"

#define TL_UNROLL_2 _Pragma("GCC unroll 2")

#define TL_FEW_ROWS (TL_ROWS * TL_ROW_BLOCKS)

/* Few enough rows meet each key that packing it does not pay, and one task has them all. */
TL_INLINE int tl_is_few_rows(const tlamp_problem *p)
{
    const int64_t group = p->num_heads_k ? p->num_heads_q / p->num_heads_k : 0;
    return p->max_seqlen_q <= TL_FEW_ROWS && p->max_seqlen_q * group <= TL_FEW_ROWS &&
           p->max_seqlen_q <= p->policy->block_m && p->policy->block_n >= 64;
}

/* Rows of a register tile: 8 where the accumulators for two keys, or two vectors of channels, fit beside them. */
TL_INLINE int32_t tl_few_tile(int32_t left)
{
    return TL_FEW_TILE >= 16 && left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

TL_INLINE void tl_prefetch_line(const unsigned char *p) { __builtin_prefetch(p, 0, 3); } /* to the first level */

/* Rows [first, first + n) of K or V, of d numbers, will be needed soon. Where rows follow each other without a gap, only
 * those that begin a stream are asked for (jump): processors see the rest coming, and asking again was slower on most shapes
 * measured. Rows that lie apart gained on most. */
TL_INLINE void tl_prefetch_rows(const tl_cpu *c, const tl_operand *a, int32_t d, int64_t first, int32_t n, int jump)
{
    const int64_t size = tl_dtype_bytes(a->dtype), bytes = d * size, stride = a->seq * size;
    const int32_t rows = tl_least(n, c->seq->lk - first);
    if (rows <= 0 || (stride == bytes && !jump)) return;
    const unsigned char *p = tl_row(a, c->seq->batch, c->seq->k_start, first, c->kv_head);
    for (int32_t i = 0; i < rows; i++, p += stride)
        TL_UNROLL_4 for (int64_t j = 0; j < bytes; j += 64) tl_prefetch_line(p + j);
}

#endif
