/* Q and K to INT8 codes and block scales (ALGORITHMS A2), once per call, on the device: one read, one write. Codes and
 * scales are those of the CPU, except that a block with a NaN or Inf gets none: its tiles are computed high, which is
 * closer. */
#include "nvptx.h"

enum { THREADS = 256, WARPS = THREADS / 32, MOST_CHUNKS = TL_DEVICE_ROWS * 128 / 8 / THREADS };

static volatile int ran_on_host;

/* One operand: heads of `tokens` tokens in blocks of `rows`. Tokens before `first` see no key and count as zeros. */
typedef struct {
    const uint16_t *x;
    int64_t batch_stride, head_stride, seq_stride;
    int32_t heads, tokens, first, rows;
    int8_t *codes;
    float *scale;
} quantise_operand;

#ifdef __NVPTX__
#pragma omp begin declare target device_type(nohost)
#include "core/quantize.h"
#include "ptx.h"

typedef uint32_t chunk __attribute__((vector_size(16))); /* 8 f16 */

TL_INLINE uint32_t magnitudes(uint32_t pair) { return pair & 0x7fff7fffu; }

/* Largest magnitude in f32 bits, which order like magnitudes, NaN on top. */
TL_INLINE uint32_t block_amax(uint32_t pair)
{
    static TL_SHARED_SPACE uint32_t of_warp[WARPS];
    pair = tl_max_f16_pair(pair, pair >> 16 | pair << 16);
    uint32_t top = tl_bits(tl_low_f16(pair)) & 0x7fffffffu;
    TL_FULLY
    for (int with = 16; with; with >>= 1) {
        const uint32_t other = tl_swap_bits(top, with);
        top = other > top ? other : top;
    }
    if (tl_thread() % 32 == 0) of_warp[tl_thread() / 32] = top;
    tl_barrier();
    TL_FULLY
    for (int w = 0; w < WARPS; w++) top = of_warp[w] > top ? of_warp[w] : top;
    return top;
}

/* tl_code of four f16: the low byte of 1.5 * 2^23 + x is the rounded x, and |x| <= 127 by the choice of the scale. */
TL_INLINE uint32_t codes_of(uint32_t pair0, uint32_t pair1, float inverse)
{
    const float x[4] = {tl_low_f16(pair0), tl_low_f16(pair0 >> 16), tl_low_f16(pair1), tl_low_f16(pair1 >> 16)};
    uint32_t y[4];
    TL_FULLY
    for (int i = 0; i < 4; i++) y[i] = tl_bits(x[i] * inverse + TL_INT8_ORIGIN);
    return tl_pack_bytes(y[0], y[1], y[2], y[3]);
}

/* Block `index` of the operand, counted through batch, heads and tokens. */
TL_INLINE void quantise_block(const quantise_operand *a, int32_t index, int32_t head_dim)
{
    const int32_t per_head = (a->tokens + a->rows - 1) / a->rows, row = index / per_head, tile = index % per_head;
    const int32_t shift = head_dim == 128 ? 4 : 3, chunks = (a->rows << shift) / THREADS; /* 2^shift chunks per token */
    const uint16_t *x = a->x + row / a->heads * a->batch_stride + row % a->heads * a->head_stride;
    chunk c[MOST_CHUNKS];
    uint32_t top = 0;
    TL_FULLY
    for (int i = 0; i < MOST_CHUNKS; i++) {
        const int32_t at = i * THREADS + tl_thread(), token = tile * a->rows + (at >> shift);
        c[i] = (chunk){0, 0, 0, 0};
        if (i < chunks && token >= a->first && token < a->tokens)
            c[i] = *(const TL_GLOBAL_SPACE chunk *)(x + token * a->seq_stride + (at & ((1 << shift) - 1)) * 8);
        TL_FULLY
        for (int j = 0; j < 4; j++) top = tl_max_f16_pair(top, magnitudes(c[i][j]));
    }
    const float amax = tl_float(block_amax(top));
    const tl_quant z = tl_quant_make(amax);
    const int finite = tl_is_finite(amax);
    if (tl_thread() == 0) a->scale[index] = !finite ? -1.f : z.scale > 0.f ? z.scale : 1.f;
    uint64_t *codes = (uint64_t *)(a->codes + (int64_t)index * a->rows * head_dim);
    TL_FULLY
    for (int i = 0; i < MOST_CHUNKS; i++) {
        if (i >= chunks || !finite) continue;
        const uint64_t low = codes_of(c[i][0], c[i][1], z.inverse), high = codes_of(c[i][2], c[i][3], z.inverse);
        codes[i * THREADS + tl_thread()] = low | high << 32;
    }
}

TL_INLINE void quantise(const quantise_operand *q, const quantise_operand *k, int32_t q_blocks, int32_t head_dim)
{
    if (tl_block() < q_blocks)
        quantise_block(q, tl_block(), head_dim);
    else
        quantise_block(k, tl_block() - q_blocks, head_dim);
}
#pragma omp end declare target
#else
static void quantise(const quantise_operand *q, const quantise_operand *k, int32_t q_blocks, int32_t head_dim)
{
    (void)q;
    (void)k;
    (void)q_blocks;
    (void)head_dim;
    ran_on_host = 1;
}
#endif

int tl_nvptx_quantise(const tl_device_call *call)
{
    const uint16_t *q = call->q, *k = call->k;
    int8_t *q_codes = call->codes.q_codes, *k_codes = call->codes.k_codes;
    float *q_scale = call->codes.q_scale, *k_scale = call->codes.k_scale;
    const int64_t q_batch = call->q_stride.batch, q_head = call->q_stride.head, q_seq = call->q_stride.seq;
    const int64_t k_batch = call->k_stride.batch, k_head = call->k_stride.head, k_seq = call->k_stride.seq;
    const int32_t heads_q = call->heads_q, heads_k = call->heads_k, head_dim = call->head_dim;
    const int32_t lq = call->lq, lk = call->lk, first = call->reach < 1 ? 1 - call->reach : 0;
    const int32_t q_blocks = call->batch * heads_q * ((lq + TL_DEVICE_ROWS - 1) / TL_DEVICE_ROWS);
    const int32_t k_blocks = call->batch * heads_k * ((lk + TL_DEVICE_KEYS - 1) / TL_DEVICE_KEYS);
    const int32_t blocks = q_blocks + k_blocks;
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(call->device)                        \
    is_device_ptr(q, k, q_codes, k_codes, q_scale, k_scale)
    {
        const quantise_operand a = {q, q_batch, q_head, q_seq, heads_q, lq, first, TL_DEVICE_ROWS, q_codes, q_scale};
        const quantise_operand b = {k, k_batch, k_head, k_seq, heads_k, lk, 0, TL_DEVICE_KEYS, k_codes, k_scale};
        quantise(&a, &b, q_blocks, head_dim);
    }
    return ran_on_host;
}
