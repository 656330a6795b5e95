/* What the products share that read K and V as they lie in the tensors (simd/products_rows.inc.h, simd/values_rows.inc.h). */
#ifndef TL_CPU_SIMD_IN_PLACE_H
#define TL_CPU_SIMD_IN_PLACE_H

#include "simd/operands.h"

#define TL_UNROLL_2 _Pragma("GCC unroll 2")

/* Against few keys more rows pay: there packing rounds both up. */
enum { TL_FEW_ROWS = TL_ROWS * TL_ROW_BLOCKS, TL_FEW_ROWS_OF_MANY_KEYS = 24, TL_MANY_KEYS = 65 };

/* Few enough rows meet each key that packing it does not pay, and one task has them all. */
TL_INLINE int tl_is_few_rows(const tlamp_problem *p)
{
    const int64_t group = p->num_heads_k ? p->num_heads_q / p->num_heads_k : 0;
    const int int8 = p->policy->pv == TLAMP_PV_INT8; /* V is packed, as it arrives */
    const int by_tile = !int8 || p->policy->quant_block_k <= 64;
    int64_t most = p->max_seqlen_k < TL_MANY_KEYS ? TL_FEW_ROWS : tl_min64(TL_FEW_ROWS, TL_FEW_ROWS_OF_MANY_KEYS);
    if (int8 && TL_CODES == 4) most = TL_ROWS; /* instructions for bytes: packing K, too, pays sooner */
    return p->max_seqlen_q <= most && p->max_seqlen_q * group <= most && p->max_seqlen_q <= p->policy->block_m &&
           p->policy->block_n >= 64 && by_tile;
}

/* Rows of a register tile: 8 where the accumulators for two keys, or two vectors of channels, fit beside them. */
TL_INLINE int32_t tl_few_tile(int32_t left)
{
    return TL_FEW_TILE >= 16 && left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* K and V are read once, in this order: the keys of a span, their V, the keys of the next span. While rows are multiplied,
 * those that follow so many bytes later are asked for, a few at a time: many at once would wait for each other, and the
 * products for them. Rows that lie far apart crowd a few cache sets, and have pages of their own: fewer of them. */
enum { TL_AHEAD_BYTES = 1 << 15, TL_AHEAD_REACH = 1 << 18 };

/* As rows of a, of d numbers. */
TL_INLINE int32_t tl_ahead_rows(const tl_operand *a, int32_t d)
{
    const int64_t size = tl_dtype_bytes(a->dtype), stride = a->seq * size;
    const int64_t rows = tl_min64(TL_AHEAD_BYTES / (d * size), TL_AHEAD_REACH / tl_max64(stride, 1));
    return (int32_t)tl_clamp64(rows / TL_PANEL * TL_PANEL, TL_PANEL, TL_SPAN_KEYS);
}

typedef struct {
    const unsigned char *row;
    int64_t stride; /* bytes from one row to the next */
    int32_t bytes, rows;
} tl_ahead;

/* Are the sequence's K and V too large to be near anyway? Asking takes an eighth of the time of rows that are. */
enum { TL_NEAR_BYTES = 1 << 20 };
TL_INLINE int tl_is_far(const tl_cpu *c)
{
    const tl_call *call = c->call;
    const int64_t row = call->shape.head_dim_qk * tl_dtype_bytes(call->k.dtype) +
                        call->shape.head_dim_v * tl_dtype_bytes(call->v.dtype);
    return row * c->seq->lk * call->shape.heads_k > TL_NEAR_BYTES;
}

/* Rows [first, first + n) of a head's K or V, of d numbers; where they exist. */
TL_INLINE tl_ahead tl_rows_ahead(const tl_cpu *c, const tl_operand *a, int32_t kv_head, int32_t d, int64_t first,
                                 int32_t n)
{
    const int64_t size = tl_dtype_bytes(a->dtype);
    tl_ahead h = {NULL, a->seq * size, (int32_t)(d * size), tl_least(n, c->seq->lk - first)};
    if (!tl_is_far(c)) h.rows = 0;
    if (h.rows > 0) h.row = tl_row(a, c->seq->batch, c->seq->k_start, first, kv_head);
    return h;
}

/* What follows n rows of K from `key` on. */
TL_INLINE tl_ahead tl_ahead_of_keys(const tl_operands *x, int64_t key, int32_t n)
{
    const tl_call *call = x->cpu.call;
    const int64_t to = key + tl_ahead_rows(&call->k, x->d), past = x->span + x->span_keys;
    return to < past ? tl_rows_ahead(&x->cpu, &call->k, x->cpu.kv_head, x->d, to, n)
                     : tl_rows_ahead(&x->cpu, &call->v, x->cpu.kv_head, x->dv, x->span + (to - past), n);
}

/* What follows n rows of V. */
TL_INLINE tl_ahead tl_ahead_of_values(const tl_operands *x, int64_t key, int32_t n)
{
    const tl_call *call = x->cpu.call;
    const int64_t to = key + tl_ahead_rows(&call->v, x->dv), past = x->span + x->span_keys;
    return to < past ? tl_rows_ahead(&x->cpu, &call->v, x->cpu.kv_head, x->dv, to, n)
                     : tl_rows_ahead(&x->cpu, &call->k, x->ahead_head, x->d, x->span + x->ahead + (to - past), n);
}

TL_INLINE void tl_prefetch_line(const unsigned char *p) { __builtin_prefetch(p, 0, 2); } /* to the second level */

/* Asks for the next n of them. */
TL_INLINE void tl_fetch_ahead(tl_ahead *h, int32_t n)
{
    const int32_t rows = n < h->rows ? n : h->rows, fours = h->bytes / 256 * 256;
    const unsigned char *row = h->row;
    h->rows -= rows;
    for (int32_t r = 0; r < rows; r++, row += h->stride) {
        int32_t i = 0;
        for (; i < fours; i += 256) TL_UNROLL for (int j = 0; j < 4; j++) tl_prefetch_line(row + i + 64 * j);
        for (; i < h->bytes; i += 64) tl_prefetch_line(row + i);
    }
    h->row = row;
}

#endif
