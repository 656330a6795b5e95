/* What every CPU vocabulary shares: rows and keys one by one, where speed does not matter or plain C is as fast. The hot
 * loops (products, exponentials, packing) are the vocabulary's own. */
#ifndef TL_CPU_SIMD_ROWS_H
#define TL_CPU_SIMD_ROWS_H

#include <string.h>

#include "core/online_softmax.h"
#include "core/quantize.h"
#include "core/task.h"
#include "kernel.h"
#include "survey.h"
#include "workspace.h"

/* The task of one call to attend: the part of a tl_ctx that no vocabulary needs to define. */
typedef struct {
    tl_task task;
    const tl_call *call;
    const tl_sequence *seq;
    const tl_prepared *prepared;
    tl_worker_counters *counters;
    int32_t head, kv_head; /* first query head; its KV head */
} tl_cpu;

TL_INLINE int32_t tl_head_of(const tl_cpu *c, int32_t row) { return c->head + row / c->task.tokens; }
TL_INLINE int64_t tl_token_of(const tl_cpu *c, int32_t row) { return c->task.token0 + row % c->task.tokens; }

/* ---- operands: as numbers, scale * code where the caller quantised */

TL_INLINE void tl_scale_row(float *x, int64_t n, float scale)
{
    for (int64_t i = 0; i < n && scale != 1.f; i++) x[i] *= scale;
}

TL_INLINE float tl_query_scale(const tl_cpu *c, int32_t head, int64_t token)
{
    return tl_scale_of(&c->call->q, c->seq->q_blocks, token, head);
}

TL_INLINE float tl_key_scale(const tl_call *call, const tl_sequence *seq, int32_t kv_head, int64_t key)
{
    return tl_scale_of(&call->k, seq->k_blocks, key, kv_head);
}

TL_INLINE float tl_value_scale(const tl_call *call, const tl_sequence *seq, int32_t kv_head, int64_t key)
{
    return tl_scale_of(&call->v, seq->k_blocks, key, kv_head);
}

TL_INLINE void tl_load_query(float *to, const tl_cpu *c, int32_t head, int64_t token)
{
    const tl_call *call = c->call;
    tl_load_row(to, tl_row(&call->q, c->seq->batch, c->seq->q_start, token, head), call->shape.head_dim_qk,
                call->q.dtype);
    tl_scale_row(to, call->shape.head_dim_qk, tl_query_scale(c, head, token));
}

TL_INLINE void tl_load_key(float *to, const tl_call *call, const tl_sequence *seq, int32_t kv_head, int64_t key)
{
    tl_load_row(to, tl_row(&call->k, seq->batch, seq->k_start, key, kv_head), call->shape.head_dim_qk, call->k.dtype);
    tl_scale_row(to, call->shape.head_dim_qk, tl_key_scale(call, seq, kv_head, key));
}

TL_INLINE void tl_load_value(float *to, const tl_call *call, const tl_sequence *seq, int32_t kv_head, int64_t key)
{
    tl_load_row(to, tl_row(&call->v, seq->batch, seq->k_start, key, kv_head), call->shape.head_dim_v, call->v.dtype);
    tl_scale_row(to, call->shape.head_dim_v, tl_value_scale(call, seq, kv_head, key));
}

/* A query or key as it is quantised (ALGORITHMS A2, E): a key without the mean under smooth_k, then both rotated under
 * hadamard. So q . k is the product of what is quantised plus q . mean, with q as given. */
TL_INLINE void tl_load_coded_query(float *to, const tl_cpu *c, int32_t head, int64_t token)
{
    tl_load_query(to, c, head, token);
    if (c->call->policy->hadamard) tl_hadamard(to, c->call->shape.head_dim_qk);
}

TL_INLINE void tl_load_coded_key(float *to, const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared,
                                 int32_t kv_head, int64_t key)
{
    tl_load_key(to, call, seq, kv_head, key);
    if (prepared->mean)
        for (int32_t i = 0; i < call->shape.head_dim_qk; i++) to[i] -= prepared->mean[i];
    if (call->policy->hadamard) tl_hadamard(to, call->shape.head_dim_qk);
}

/* q . k in f32 straight from the tensors: for pairs whose query or key was left out of INT8. Element by element as the high
 * path has it: a scale that is Inf or NaN makes Inf and NaN of the same elements. */
TL_SHARED float tl_dot_flagged(const tl_cpu *c, const float *q, int64_t key)
{
    const tl_call *call = c->call;
    const unsigned char *k = tl_row(&call->k, c->seq->batch, c->seq->k_start, key, c->kv_head);
    const float scale = tl_key_scale(call, c->seq, c->kv_head, key);
    float sum = 0.f;
    for (int32_t i = 0; i < call->shape.head_dim_qk; i++) sum += q[i] * (tl_load(k, i, call->k.dtype) * scale);
    return sum;
}

/* ---- quantising */

TL_INLINE tl_quant tl_policy_quant(const tlamp_policy *policy, float amax)
{
    return policy->scales == TLAMP_SCALES_BLOCK_F16 ? tl_quant_make_f16(amax) : tl_quant_make(amax);
}

/* The scale a kernel multiplies scores with: 1 for a zero block, whose codes are 0, since -Inf * 0 is NaN. */
TL_INLINE float tl_kernel_scale(tl_quant z) { return z.scale != 0.f ? z.scale : 1.f; }

/* What the integer products of a query and a key count, in units of the product of their scales: X3 sums 254 c1 d1 + c1 d2 +
 * c2 d1 (ALGORITHMS E). */
TL_INLINE float tl_product_unit(const tl_shape *shape) { return shape->code_planes == 2 ? 1.f / TL_PLANE_STEPS : 1.f; }

/* The quantiser that gives back the caller's codes: round(scale * code / scale) is code. A scale below 2^-126, whose inverse
 * may overflow, makes a zero block, as the quantiser's own do; the tokens of one that is Inf or NaN are flagged. */
TL_INLINE tl_quant tl_given_quant(float scale)
{
    const int usable = tl_is_finite(scale) && tl_abs(scale) >= 0x1p-126f;
    tl_quant z = {usable ? scale : 0.f, usable ? 1.f / scale : 0.f};
    return z;
}

/* Quantiser of every key of one unit, keys [begin, end) of which may lie beyond lk: z[key - begin], and flagged[key - begin]
 * for keys that hold a NaN or Inf. Keys that no row sees leave no trace. row: scratch of head_dim_qk floats. */
TL_SHARED void tl_unit_quants(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                              int64_t begin, int64_t end, tl_quant *z, unsigned char *flagged, float *row,
                              tl_worker_counters *counters)
{
    const int given = call->k.scale != NULL, shared = !given && call->policy->scales != TLAMP_SCALES_TOKEN;
    float block = 0.f;
    for (int64_t key = begin; key < end; key++) {
        const int seen = key < seq->lk && tl_key_is_seen(seq, prepared, key);
        float amax = 0.f;
        if (seen) {
            tl_load_coded_key(row, call, seq, prepared, kv_head, key);
            amax = tl_row_amax(row, call->shape.head_dim_qk);
        }
        flagged[key - begin] = !tl_is_finite(amax);
        counters->nonfinite_tokens += flagged[key - begin];
        if (flagged[key - begin]) amax = 0.f;
        z[key - begin] = given ? tl_given_quant(seen ? tl_key_scale(call, seq, kv_head, key) : 0.f)
                               : tl_policy_quant(call->policy, amax);
        block = tl_max(amax, block);
    }
    if (shared)
        for (int64_t key = begin; key < end; key++) z[key - begin] = tl_policy_quant(call->policy, block);
}

/* The largest magnitude of query tokens [first, last], over rows that see a key and hold no NaN or Inf. */
TL_SHARED float tl_query_amax(const tl_cpu *c, int32_t head, int64_t first, int64_t last, float *row)
{
    float top = 0.f;
    for (int64_t token = first; token <= last; token++) {
        if (!tl_row_sees_a_key(c->call, c->seq, head, token)) continue;
        tl_load_coded_query(row, c, head, token);
        const float amax = tl_row_amax(row, c->call->shape.head_dim_qk);
        if (tl_is_finite(amax)) top = tl_max(amax, top);
    }
    return top;
}

/* Rows of the task that share a quantiser with row r, from r on. One scale per quant_block_q tokens of a head, counted in the
 * sequence: a block may begin before the task and end after it. */
typedef struct {
    int32_t head, rows;
    int64_t first, last; /* tokens of the block */
    int given;           /* the caller's */
} tl_query_block;

TL_INLINE tl_query_block tl_query_block_at(const tl_cpu *c, int32_t r)
{
    const int64_t block = c->call->policy->scales == TLAMP_SCALES_TOKEN ? 1 : c->call->policy->quant_block_q;
    const int64_t token = tl_token_of(c, r), first = token / block * block;
    const int64_t last = tl_min64(first + block, c->seq->lq) - 1;
    const int64_t mine = tl_min64(last, c->task.token0 + c->task.tokens - 1) - token + 1;
    return (tl_query_block){tl_head_of(c, r), (int32_t)mine, first, last, c->call->q.scale != NULL};
}

/* amax: the largest magnitude of the block's tokens; it does not matter where the scale is the caller's. */
TL_INLINE tl_quant tl_query_block_quant(const tl_cpu *c, const tl_query_block *b, int32_t r, float amax)
{
    return b->given ? tl_given_quant(tl_query_scale(c, b->head, tl_token_of(c, r)))
                    : tl_policy_quant(c->call->policy, amax);
}

/* Quantiser of every row of the task. row: scratch of head_dim_qk floats. */
TL_SHARED void tl_query_quants(const tl_cpu *c, tl_quant *z, float *row)
{
    for (int32_t r = 0; r < tl_task_rows(&c->task);) {
        const tl_query_block b = tl_query_block_at(c, r);
        const float amax = b.given ? 0.f : tl_query_amax(c, b.head, b.first, b.last, row);
        const tl_quant q = tl_query_block_quant(c, &b, r, amax);
        for (int32_t i = 0; i < b.rows; i++) z[r++] = q;
    }
}

/* Quantiser of each channel of keys [begin, end) of V (ALGORITHMS C2's u8 P pairs with it): over the keys that some row sees.
 * Returns 1 if such a key holds a NaN or Inf: then P V of the tile is computed in f32. row: scratch of head_dim_v floats. */
TL_SHARED int tl_value_quants(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                              int64_t begin, int64_t end, tl_quant *z, float *row)
{
    const int32_t dv = call->shape.head_dim_v;
    const int given = call->v.scale != NULL && call->policy->scales != TLAMP_SCALES_TOKEN;
    int nonfinite = 0;
    for (int32_t i = 0; i < dv; i++) z[i].scale = 0.f; /* the maximum, until it is known */
    for (int64_t key = begin; key < tl_min64(end, seq->lk); key++) {
        if (!tl_key_is_seen(seq, prepared, key)) continue;
        tl_load_value(row, call, seq, kv_head, key);
        nonfinite |= !tl_is_finite(tl_row_amax(row, dv));
        for (int32_t i = 0; i < dv; i++) z[i].scale = tl_max(tl_abs(row[i]), z[i].scale);
    }
    for (int32_t i = 0; i < dv && !nonfinite; i++)
        z[i] = given ? tl_given_quant(tl_value_scale(call, seq, kv_head, begin)) : tl_quant_make(z[i].scale);
    return nonfinite;
}

/* Does any tile that the task meets take this route? Then Q is needed in its form. */
TL_INLINE int tl_meets(const tl_task *t, int32_t route)
{
    for (int32_t tile = tl_tile_low(t), end = tl_tile_end(t); tile < end; tile++)
        if (tl_route(t, tile) == route) return 1;
    return 0;
}

/* Of the tasks that split a row's keys, the first that meets the route counts what is counted once per row. */
TL_INLINE int tl_counts_rows(const tl_task *t, int32_t route)
{
    int64_t tile = tl_key_begin(&t->mask, t->token0) / t->tile_keys;
    for (; tile < t->tile_begin; tile++)
        if (tl_route(t, (int32_t)tile) == route) return 0;
    return 1;
}

/* ---- score epilogue, one row */

/* Nothing but a factor stands between q . k and the logit. */
TL_INLINE int tl_logits_are_plain(const tl_call *call)
{
    return !(call->softcap > 0.f) && !call->alibi_slopes && !call->bias.data;
}

/* Scores q . k of keys [key, key + cols) become logits in log2 units. Order: scale, softcap, ALiBi, bias, as models that cap
 * have it: the cap limits q . k alone, so that no position and no bias is flattened by it.
 * A bias of -Inf hides the key: tl_mask_row. */
TL_SHARED void tl_logits_row(const tl_cpu *c, float *s, int32_t row, int64_t key, int64_t cols)
{
    const tl_call *call = c->call;
    const tl_sequence *seq = c->seq;
    const int32_t head = tl_head_of(c, row);
    const int64_t token = tl_token_of(c, row), diagonal = token + seq->lk - seq->lq;
    const float slope = call->alibi_slopes ? call->alibi_slopes[seq->batch * call->alibi_batch_stride + head] : 0.f;
    for (int64_t i = 0, n = tl_min64(cols, seq->lk - key); i < n; i++) {
        float y = s[i] * call->softmax_scale;
        if (call->softcap > 0.f) y = call->softcap * tl_tanh(y / call->softcap);
        if (call->alibi_slopes) {
            const int64_t distance = key + i - diagonal;
            y -= slope * (float)(distance < 0 ? -distance : distance);
        }
        if (call->bias.data)
            y += tl_load(call->bias.data, tl_score_offset(&call->bias, seq->batch, head, token, key + i),
                         call->bias.dtype);
        s[i] = tl_log2_logit(y);
    }
}

/* -Inf where the row does not see the key. */
TL_SHARED void tl_mask_row(const tl_cpu *c, float *s, int32_t row, int64_t key, int64_t cols)
{
    const int64_t token = tl_token_of(c, row);
    const int64_t begin = tl_clamp64(tl_key_begin(&c->task.mask, token) - key, 0, cols);
    const int64_t end = tl_clamp64(tl_key_end(&c->task.mask, token) - key, begin, cols);
    for (int64_t i = 0; i < begin; i++) s[i] = -TL_INF;
    for (int64_t i = end; i < cols; i++) s[i] = -TL_INF;
    if (!c->task.scattered) return;
    for (int64_t i = begin; i < end; i++)
        if (tl_key_is_hidden(c->call, c->seq, tl_head_of(c, row), token, key + i)) s[i] = -TL_INF;
}

TL_INLINE int tl_row_sees(const tl_cpu *c, int32_t row, int64_t key)
{
    const int64_t token = tl_token_of(c, row);
    if (key < tl_key_begin(&c->task.mask, token) || key >= tl_key_end(&c->task.mask, token)) return 0;
    return !c->task.scattered || !tl_key_is_hidden(c->call, c->seq, tl_head_of(c, row), token, key);
}

/* Does every row of the task see all keys of [begin, end)? */
TL_INLINE int tl_all_see(const tl_task *t, int64_t begin, int64_t end)
{
    const int64_t last = t->token0 + t->tokens - 1; /* both key ends are monotone in the token */
    return t->tokens > 0 && !t->scattered && begin >= tl_key_begin(&t->mask, last) &&
           end <= tl_key_end(&t->mask, t->token0);
}

/* The logit of the row's sink in log2 units; -Inf: none. */
TL_INLINE float tl_sink_of(const tl_cpu *c, int32_t row)
{
    const int counts = c->call->sinks && c->task.split == 0; /* once, however many splits there are */
    return counts ? tl_log2_logit(c->call->sinks[tl_head_of(c, row)]) : TL_NEVER;
}

/* ---- splits of the keys */

/* Where a split's state of the row is kept: [row][query head][split]. */
TL_INLINE int64_t tl_partial_of(const tl_cpu *c, int32_t row, int32_t split)
{
    const int64_t at = c->seq->row_begin + tl_token_of(c, row);
    return (at * c->call->shape.heads_q + tl_head_of(c, row)) * c->task.splits + split;
}

TL_INLINE float *tl_partial_output(const tl_cpu *c, int32_t row, int32_t split)
{
    return c->call->partials.o + tl_partial_of(c, row, split) * c->call->shape.head_dim_v;
}

TL_INLINE void tl_keep_partial(const tl_cpu *c, int32_t row, const float *o, float m, float l)
{
    const int64_t at = tl_partial_of(c, row, c->task.split);
    memcpy(tl_partial_output(c, row, c->task.split), o, sizeof *o * (size_t)c->call->shape.head_dim_v);
    c->call->partials.m[at] = m;
    c->call->partials.l[at] = l;
}

/* The state of rows [first, first + n) that a split has left; m and l of further rows of a block of `size`: of none. */
TL_INLINE void tl_load_partials(const tl_cpu *c, int32_t first, int32_t n, int32_t size, int32_t split, float *m,
                                float *l)
{
    for (int32_t r = 0; r < size; r++) {
        const int64_t at = r < n ? tl_partial_of(c, first + r, split) : 0;
        m[r] = r < n ? c->call->partials.m[at] : TL_NEVER;
        l[r] = r < n ? c->call->partials.l[at] : 0.f;
    }
}

/* ---- end, one row */

/* O = o / l, and the row's LSE. */
TL_SHARED void tl_store_output(const tl_cpu *c, int32_t row, const float *o, float l, float lse)
{
    const tl_call *call = c->call;
    const int32_t head = tl_head_of(c, row);
    const int64_t token = tl_token_of(c, row);
    unsigned char *to = tl_out_row(&call->o, c->seq->batch, c->seq->q_start, token, head);
    for (int32_t i = 0; i < call->shape.head_dim_v; i++)
        tl_store_element(to, i, call->o.dtype, l == 0.f ? 0.f : o[i] / l);
    if (!call->lse) return;
    const tlamp_lse_strides *s = &call->lse_stride;
    call->lse[c->seq->batch * s->batch + head * s->head + (c->seq->q_start + token) * s->seq] = l == 0.f ? -TL_INF
                                                                                                         : lse;
}

/* m: the reference in log2 units. */
TL_INLINE void tl_store_row(const tl_cpu *c, int32_t row, const float *o, float m, float l)
{
    tl_store_output(c, row, o, l, (m + tl_log2(l)) * TL_LN2);
}

#endif
