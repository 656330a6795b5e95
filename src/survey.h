/* What a sequence's rows and keys see beyond geometry, and what must be known of all keys of a sequence before they are
 * quantised: which of them some row sees, and their mean. A key or row that nothing sees must not reach a scale that others
 * share. Freestanding: the host and devices compile it alike. */
#ifndef TL_SURVEY_H
#define TL_SURVEY_H

#include "core/quantize.h"
#include "kernel.h"

TL_SHARED int tl_key_is_hidden(const tl_call *call, const tl_sequence *seq, int32_t head, int64_t row, int64_t key)
{
    const tl_score_operand *mask = &call->bool_mask, *bias = &call->bias;
    if (mask->data && !mask->data[tl_score_offset(mask, seq->batch, head, row, key)]) return 1;
    if (!bias->data) return 0;
    return tl_load(bias->data, tl_score_offset(bias, seq->batch, head, row, key), bias->dtype) == -TL_INF;
}

TL_SHARED int tl_row_sees_a_key(const tl_call *call, const tl_sequence *seq, int32_t head, int64_t row)
{
    const int64_t begin = tl_key_begin(&seq->mask, row), end = tl_key_end(&seq->mask, row);
    if (!call->bool_mask.data && !call->bias.data) return begin < end;
    for (int64_t key = begin; key < end; key++)
        if (!tl_key_is_hidden(call, seq, head, row, key)) return 1;
    return 0;
}

/* seen[key - begin] for keys [begin, end): some row of the KV head's query heads sees it. Stops when all are found. */
TL_SHARED void tl_find_seen(const tl_call *call, const tl_sequence *seq, int32_t kv_head, int64_t begin, int64_t end,
                            unsigned char *seen)
{
    int64_t missing = end - begin;
    for (int64_t key = begin; key < end; key++) seen[key - begin] = 0;
    for (int32_t i = 0; i < call->shape.group_heads; i++) {
        const int32_t head = kv_head * call->shape.group_heads + i;
        for (int64_t row = 0; row < seq->lq && missing; row++) {
            const int64_t low = tl_max64(begin, tl_key_begin(&seq->mask, row));
            const int64_t high = tl_min64(end, tl_key_end(&seq->mask, row));
            for (int64_t key = low; key < high; key++) {
                if (seen[key - begin] || tl_key_is_hidden(call, seq, head, row, key)) continue;
                seen[key - begin] = 1;
                missing--;
            }
        }
    }
}

/* By any row. */
TL_SHARED int tl_key_is_seen(const tl_sequence *seq, const tl_prepared *prepared, int64_t key)
{
    if (prepared->seen) return prepared->seen[key];
    return seq->lq > 0 && key >= tl_key_begin(&seq->mask, 0) && key < tl_key_end(&seq->mask, seq->lq - 1);
}

/* Keys of a unit. */
typedef struct {
    int64_t begin, end;
} tl_unit_keys;

/* Those of unit `unit` of one KV head; fills seen, where the prepared area has it. */
TL_SHARED tl_unit_keys tl_survey_seen(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared,
                                      int32_t kv_head, int64_t unit)
{
    const int64_t begin = unit * call->shape.unit_keys, end = tl_min64(begin + call->shape.unit_keys, seq->lk);
    if (prepared->seen) tl_find_seen(call, seq, kv_head, begin, end, prepared->seen + begin);
    return (tl_unit_keys){begin, end};
}

/* The same, and fills unit_sums and unit_counts. Kernels may have vectors for it (tl_kernel.survey), with these bits: a channel
 * is summed in the order of keys. scratch: one row of head_dim_qk floats. */
TL_SHARED void tl_survey_unit(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                              int64_t unit, float *scratch)
{
    const int32_t d = call->shape.head_dim_qk;
    const tl_unit_keys keys = tl_survey_seen(call, seq, prepared, kv_head, unit);
    if (!prepared->mean) return;
    float *sum = prepared->unit_sums + unit * d;
    int64_t count = 0;
    for (int32_t c = 0; c < d; c++) sum[c] = 0.f;
    for (int64_t key = keys.begin; key < keys.end; key++) {
        if (!tl_key_is_seen(seq, prepared, key)) continue;
        tl_load_row(scratch, tl_row(&call->k, seq->batch, seq->k_start, key, kv_head), d, call->k.dtype);
        if (!tl_is_finite(tl_row_amax(scratch, d))) continue;
        for (int32_t c = 0; c < d; c++) sum[c] += scratch[c];
        count++;
    }
    prepared->unit_counts[unit] = count;
}

/* After all units: the mean. */
TL_SHARED void tl_survey_mean(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared)
{
    const int32_t d = call->shape.head_dim_qk;
    const int64_t units = tl_ceil_div(seq->lk, call->shape.unit_keys);
    int64_t count = 0;
    for (int32_t c = 0; c < d; c++) prepared->mean[c] = 0.f;
    for (int64_t unit = 0; unit < units; unit++) {
        for (int32_t c = 0; c < d; c++) prepared->mean[c] += prepared->unit_sums[unit * d + c];
        count += prepared->unit_counts[unit];
    }
    for (int32_t c = 0; c < d && count; c++) prepared->mean[c] /= (float)count;
    for (int32_t c = 0; c < d; c++) /* sums of huge keys overflow: any constant will do (ALGORITHMS A2) */
        if (!tl_is_finite(prepared->mean[c])) prepared->mean[c] = 0.f;
}

#endif
