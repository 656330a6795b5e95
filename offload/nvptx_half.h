/* The 16-bit type of an instantiation, f16 or bf16 by TL_BF16. Device pass only. */
#ifndef TL_OFFLOAD_NVPTX_HALF_H
#define TL_OFFLOAD_NVPTX_HALF_H

#include "core/quantize.h"
#include "ptx.h"

#if TL_BF16
#define tl_mma_half tl_mma_bf16
#define tl_mma_half_first tl_mma_bf16_first
#define tl_pack_half tl_pack_bf16
#define tl_max_half_pair tl_max_bf16_pair
#else
#define tl_mma_half tl_mma_f16
#define tl_mma_half_first tl_mma_f16_first
#define tl_pack_half tl_pack_f16
#define tl_max_half_pair tl_max_f16_pair
#endif

TL_INLINE float tl_low_half(uint32_t pair) { return TL_BF16 ? tl_float(pair << 16) : tl_low_f16(pair); }
TL_INLINE float tl_high_half(uint32_t pair) { return TL_BF16 ? tl_float(pair & 0xffff0000u) : tl_low_f16(pair >> 16); }

TL_INLINE float tl_load_half(const uint16_t *at) { return tl_low_half(*(const TL_GLOBAL_SPACE uint16_t *)at); }

/* Of a chunk: the larger of `top` and its magnitudes, pair by pair; NaN where one is NaN. */
TL_INLINE uint32_t tl_max_magnitudes(uint32_t top, tl_chunk c)
{
    TL_FULLY
    for (int i = 0; i < 4; i++) top = tl_max_half_pair(top, c[i] & 0x7fff7fffu);
    return top;
}

/* A chunk with zeros in place of NaN and Inf. */
TL_INLINE tl_chunk tl_scrubbed(tl_chunk c)
{
    const uint32_t low = TL_BF16 ? 0x7f80u : 0x7c00u, high = low << 16;
    TL_FULLY
    for (int i = 0; i < 4; i++)
        c[i] &= ((c[i] & low) == low ? 0u : 0xffffu) | ((c[i] & high) == high ? 0u : 0xffff0000u);
    return c;
}

/* The largest of what the `warps` warps of a block hold, as a magnitude in f32; NaN if one is. All threads take part.
 * scratch: 4 bytes of shared memory for each warp. */
TL_INLINE float tl_block_amax(uint32_t pair, int warps, uint32_t scratch)
{
    pair = tl_max_half_pair(pair, pair >> 16 | pair << 16);
    uint32_t top = tl_bits(tl_low_half(pair)) & 0x7fffffffu; /* these order like magnitudes, NaN on top */
    TL_FULLY
    for (int with = 16; with; with >>= 1) {
        const uint32_t other = tl_swap_bits(top, with);
        top = other > top ? other : top;
    }
    if (tl_thread() % 32 == 0) tl_shared_store4(scratch + (uint32_t)(tl_thread() / 32 * 4), top);
    tl_barrier();
    TL_FULLY
    for (int w = 0; w < warps; w++) {
        const uint32_t other = tl_shared_load4(scratch + (uint32_t)(w * 4));
        top = other > top ? other : top;
    }
    tl_barrier();
    return tl_float(top);
}

/* tl_code of the eight elements of a chunk: the low byte of 1.5 * 2^23 + x is the rounded x, and |x| <= 127 by the choice
 * of the scale. */
TL_INLINE uint32_t tl_codes_of_pairs(uint32_t pair0, uint32_t pair1, float inverse)
{
    const float x[4] = {tl_low_half(pair0), tl_high_half(pair0), tl_low_half(pair1), tl_high_half(pair1)};
    uint32_t y[4];
    TL_FULLY
    for (int i = 0; i < 4; i++) y[i] = tl_bits(x[i] * inverse + TL_INT8_ORIGIN);
    return tl_pack_bytes(y[0], y[1], y[2], y[3]);
}

#endif
