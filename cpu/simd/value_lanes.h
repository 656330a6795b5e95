/* V as vectors of 16 channels, for the products that pack pairs of keys. */
#ifndef TL_CPU_SIMD_VALUE_LANES_H
#define TL_CPU_SIMD_VALUE_LANES_H

#include "simd/operands.h"

/* Where V of 16 keys lies; NULL: zeros, as for keys beyond the last, where P is 0, and those that are left out: bit j of `out`
 * is key + j. */
TL_INLINE void tl_find_values(const tl_operands *x, int64_t key, int32_t out, tl_panel_rows *v)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    for (int32_t j = 0; j < TL_PANEL; j++) {
        const int used = key + j < seq->lk && !(out >> j & 1);
        v->row[j] = used ? tl_row(&call->v, seq->batch, seq->k_start, key + j, x->cpu.kv_head) : NULL;
        v->scale[j] = used ? tl_value_scale(call, seq, x->cpu.kv_head, key + j) : 1.f;
    }
}

/* Channels i .. i + 15 of the j-th of them. */
TL_INLINE tl_v tl_load_value_lanes(const tl_operands *x, const tl_panel_rows *v, int32_t j, int32_t i,
                                   const int32_t dtype)
{
    if (!v->row[j] || i >= x->dv) return tl_v_set(0.f);
    const tl_v a = tl_load_lanes(v->row[j], i, x->dv - i, dtype);
    return dtype == TL_I8 ? tl_v_mul(a, tl_v_set(v->scale[j])) : a;
}

#endif
