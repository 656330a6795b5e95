/* Where elements are. Offsets are int64_t, in elements: 32 bits wrap at strides of fused QKV views (CASES B15). */
#ifndef TL_CORE_INDEX_H
#define TL_CORE_INDEX_H

#include "port.h"

enum { TL_F32 = 0, TL_F16 = 1, TL_BF16 = 2, TL_I8 = 3 }; /* as tlamp_dtype */

TL_INLINE int64_t tl_dtype_bytes(int32_t dtype) { return dtype == TL_F32 ? 4 : dtype == TL_I8 ? 1 : 2; }

/* One operand [batch, seq, head, dim], dim contiguous. INT8 codes have a scale per block of tokens and head. */
typedef struct {
    const unsigned char *data;
    int64_t batch, seq, head;
    int32_t dtype;
    int32_t heads;       /* of the scales */
    const float *scale;  /* INT8: [blocks of all sequences, one after another][heads]; otherwise NULL */
    int64_t scale_block; /* tokens per block */
} tl_operand;

/* The scale of a token's codes; blocks: those of earlier sequences. 1 where the operand holds numbers, not codes. */
TL_INLINE float tl_scale_of(const tl_operand *a, int64_t blocks, int64_t token, int64_t head)
{
    return a->scale ? a->scale[(blocks + token / a->scale_block) * a->heads + head] : 1.f;
}

/* The row of `token` (counted from the sequence's first row at `start`) and `head`. */
TL_INLINE const unsigned char *tl_row(const tl_operand *a, int64_t batch, int64_t start, int64_t token, int64_t head)
{
    return a->data + (batch * a->batch + (start + token) * a->seq + head * a->head) * tl_dtype_bytes(a->dtype);
}

/* The same of an output. */
typedef struct {
    unsigned char *data;
    int64_t batch, seq, head;
    int32_t dtype;
} tl_output;

TL_INLINE unsigned char *tl_out_row(const tl_output *a, int64_t batch, int64_t start, int64_t token, int64_t head)
{
    return a->data + (batch * a->batch + (start + token) * a->seq + head * a->head) * tl_dtype_bytes(a->dtype);
}

TL_INLINE float tl_load(const unsigned char *row, int64_t i, int32_t dtype)
{
    if (dtype == TL_F32) return ((const float *)(const void *)row)[i];
    if (dtype == TL_I8) return (float)((const int8_t *)row)[i];
    const uint16_t h = ((const uint16_t *)(const void *)row)[i];
    return dtype == TL_F16 ? tl_from_f16(h) : tl_from_bf16(h);
}

TL_INLINE void tl_load_row(float *to, const unsigned char *row, int64_t n, int32_t dtype)
{
    switch (dtype) {
    case TL_F32:
        for (int64_t i = 0; i < n; i++) to[i] = ((const float *)(const void *)row)[i];
        break;
    case TL_F16:
        for (int64_t i = 0; i < n; i++) to[i] = tl_from_f16(((const uint16_t *)(const void *)row)[i]);
        break;
    case TL_BF16:
        for (int64_t i = 0; i < n; i++) to[i] = tl_from_bf16(((const uint16_t *)(const void *)row)[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++) to[i] = (float)((const int8_t *)row)[i];
    }
}

TL_INLINE void tl_store_element(unsigned char *row, int64_t i, int32_t dtype, float x)
{
    if (dtype == TL_F32)
        ((float *)(void *)row)[i] = x;
    else
        ((uint16_t *)(void *)row)[i] = dtype == TL_F16 ? tl_to_f16(x) : tl_to_bf16(x);
}

/* One tensor of scores [batch, head, q, k] whose strides may be 0. */
typedef struct {
    const unsigned char *data; /* NULL: absent */
    int64_t batch, head, q, k;
    int32_t dtype;
} tl_score_operand;

TL_INLINE int64_t tl_score_offset(const tl_score_operand *a, int64_t batch, int64_t head, int64_t q, int64_t k)
{
    return batch * a->batch + head * a->head + q * a->q + k * a->k;
}

#endif
