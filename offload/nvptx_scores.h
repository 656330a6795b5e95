/* What a general problem says of its sequences, and what it does to a single score, the same in the tile loop and where a row
 * is computed again. Scores become logits in log2 units in the order of the CPU's tl_logits_row: scale, softcap, ALiBi, bias. Device pass only. */
#ifndef TL_OFFLOAD_NVPTX_SCORES_H
#define TL_OFFLOAD_NVPTX_SCORES_H

#include "core/exp2.h"
#include "core/online_softmax.h"
#include "nvptx.h"
#include "nvptx_half.h"

enum { TYPE_F32, TYPE_F16 }; /* as tlamp_dtype; else bf16 */

TL_INLINE float load_typed(const void *data, int64_t i, int32_t dtype)
{
    if (dtype == TYPE_F32) return ((const TL_GLOBAL_SPACE float *)data)[i];
    const uint16_t x = ((const TL_GLOBAL_SPACE uint16_t *)data)[i];
    return dtype == TYPE_F16 ? tl_low_f16(x) : tl_from_bf16(x);
}

/* tanh of scaled scores, relative error below 2^-21 as tl_tanh's. Up to TL_TANH_SMALL (of the scaled score) by
 * tanh(x) = x (1 + z p(z)), z = x^2, 8.4e-8 before rounding; the scale is in p's coefficients. */
#define TL_TANH_SMALL 0.6f

typedef struct {
    float p[4];
} tanh_series;

TL_INLINE tanh_series tanh_of_scaled(float scale)
{
    const float z = scale * scale;
    return (tanh_series){
        {0.0156126898f * z * z * z * z, -0.052211836f * z * z * z, 0.133131176f * z * z, -0.333325982f * z}};
}

/* tanh(scale s) / scale. */
TL_INLINE float tanh_small(const tanh_series *t, float s)
{
    const float z = s * s;
    float p = tl_fma_ptx(t->p[0], z, t->p[1]);
    p = tl_fma_ptx(p, z, t->p[2]);
    p = tl_fma_ptx(p, z, t->p[3]);
    return tl_fma_ptx(s * z, p, s);
}

/* tanh(x) of the others by 1 - 2 / (e^2|x| + 1), with the processor's own exponential and reciprocal, 2 and 1 ulp. e^2|x| is
 * above 3.3 there, so that this comes to 1.6 * 2^-22 at most. */
TL_INLINE float tanh_large(float x)
{
    const float e = tl_exp2_fast(tl_abs(x) * (2.f * TL_LOG2E)), t = tl_fma_ptx(-2.f, tl_reciprocal_fast(e + 1.f), 1.f);
    return tl_with_sign(t, x);
}

TL_INLINE float softcapped(float y, float cap) { return cap * tl_tanh(y / cap); }

/* ---- sequences */

/* What blocks are counted by. */
enum { OF_ROW_TILES, OF_Q_BLOCKS, OF_K_BLOCKS };

TL_INLINE int32_t begin_of(const tl_device_sequence *s, int of)
{
    return of == OF_ROW_TILES ? s->row_tiles : of == OF_Q_BLOCKS ? s->q_blocks : s->k_blocks;
}

TL_INLINE int32_t blocks_in(int32_t tokens, int32_t size) { return (tokens + size - 1) / size; }

TL_INLINE tl_device_sequence sequence_at(const tl_general_launch *a, int32_t b)
{
    if (a->sequences) return a->sequences[b];
    return (tl_device_sequence){.words = b * a->words_batch,
                                .batch = b,
                                .lq = a->lq,
                                .lk = a->lk,
                                .reach = a->reach,
                                .floor = a->floor,
                                .diagonal = a->diagonal,
                                .row_tiles = b * blocks_in(a->lq, a->tile_rows),
                                .q_blocks = b * blocks_in(a->lq, TL_DEVICE_ROWS),
                                .k_blocks = b * blocks_in(a->lk, TL_DEVICE_KEYS),
                                .group_inverse = a->group_inverse};
}

/* The sequence in the table that owns block `index` of all. */
TL_INLINE tl_device_sequence find_sequence(const tl_device_sequence *table, int32_t count, int32_t index, int of)
{
    int32_t low = 0, high = count; /* the last one that does not begin behind it; empty ones own none */
    while (high - low > 1) {
        const int32_t middle = (low + high) / 2;
        if (begin_of(&table[middle], of) <= index)
            low = middle;
        else
            high = middle;
    }
    return table[low];
}

TL_INLINE tl_device_sequence sequence_of(const tl_general_launch *a, int32_t index, int of)
{
    if (a->sequences) return find_sequence(a->sequences, a->batch, index, of);
    const int32_t each = of == OF_ROW_TILES  ? blocks_in(a->lq, a->tile_rows)
                         : of == OF_Q_BLOCKS ? blocks_in(a->lq, TL_DEVICE_ROWS)
                                             : blocks_in(a->lk, TL_DEVICE_KEYS);
    return sequence_at(a, index / each);
}

/* The keys that row i sees by geometry: [row_begins, row_ends). */
TL_INLINE int32_t row_begins(const tl_device_sequence *s, int32_t row)
{
    const int32_t begin = row + s->floor;
    return begin < 0 ? 0 : begin;
}

TL_INLINE int32_t row_ends(const tl_device_sequence *s, int32_t row)
{
    const int32_t end = row + s->reach;
    return end < s->lk ? end : s->lk;
}

/* Rows that see a key by geometry are neighbours: from the first one whose keys end behind 0 to the last whose begin before
 * lk. */
TL_INLINE int32_t queries_begin(const tl_device_sequence *s) { return s->reach < 1 ? 1 - s->reach : 0; }

TL_INLINE int32_t queries_end(const tl_device_sequence *s)
{
    if (s->floor >= s->reach) return 0; /* an empty window */
    return s->lk - s->floor < s->lq ? s->lk - s->floor : s->lq;
}

/* Where the scores of a row begin. */
TL_INLINE int64_t bias_at(const tl_general_launch *a, int32_t batch, int32_t head, int32_t row)
{
    return batch * a->bias_batch + head * a->bias_head + row * a->bias_q;
}

TL_INLINE int64_t mask_at(const tl_general_launch *a, int32_t batch, int32_t head, int32_t row)
{
    return batch * a->mask_batch + head * a->mask_head + row * a->mask_q;
}

/* By the boolean mask or a bias of -Inf. */
TL_INLINE int is_hidden(const tl_general_launch *a, int32_t batch, int32_t head, int32_t row, int32_t key)
{
    if (a->bool_mask && !a->bool_mask[mask_at(a, batch, head, row) + key * a->mask_k]) return 1;
    return a->bias && load_typed(a->bias, bias_at(a, batch, head, row) + key * a->bias_k, a->bias_dtype) == -TL_INF;
}

/* ---- scores */

/* distance: of the key from the row's diagonal. */
TL_INLINE float with_alibi(float y, float slope, int32_t distance)
{
    return y - slope * (float)(distance < 0 ? -distance : distance);
}

/* -Inf hides the key, whatever its score. */
TL_INLINE float with_bias(float y, float bias) { return bias == -TL_INF ? -TL_INF : y + bias; }

#endif
