/* What the host hands the bare kernels. Everything is a scalar or a device pointer, since those travel with the launch;
 * a struct would cost a copy of its own. */
#ifndef TL_OFFLOAD_NVPTX_H
#define TL_OFFLOAD_NVPTX_H

#include <stddef.h>
#include <stdint.h>

/* Fixed on the device: most rows of a block, and the tokens that scales of Q and K are padded to. TileMix's 128 and 64. */
enum { TL_DEVICE_ROWS = 128, TL_DEVICE_KEYS = 64 };

/* The form of a kernel: query rows of a block, keys of a tile, and how many blocks a processor's registers must hold (0: as
 * many as happen to fit). */
#define TL_MAKE_FORM(rows, keys, blocks) ((rows) << 16 | (keys) << 8 | (blocks))
#define TL_FORM_ROWS(form) ((form) >> 16)
#define TL_FORM_KEYS(form) ((form) >> 8 & 0xff)
#define TL_FORM_BLOCKS(form) ((form)&0xff)
#define TL_FORM_WARPS(form) ((form)&0xff) /* of a decoding kernel */
#define TL_DECODE_FORM(d, codes, warps) TL_MAKE_FORM(TL_DECODE_ROWS, ((d) > 64 ? 16 : 32) << (codes), warps)
#define TL_GENERAL_FORM(d) TL_MAKE_FORM(TL_DEVICE_ROWS, (d) > 128 ? 32 : 64, 0)
#define TL_SHAPED_FORM(arch, d)                                                                                        \
    TL_MAKE_FORM(TL_DEVICE_ROWS, (d) == 192 || ((d) == 256 && (arch) == 80) ? 32 : 64, 0) /* 192: two blocks fit */

/* Plain kernels come in two kinds, and have forms that were measured for each architecture that images are built for
 * (nvptx_tuned.def). A form is compiled into the image of its architecture, so there is one kernel of a kind. */
enum { TL_KIND_high, TL_KIND_routed, TL_KINDS };
enum { TL_ARCH_80, TL_ARCH_90, TL_ARCHS }; /* images for 8.x, and from 9.0 on */
#define TL_TUNED(arch, d, kind, rows, keys, blocks, cache, remark)                                                     \
    TL_TUNED_##arch##_##d##_##kind = TL_MAKE_FORM(rows, keys, blocks),
enum {
#include "nvptx_tuned.def"
};
#undef TL_TUNED

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
#define TL_IMAGE_ARCH 90
#else
#define TL_IMAGE_ARCH 80
#endif
#define TL_TUNED_NAME(arch, d, kind) TL_TUNED_##arch##_##d##_##kind
#define TL_TUNED_OF(arch, d, kind) TL_TUNED_NAME(arch, d, kind)
#define TL_TUNED_FORM(d, kind) TL_TUNED_OF(TL_IMAGE_ARCH, d, kind)

/* Decoding kernels: most rows of a block, which are 16 of a KV head's (query head, token) pairs; the keys that parts are counted
 * in; most parts of a sequence; and of how many rows' blocks a launch may have parts to join, in so many launches at once. */
enum {
    TL_DECODE_ROWS = 16,
    TL_DECODE_UNIT = 64,
    TL_DECODE_PARTS = 256,
    TL_DECODE_JOINS = 4096,
    TL_DECODE_LAUNCHES = 16
};

/* Shared memory of a block: Q, two stages of K and V, the codes of Q. */
#define TL_SHARED_BYTES(form, d, dv, routed)                                                                           \
    (TL_FORM_ROWS(form) * (d) * (2 + (routed)) + 4 * TL_FORM_KEYS(form) * ((d) + (dv)))

/* Which scores a row sees is an interval: row i sees the keys [i + floor, min(i + reach, lk)). */
typedef struct {
    int64_t q_start, k_start; /* rows before it in packed tensors */
    int64_t words;            /* where its routing words begin, in words */
    int32_t batch;            /* its number */
    int32_t lq, lk;
    int32_t reach, floor;
    int32_t diagonal;                      /* ALiBi's distance is j - i - diagonal */
    int32_t row_tiles, q_blocks, k_blocks; /* of earlier sequences: blocks of rows; 128 queries; 64 keys, or scales */
    uint32_t group_inverse;                /* key tile n is in group n * group_inverse >> 31 */
    int32_t row_blocks, parts, part_keys;  /* decoding: blocks of a KV head's rows, parts of its keys, keys of a part */
} tl_device_sequence;

/* What tl_divide multiplies by to divide by n. */
#define TL_INVERSE(n) ((UINT64_C(1) << 63) / (uint64_t)(n) + ((UINT64_C(1) << 63) % (uint64_t)(n) != 0))

/* A launch: type and name of each field. Strides are in elements. The kernels for plain problems take the first list only.
 *
 * Quantised operands (ALGORITHMS A2): codes [head][tokens of all sequences, each rounded up to blocks][d], zeros behind the
 * last token; NULL where a general kernel makes them of the tile it has loaded. Plain kernels have one scale per 128 queries
 * and per 64 keys, negative where the block holds a NaN or Inf and has no codes. The general ones have a scale per token, and flags: 1 where one of 16 tokens holds a NaN or Inf.
 * Tiles with such tokens are computed high. */
#define TL_PLAIN_POINTERS q, k, v, o, lse, q_codes, q_scale, k_codes, k_scale, words, sequences
#define TL_PLAIN_FIELDS(X)                                                                                             \
    X(const uint16_t *, q)                                                                                             \
    X(const uint16_t *, k)                                                                                             \
    X(const uint16_t *, v)                                                                                             \
    X(void *, o)                                                                                                       \
    X(float *, lse) /* NULL: not wanted */                                                                             \
    X(int8_t *, q_codes)                                                                                               \
    X(float *, q_scale)                                                                                                \
    X(int8_t *, k_codes)                                                                                               \
    X(float *, k_scale)                                                                                                \
    X(const uint64_t *, words)               /* NULL: every tile is INT8, where the kernel has codes */                \
    X(const tl_device_sequence *, sequences) /* [batch], or NULL: all are alike */                                     \
    X(int64_t, q_batch)                                                                                                \
    X(int64_t, q_head)                                                                                                 \
    X(int64_t, q_seq)                                                                                                  \
    X(int64_t, k_batch)                                                                                                \
    X(int64_t, k_head)                                                                                                 \
    X(int64_t, k_seq)                                                                                                  \
    X(int64_t, v_batch)                                                                                                \
    X(int64_t, v_head)                                                                                                 \
    X(int64_t, v_seq)                                                                                                  \
    X(int64_t, o_batch)                                                                                                \
    X(int64_t, o_head)                                                                                                 \
    X(int64_t, o_seq)                                                                                                  \
    X(int64_t, lse_batch)                                                                                              \
    X(int64_t, lse_head)                                                                                               \
    X(int64_t, lse_seq)                                                                                                \
    X(int64_t, words_batch)                                                                                            \
    X(int64_t, words_head)                                                                                             \
    X(int64_t, words_row)                                                                                              \
    X(int32_t, batch)                                                                                                  \
    X(int32_t, heads_q)                                                                                                \
    X(int32_t, group_heads) /* query heads of a KV head */                                                             \
    X(int32_t, lq)          /* of every sequence, where there is no table of them */                                   \
    X(int32_t, lk)          /* keys that exist and that some row sees */                                               \
    X(int32_t, reach)                                                                                                  \
    X(int32_t, floor)                                                                                                  \
    X(int32_t, causal)        /* later rows see more: they go first */                                                 \
    X(int32_t, heads_apart)   /* heads whose blocks alternate then: what their K and V take fits in the cache */       \
    X(int32_t, all_row_tiles) /* of all sequences */                                                                   \
    X(int32_t, all_k_blocks)  /* blocks of 64 keys */                                                                  \
    X(uint32_t, group_inverse)                                                                                         \
    X(float, logit_scale) /* softmax_scale * log2(e); where scores are more than scaled see nvptx_shaped.inc.h */

/* Where keys may be split: what the parts leave. */
#define TL_PART_POINTERS part_o, part_m, part_l
#define TL_PART_FIELDS(X)                                                                                              \
    X(float *, part_o) /* [row of all][query head][part][dv]; decoding: [block][row][dv] */                            \
    X(float *, part_m)                                                                                                 \
    X(float *, part_l) /* its sign: V held a NaN or Inf there */

/* What decoding kernels take besides. Of every sequence, where there is no table of them: row_blocks, parts, part_keys. */
#define TL_DECODE_POINTERS TL_PART_POINTERS, v_scale
#define TL_DECODE_FIELDS(X)                                                                                            \
    X(const float *, v_scale) /* INT8 codes in K and V: [scale of all sequences][KV head], as k_scale */               \
    X(int32_t, scale_keys)    /* keys of a scale, whole TL_DECODE_UNITs, or 1 */                                       \
    X(int32_t, scales_each)   /* scales of a sequence, where there is no table */                                      \
    X(int32_t, kv_heads)                                                                                               \
    X(uint64_t, kv_heads_inverse)                                                                                      \
    X(uint64_t, units_inverse) /* of row_blocks * parts */                                                             \
    X(uint64_t, row_blocks_inverse)                                                                                    \
    X(int32_t, row_blocks) /* the most that a sequence has */                                                          \
    X(int32_t, parts)                                                                                                  \
    X(int32_t, part_keys)                                                                                              \
    X(int32_t, part_rows) /* most rows of a block */                                                                   \
    X(int32_t, turn)      /* which of the launches that may run at once: each counts its parts apart */

#define TL_GENERAL_POINTERS                                                                                            \
    TL_PART_POINTERS, q_inverse, k_inverse, q_mean, q_flags, k_flags, q_seen, k_seen, mean, bool_mask, bias, alibi,    \
        sinks
#define TL_GENERAL_FIELDS(X)                                                                                           \
    TL_PART_FIELDS(X)                                                                                                  \
    X(float *, q_inverse) /* per token, what makes its codes; 0: they are 0. NULL where they are made before */        \
    X(float *, k_inverse)                                                                                              \
    X(float *, q_mean) /* q . mean of K; NULL without smooth_k */                                                      \
    X(uint8_t *, q_flags)                                                                                              \
    X(uint8_t *, k_flags)                                                                                              \
    X(uint8_t *, q_seen) /* per head and token: it sees a key; NULL: as geometry says */                               \
    X(uint8_t *, k_seen) /* per KV head and token: some row sees it */                                                 \
    X(float *, mean)     /* [batch][KV head][head_dim] of K over the keys that are seen; NULL without smooth_k */      \
    X(const uint8_t *, bool_mask)                                                                                      \
    X(const void *, bias)                                                                                              \
    X(const float *, alibi)                                                                                            \
    X(const float *, sinks)                                                                                            \
    X(int64_t, mask_batch)                                                                                             \
    X(int64_t, mask_head)                                                                                              \
    X(int64_t, mask_q)                                                                                                 \
    X(int64_t, mask_k)                                                                                                 \
    X(int64_t, bias_batch)                                                                                             \
    X(int64_t, bias_head)                                                                                              \
    X(int64_t, bias_q)                                                                                                 \
    X(int64_t, bias_k)                                                                                                 \
    X(int64_t, alibi_batch)                                                                                            \
    X(int32_t, diagonal)                                                                                               \
    X(int32_t, bias_dtype)                                                                                             \
    X(int32_t, bias_pairs) /* two scores side by side are aligned to their size, wherever a row begins */              \
    X(int32_t, mask_pairs)                                                                                             \
    X(int32_t, o_dtype)                                                                                                \
    X(int32_t, d)                                                                                                      \
    X(int32_t, dv)                                                                                                     \
    X(int32_t, unaligned)    /* bit 0 to 2: rows of q, k, v are not aligned to 16 bytes */                             \
    X(int32_t, int8)         /* some tile may be INT8 */                                                               \
    X(int32_t, tile_rows)    /* rows of a block, all of one routing row */                                             \
    X(int32_t, tile_keys)    /* keys of a tile, all of one routing group */                                            \
    X(int32_t, block_m)      /* rows of a routing row */                                                               \
    X(int32_t, all_q_blocks) /* blocks of 128 queries */                                                               \
    X(int32_t, quant_q)      /* queries of a scale; 0: one for each */                                                 \
    X(int32_t, quant_k)                                                                                                \
    X(int32_t, scales_f16) /* block scales are stored in f16 */                                                        \
    X(int32_t, rows_each)  /* rows of each sequence; 0: they are packed */                                             \
    X(int32_t, splits)     /* parts of the keys, each a block of its own; a second launch joins them */                \
    X(int32_t, split_keys) /* keys of a part; 0: as many whole split_tiles as make `splits` parts of a sequence */     \
    X(int32_t, split_tile)                                                                                             \
    X(float, softmax_scale)                                                                                            \
    X(float, cap_inverse) /* of shaped kernels with softcap: softcap / softmax_scale */                                \
    X(float, softcap)

#define TL_FIELD(type, name) type name;
typedef struct {
    TL_PLAIN_FIELDS(TL_FIELD)
    TL_GENERAL_FIELDS(TL_FIELD)
} tl_general_launch; /* as a general kernel sees it */
typedef struct {
    TL_PLAIN_FIELDS(TL_FIELD)
    TL_GENERAL_FIELDS(TL_FIELD)
    TL_DECODE_FIELDS(TL_FIELD)
    int32_t device, bf16, form,
        head_rows;    /* for the host; form: of the plain kernel; head_rows: heads that are rows, or 0 */
    int32_t code_row; /* bytes of a row of codes of tl_nvptx_quantise_plain: the channels that the kernel is made for */
} tl_device_call;

/* A field as a local of a launching function, which the kernel captures, and from there into the kernel's struct. The
 * pragma's is_device_ptr wants the plain names. */
#define TL_CAPTURE(type, name) type const name = call->name;
#define TL_PASS(type, name) .name = name,

/* Each returns 0, or 1 where the OpenMP runtime ran the region on the host, where it does nothing. Complete on return. */
typedef int tl_device_launch(const tl_device_call *call);
tl_device_launch tl_nvptx_high_d64_f16, tl_nvptx_high_d128_f16, tl_nvptx_routed_d64_f16, tl_nvptx_routed_d128_f16;
tl_device_launch tl_nvptx_high_d64_bf16, tl_nvptx_high_d128_bf16, tl_nvptx_routed_d64_bf16, tl_nvptx_routed_d128_bf16;
tl_device_launch tl_nvptx_general_d64_f16, tl_nvptx_general_d128_f16, tl_nvptx_general_d256_f16;
tl_device_launch tl_nvptx_general_d64_bf16, tl_nvptx_general_d128_bf16, tl_nvptx_general_d256_bf16;
tl_device_launch tl_nvptx_state16_f16, tl_nvptx_state16_bf16; /* head dimensions up to 256, state in f16 */

/* Decoding, with 8 warps a block and with 4. */
tl_device_launch tl_nvptx_decode8_d64_f16, tl_nvptx_decode8_d64_bf16, tl_nvptx_decode8_d128_f16,
    tl_nvptx_decode8_d128_bf16;
tl_device_launch tl_nvptx_decode4_d64_f16, tl_nvptx_decode4_d64_bf16, tl_nvptx_decode4_d128_f16,
    tl_nvptx_decode4_d128_bf16;

/* The same with INT8 codes in K and V. */
tl_device_launch tl_nvptx_codes8_d64_f16, tl_nvptx_codes8_d64_bf16, tl_nvptx_codes8_d128_f16, tl_nvptx_codes8_d128_bf16;
tl_device_launch tl_nvptx_codes4_d64_f16, tl_nvptx_codes4_d64_bf16, tl_nvptx_codes4_d128_f16, tl_nvptx_codes4_d128_bf16;

/* Where rows are aligned, and d and d_v multiples of 8, up to that many; d_v up to 128 for 192. Shaped: windows, sinks; scored:
 * also whatever makes logits of scores, and with state16 up to 128 channels and the state in f16. */
tl_device_launch tl_nvptx_shaped_d64_f16, tl_nvptx_shaped_d64_bf16, tl_nvptx_shaped_d96_f16, tl_nvptx_shaped_d96_bf16;
tl_device_launch tl_nvptx_shaped_d128_f16, tl_nvptx_shaped_d128_bf16, tl_nvptx_shaped_d192_f16,
    tl_nvptx_shaped_d192_bf16;
tl_device_launch tl_nvptx_shaped_d256_f16, tl_nvptx_shaped_d256_bf16, tl_nvptx_scored_d64_f16, tl_nvptx_scored_d64_bf16;
tl_device_launch tl_nvptx_scored_d128_f16, tl_nvptx_scored_d128_bf16, tl_nvptx_scored_d256_f16,
    tl_nvptx_scored_d256_bf16;
tl_device_launch tl_nvptx_scored_state16_f16, tl_nvptx_scored_state16_bf16;

/* For the general kernels: which rows and keys see or are seen (for shaped ones, too); the mean of K; codes, scales and flags of
 * Q and K. */
tl_device_launch tl_nvptx_survey, tl_nvptx_mean_f16, tl_nvptx_mean_bf16, tl_nvptx_quantise_f16, tl_nvptx_quantise_bf16;

/* How many tokens of each block of 128 queries of a head and, behind those, of 64 keys of a KV head hold a NaN or Inf: counts is
 * device memory. After set_sequences, for all kinds. */
typedef int tl_device_count_launch(const tl_device_call *call, int32_t *counts);
tl_device_count_launch tl_nvptx_nonfinite_f16, tl_nvptx_nonfinite_bf16;

/* For the plain and shaped ones: codes and scales of Q and K. */
tl_device_launch tl_nvptx_quantise_plain_f16, tl_nvptx_quantise_plain_bf16;

/* The image that a device has taken writes which one it is, TL_ARCH_..., to device memory. */
int tl_nvptx_which_image(int32_t device, int32_t *at);

/* Which plain kernel runs, and how: by architecture, head dimension (64, 128) and kind. Only bench tune writes it. */
typedef struct {
    tl_device_launch *launch[2]; /* f16, bf16 */
    int32_t form;
    int32_t cache_mib; /* causal: K and V of the heads whose blocks alternate take so much at most */
} tl_plain_kernel;
extern tl_plain_kernel tl_plain_kernels[TL_ARCHS][2][TL_KINDS];

#endif
