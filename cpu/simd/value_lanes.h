/* V as vectors of 16 channels, for the products that pack pairs of keys. */
#ifndef TL_CPU_SIMD_VALUE_LANES_H
#define TL_CPU_SIMD_VALUE_LANES_H

#include "simd/operands.h"

/* Channels i .. i + 15 of V of one key; 0 beyond the last key, where P is 0, and of a key that is left out. */
TL_INLINE tl_v tl_load_value_lanes(const tl_operands *x, int64_t key, int32_t i, int32_t out, const int32_t dtype)
{
    const tl_call *call = x->cpu.call;
    const tl_sequence *seq = x->cpu.seq;
    if (key >= seq->lk || i >= x->dv || out) return tl_v_set(0.f);
    const tl_v a = tl_load_lanes(tl_row(&call->v, seq->batch, seq->k_start, key, x->cpu.kv_head), i, x->dv - i, dtype);
    return dtype == TL_I8 ? tl_v_mul(a, tl_v_set(tl_value_scale(call, seq, x->cpu.kv_head, key))) : a;
}

#endif
