/* What the host hands the bare kernels. Everything is a scalar or a device pointer, since those travel with the launch;
 * a struct would cost a copy of its own. */
#ifndef TL_OFFLOAD_NVPTX_H
#define TL_OFFLOAD_NVPTX_H

#include <stddef.h>
#include <stdint.h>

/* Fixed on the device: rows of a task, which are one quantisation block and one routing row, and keys of a tile, which are
 * one quantisation block. TileMix's 128 and 64. */
enum { TL_DEVICE_ROWS = 128, TL_DEVICE_KEYS = 64 };

/* One f16 tensor or f32 LSE, strides in elements. */
typedef struct {
    int64_t batch, head, seq;
} tl_device_strides;

/* What quantising once makes of Q and K: codes [batch][head][tokens, rounded up to blocks][d], zeros behind the last
 * token, and one scale per block. A negative scale: the block holds a NaN or Inf and has no codes; its tiles are high. */
typedef struct {
    int8_t *q_codes, *k_codes;
    float *q_scale, *k_scale;
} tl_device_codes;

typedef struct {
    int32_t device;
    const uint16_t *q, *k, *v;
    uint16_t *o;
    float *lse; /* NULL: not wanted */
    tl_device_strides q_stride, k_stride, v_stride, o_stride, lse_stride;
    tl_device_codes codes;

    int32_t batch, heads_q, heads_k, head_dim;
    int32_t lq, lk;    /* lk: keys that exist and that causal lets some row see */
    int32_t reach;     /* row i sees the keys below min(i + reach, lk) */
    int32_t causal;    /* later rows see more: they go first */
    float logit_scale; /* softmax_scale * log2(e) */

    const uint64_t *words; /* [batch, KV head, routing row], strides below; NULL: every tile is INT8 */
    int64_t words_batch, words_head, words_row;
    uint32_t group_inverse; /* key tile n is in group n * group_inverse >> 31 */
} tl_device_call;

/* Each returns 0, or 1 where the OpenMP runtime ran the region on the host, where it does nothing. Complete on return. */
int tl_nvptx_quantise(const tl_device_call *call);
int tl_nvptx_high_d64(const tl_device_call *call);
int tl_nvptx_high_d128(const tl_device_call *call);
int tl_nvptx_routed_d64(const tl_device_call *call);
int tl_nvptx_routed_d128(const tl_device_call *call);

#endif
