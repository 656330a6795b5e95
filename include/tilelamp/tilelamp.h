/* TileLamp: attention whose numerical precision is decided tile by tile.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Forward only: this library computes no gradients. "ALGORITHMS A4" and the like name sections of docs/algorithms.md, which
 * derives every formula; nothing there is needed to use the library.
 *
 * What it computes, for every query row i of every query head h of every sequence (ALGORITHMS A1):
 *
 *     s[j] = softmax_scale * dot(q[i], k[j])                 for every key j the row sees
 *     s[j] = softcap > 0 ? softcap * tanh(s[j] / softcap) : s[j]
 *     s[j] = s[j] + bias[i][j] - alibi_slope[h] * |i + Lk - Lq - j|
 *     lse  = log( sum_j exp(s[j]) + exp(sink[h]) )           natural logarithm
 *     o[i] = sum_j exp(s[j] - lse) * v[j]
 *
 * Key and value head of query head h: h / (num_heads_q / num_heads_k), contiguous groups (GQA, MQA).
 * A score policy decides in which arithmetic dot(q, k) is computed, per tile of scores.
 *
 * How to call it
 * --------------
 *     tlamp_problem problem;
 *     tlamp_problem_init(&problem, sizeof problem);          // zeros and defaults
 *     problem.batch = 1; problem.num_heads_q = 8; ...        // shapes, dtypes, masks
 *     tlamp_set_strides(&problem, TLAMP_TENSOR_BSHD, NULL);  // or fill the strides yourself
 *     tlamp_plan *plan;
 *     if (tlamp_plan_create(&plan, &problem, NULL, &err)) fail(err.text);
 *     size_t bytes = tlamp_plan_workspace_size(plan, threads);
 *     ...
 *     tlamp_execute(plan, &tensors, &exec, workspace, bytes, &err);   // as often as you like, any layer
 *     tlamp_plan_destroy(plan);
 * or everything in one call: tlamp_attention().
 *
 * Rules that hold everywhere
 * --------------------------
 * Structs   Every struct begins with struct_size. Set it with the *_init function or to sizeof. A struct from an older
 *           header (smaller) works: the missing fields take their defaults. One from a newer header works if the fields
 *           this library does not know are all zero; otherwise TLAMP_UNSUPPORTED.
 * Enums     are int32_t. Values never change their meaning; 0 is the default.
 * Strides   int64_t, in elements of the tensor's dtype, any sign and order; 0 broadcasts (inputs only). The stride of the
 *           last dimension (head_dim) must be 1. Offsets are computed in 64 bits.
 * Reading   Inputs are read only inside their logical shape: no padding is needed, nothing beyond the last element is
 *           touched. An element that no row of its sequence can see (padding, beyond the used length, stride gaps, masked
 *           for every row) never influences any output bit, even if it is NaN. An element hidden from one row and seen by
 *           another can reach the first only through a shared INT8 scale: within the policy's error bound, never as NaN or
 *           Inf. Under TLAMP_POLICY_HIGH not at all.
 * NaN, Inf  A NaN in an element of Q or K makes NaN exactly the rows that see it; in V, exactly that column of the rows
 *           that see it. A logit of +Inf makes its row NaN, as IEEE softmax does. A logit of -Inf has weight 0.
 * Empty     A row that sees no key, or whose every logit is -Inf, gives O = 0 and LSE = -Inf (with a sink: LSE = sink).
 *           FlashAttention-2 returns LSE = +Inf there. Sizes of 0 (batch, lengths, heads) are legal and give just that.
 * Errors    Every function that can fail returns a tlamp_status and takes a tlamp_error * (may be NULL) for the name of
 *           the offending field and one line of text. On error no output is touched. The library never prints, never
 *           aborts, and sets nothing global. (An OpenMP runtime may abort if it cannot create threads. Callers who cannot
 *           accept that pass a parallel_for of their own or num_threads = 1.)
 * Threads   A plan is immutable and can be shared. Concurrent executions need distinct workspaces and disjoint outputs.
 *           Calls from inside a caller's parallel region are fine.
 * Repeats   The same library on the same machine gives the same bits for the same plan: for any thread count, whatever
 *           else is in the batch, and in every run. Plans of other bounds (batch, max_seqlen_q, ...) may take other kernels
 *           and split keys otherwise.
 * Aliasing  Outputs and the workspace must not overlap inputs or each other. This is not checked.
 * Memory    The caller owns every buffer. The library keeps no pointer after a call returns.
 */
#ifndef TILELAMP_TILELAMP_H
#define TILELAMP_TILELAMP_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"
#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ status and errors */

typedef int32_t tlamp_status;
enum {
    TLAMP_OK = 0,
    TLAMP_INVALID_ARGUMENT = 1,     /* wrong: no version of the library will accept it */
    TLAMP_UNSUPPORTED = 2,          /* right, but this version does not do it; the text says what is missing */
    TLAMP_UNSUPPORTED_HARDWARE = 3, /* this machine lacks the instruction set or the device */
    TLAMP_WORKSPACE_TOO_SMALL = 4,
    TLAMP_OUT_OF_MEMORY = 5,
    TLAMP_DEVICE_ERROR = 6
};

/* Where and why a call failed. Written only on failure. Initialise struct_size (or the whole struct with
 * {sizeof(tlamp_error)}). */
typedef struct tlamp_error {
    size_t struct_size;
    tlamp_status status;
    char field[40]; /* the field or argument at fault, e.g. "head_dim_qk"; "" where there is none */
    char text[216]; /* one line of English, no newline */
} tlamp_error;

/* "OK", "INVALID_ARGUMENT", ...; never NULL. */
TLAMP_API const char *tlamp_status_string(tlamp_status status);

/* TLAMP_VERSION and TLAMP_VERSION_STRING of the library that is running (the header's may differ). */
TLAMP_API int32_t tlamp_version(void);
TLAMP_API const char *tlamp_version_string(void);

/* ------------------------------------------------------------------------------------------------ types */

typedef int32_t tlamp_dtype;
enum {
    TLAMP_F32 = 0,
    TLAMP_F16 = 1,  /* IEEE binary16, stored as uint16_t */
    TLAMP_BF16 = 2, /* bfloat16, stored as uint16_t */
    TLAMP_INT8 = 3  /* operands that the caller has quantised (q8, k8, v8); with scales beside them */
};

/* Which keys query row i sees, with d = Lk - Lq (bottom-right) or d = 0 (top-left):
 *   NONE             all
 *   CAUSAL           j <= i + Lk - Lq: the last row sees the last key (FlashAttention >= 2.1)
 *   CAUSAL_TOP_LEFT  j <= i: the first row sees the first key (PyTorch's is_causal)
 * and, with a window, only  i + d - window_left <= j <= i + d + window_right. */
typedef int32_t tlamp_mask_kind;
enum { TLAMP_MASK_NONE = 0, TLAMP_MASK_CAUSAL = 1, TLAMP_MASK_CAUSAL_TOP_LEFT = 2 };

/* Element strides of a tensor [batch, seq, head, dim]. dim must be 1. Packed sequences (varlen) ignore batch. */
typedef struct tlamp_strides {
    int64_t batch, seq, head, dim;
} tlamp_strides;

/* Element strides of a tensor [batch, head_q, seq_q, seq_k]; 0 broadcasts. Packed sequences: element (i, j) of sequence b
 * is at b * batch + h * head + i * q + j * k, i and j counted inside the sequence. */
typedef struct tlamp_score_strides {
    int64_t batch, head, q, k;
} tlamp_score_strides;

/* Element strides of LSE [batch, head_q, seq_q]. Packed sequences: [head_q, total_q], batch ignored. */
typedef struct tlamp_lse_strides {
    int64_t batch, head, seq;
} tlamp_lse_strides;

/* ------------------------------------------------------------------------------------------------ score policy */

/* How dot(q, k) is computed (P V: see tlamp_pv).
 *   HIGH       f32 arithmetic on the inputs as given
 *   INT8       every tile from INT8 codes (TileMix's "One"): blockwise symmetric quantisation of Q and K, exact int32
 *              products (ALGORITHMS A2)
 *   ROUTED     per group of key tiles INT8 or HIGH, by routing words (TileMix, ALGORITHMS A3)
 *   X3         every tile from three INT8 products of two planes of codes, near-f32 logits (ALGORITHMS E); head_dim_qk at
 *              most 523. Best with per-token scales, smooth_k and, where head_dim_qk is a power of two, hadamard
 *   LAMP       cheap logits first, risky sub-blocks recomputed (LampAttention, ALGORITHMS B; INT8 first: C3)
 *   TOLERANCE  the cheapest that keeps the guarantee the caller states (ALGORITHMS E)
 *
 * What this version runs, on the CPU (anything else: TLAMP_UNSUPPORTED, tlamp_supported() says so without data):
 *   policy               q, k, v dtype                   o dtype          pv         state               cache  device
 *   HIGH, INT8, ROUTED,  f32, f16, bf16, int8, any mix   f32, f16, bf16   any        f32, f16 (pv f32)   none   host
 *   X3
 *   LAMP (E4M3 first)    f32, f16, bf16, int8, any mix   f32, f16, bf16   f32        f32                 none   host
 *   LAMP (INT8 first), TOLERANCE: not yet
 * smooth_k goes with keys, hadamard with queries and keys, that the caller did not quantise.
 * and on devices, in a library built with TILELAMP_OFFLOAD: the same in plain C, and on the tensor cores of NVIDIA GPUs
 * (sm_80 and later)
 *   HIGH, INT8, ROUTED   f16 or bf16, one for all      f32, f16, bf16   AUTO       f32, f16             none   yes
 *   HIGH, decoding       f16 or bf16, k and v int8     q's              AUTO       f32                  none   yes
 * for head dimensions up to 256, without hadamard. Decoding is up to 16 queries and head dimensions 64 and 128
 * (docs/gpu.md), k and v in device memory. P has the type of V there, f16 beside int8, and sums are f32: pv AUTO on
 * tensor cores adds half an ulp of P to the bound. A tile with a token that holds a NaN or Inf is computed HIGH there.
 */
typedef int32_t tlamp_policy_kind;
enum {
    TLAMP_POLICY_HIGH = 0,
    TLAMP_POLICY_INT8 = 1,
    TLAMP_POLICY_ROUTED = 2,
    TLAMP_POLICY_X3 = 3,
    TLAMP_POLICY_LAMP = 4,
    TLAMP_POLICY_TOLERANCE = 5
};

/* INT8 scales: one per block of quant_block_q (quant_block_k) tokens, or one per token. BLOCK_F16 stores block scales as
 * f16, rounded up (ALGORITHMS A2). */
typedef int32_t tlamp_scales;
enum { TLAMP_SCALES_BLOCK = 0, TLAMP_SCALES_TOKEN = 1, TLAMP_SCALES_BLOCK_F16 = 2 };

/* When K (and Q) are quantised: once per call before the kernel, or inside the kernel for the tiles that need it. Same
 * numerics (ALGORITHMS A2). */
typedef int32_t tlamp_quantise;
enum { TLAMP_QUANTISE_ONCE = 0, TLAMP_QUANTISE_FLY = 1 };

/* Arithmetic of P V; sums are f32, O is kept in f32.
 *   F32   P and V in f32
 *   BF16  P and V rounded to bf16, their products exact (2^-8 of each product, ALGORITHMS C2)
 *   INT8  P rounded to u8, V quantised per channel and 64 keys, products exact (ALGORITHMS C2)
 *   AUTO  F32 under HIGH and X3 with f32 or f16 V, and under LAMP; else BF16 where the machine has instructions that make it
 *         faster, F32 elsewhere
 * tlamp_plan_pv tells what AUTO is. */
typedef int32_t tlamp_pv;
enum { TLAMP_PV_AUTO = 0, TLAMP_PV_F32 = 1, TLAMP_PV_BF16 = 2, TLAMP_PV_INT8 = 3 };

/* Running maximum, normaliser and output accumulator (ALGORITHMS A8). */
typedef int32_t tlamp_state;
enum { TLAMP_STATE_F32 = 0, TLAMP_STATE_F16 = 1 };

/* LAMP: the first format, and the arithmetic it is simulated in (ALGORITHMS B4). */
typedef int32_t tlamp_lamp_format;
enum { TLAMP_LAMP_INT8 = 0, TLAMP_LAMP_E4M3 = 1 };
typedef int32_t tlamp_lamp_mode;
enum { TLAMP_LAMP_SIM = 0, TLAMP_LAMP_HW = 1 };
/* LAMP itself, or one of its baselines (ALGORITHMS B3): everything in the first format with the running maximum of its own
 * logits (LOW), in the second (MID), in f32 (F32). */
typedef int32_t tlamp_lamp_run;
enum { TLAMP_LAMP_RUN_LAMP = 0, TLAMP_LAMP_RUN_LOW = 1, TLAMP_LAMP_RUN_MID = 2, TLAMP_LAMP_RUN_F32 = 3 };

/* A value of delta. */
#define TLAMP_STAGE_ONE_OFF (-1.f)

/* TOLERANCE: what is bounded, and by what (ALGORITHMS E). Only RIGOROUS is a guarantee. */
typedef int32_t tlamp_tolerance_kind;
enum { TLAMP_TOLERANCE_WEIGHTS_L1 = 0, TLAMP_TOLERANCE_OUTPUT = 1 };
typedef int32_t tlamp_provider;
enum { TLAMP_PROVIDER_RIGOROUS = 0, TLAMP_PROVIDER_STAT6 = 1, TLAMP_PROVIDER_EXPECTED = 2 };

/* tlamp_policy_init sets the defaults named here. */
typedef struct tlamp_policy {
    size_t struct_size;
    tlamp_policy_kind kind; /* HIGH */

    /* The routing tile (ALGORITHMS D2): block_m query rows by block_n keys. It fixes the words and the results, not how a
     * kernel walks them. block_n divides 64 or is a multiple of it, at least 16; block_m likewise with 128. */
    int32_t block_m, block_n; /* 128, 64 */
    /* Tokens per INT8 scale. Multiples of 128 and 64. Counted inside each sequence. */
    int32_t quant_block_q, quant_block_k; /* 128, 64 */
    tlamp_scales scales;                  /* BLOCK */
    tlamp_quantise quantise;              /* ONCE */
    int32_t smooth_k;                     /* 0; 1: remove K's mean over the sequence before quantising */
    /* 0; 1: q and k (without the mean under smooth_k) are rotated by H / sqrt(head_dim_qk), H Hadamard's matrix, before they
     * are quantised: no channel sticks out. head_dim_qk a power of two. High tiles take q and k as given. */
    int32_t hadamard;
    tlamp_pv pv;       /* AUTO */
    tlamp_state state; /* F32 */

    /* LAMP */
    tlamp_lamp_format lamp_format;        /* INT8 */
    tlamp_lamp_mode lamp_mode;            /* SIM */
    float delta, tau;                     /* 2^-8, 2^-1; delta = TLAMP_STAGE_ONE_OFF: no stage one */
    int32_t lamp_b_q, lamp_b_k, lamp_n_k; /* 32, 16, 4 */
    tlamp_lamp_run lamp_run;              /* LAMP */
    int32_t lamp_stochastic;              /* 0; 1: stochastic rounding, drawn from lamp_seed and the element's place */
    uint32_t lamp_seed;                   /* 42 */
    int32_t lamp_compact;                 /* 0; 1: a tile with two or more risky sub-blocks is computed high (B5) */
    int32_t lamp_clamp;                   /* 0; 1: HW: shifts below 0 are 0 instead of raising the maximum (B3) */

    /* TOLERANCE: every row's ||p_used - p_exact||_1 <= tolerance (WEIGHTS_L1), or |o_used - o_exact| per element (OUTPUT) */
    float tolerance;                     /* 0 */
    tlamp_tolerance_kind tolerance_kind; /* WEIGHTS_L1 */
    tlamp_provider provider;             /* RIGOROUS */
} tlamp_policy;

TLAMP_API void tlamp_policy_init(tlamp_policy *policy, size_t struct_size);

/* ------------------------------------------------------------------------------------------------ problem */

#define TLAMP_SPLITS_AUTO 0 /* a value of num_splits */

/* Everything that fixes a plan: bounds, dtypes, strides, masks, policy; no data pointer except to the policy, which is
 * copied. tlamp_problem_init sets the defaults named here; tlamp_set_strides fills the strides of q, k, v, o and lse. */
typedef struct tlamp_problem {
    size_t struct_size;

    /* Shapes. Dense (varlen = 0): q [batch, max_seqlen_q, num_heads_q, head_dim_qk],
     *   k [batch, max_seqlen_k, num_heads_k, head_dim_qk], v [batch, max_seqlen_k, num_heads_k, head_dim_v],
     *   o [batch, max_seqlen_q, num_heads_q, head_dim_v].
     * Packed (varlen = 1): q [total_q, num_heads_q, head_dim_qk] and so on; sequence b is rows cu_seqlens_q[b] to
     *   cu_seqlens_q[b+1]. max_seqlen_* and total_* are upper bounds for every execution; rows beyond cu_seqlens_q[batch]
     *   are not written. */
    int64_t batch;                      /* 1 */
    int64_t max_seqlen_q, max_seqlen_k; /* 0 */
    int64_t total_q, total_k;           /* 0; used with varlen only */
    int32_t varlen;                     /* 0 */
    int32_t num_heads_q, num_heads_k;   /* 0; num_heads_q a multiple of num_heads_k */
    int32_t head_dim_qk, head_dim_v;    /* 0; at least 1 */

    tlamp_dtype q_dtype, k_dtype, v_dtype, o_dtype; /* F32 */
    tlamp_strides q_stride, k_stride, v_stride, o_stride;
    tlamp_lse_strides lse_stride;

    /* Logits */
    float softmax_scale;               /* 0: 1 / sqrt(head_dim_qk) in f32; otherwise positive and finite */
    float softcap;                     /* 0: off */
    tlamp_mask_kind mask;              /* NONE */
    int64_t window_left, window_right; /* -1, -1: unlimited; inclusive. W tokens in Hugging Face terms: left W-1 */
    int32_t has_seqused_k;             /* 0; 1: tensors.seqused_k gives each sequence's used key length, which then
                                               * is Lk in every formula above */
    int32_t has_bool_mask;             /* 0; 1: tensors.bool_mask, uint8_t, nonzero = visible */
    tlamp_score_strides bool_mask_stride;
    int32_t has_bias;       /* 0; 1: tensors.bias, added to the logits. -Inf hides a key as a boolean mask
                                               * does; every finite value, -FLT_MAX too, is just a number */
    tlamp_dtype bias_dtype; /* F32 */
    tlamp_score_strides bias_stride;
    int32_t has_alibi;          /* 0; 1: tensors.alibi_slopes[b * alibi_batch_stride + h] */
    int64_t alibi_batch_stride; /* 0: slopes shared by the batch */
    int32_t has_sinks;          /* 0; 1: tensors.sinks[h], a logit without a value: counts in LSE */

    const tlamp_policy *policy; /* NULL: HIGH. One policy, or one per query head */
    int32_t num_policies;       /* 1, or num_heads_q */
    int32_t words_per_row;      /* 1; most 64-bit routing words of one row (ROUTED) */

    int32_t num_splits; /* TLAMP_SPLITS_AUTO; parts that the keys of a sequence are split into, for calls with fewer
                         * tasks than threads: each part is a task of its own, and their states are merged in the order
                         * of the keys. A part is a run of whole key tiles (block_n, at most 64 keys); shorter sequences
                         * have empty parts. AUTO: parts of 512 keys where max_seqlen_q is at most 16 and batch *
                         * num_heads_k below 64, else 1; LAMP, plain C on devices, f16 state on tensor cores: 1. There
                         * HIGH with up to 16 queries may have a rule of its own (docs/gpu.md, "Decoding"). Bits depend on
                         * this number, not on threads. More than 1 is UNSUPPORTED for those three.
                         * O is summed key by key in f32: from 2^24 keys of one part on, sums of equal weights stop growing.
                         * tlamp_reference bounds that error, and promises nothing for rows of 5.6 million keys or more */

    /* KV cache (ALGORITHMS A7): page_size 0 is none, k and v are read as given */
    int32_t page_size;                    /* 0; else tokens per page, a multiple of 64 */
    int64_t num_pages, max_pages_per_seq; /* 0 */
} tlamp_problem;

TLAMP_API void tlamp_problem_init(tlamp_problem *problem, size_t struct_size);

typedef int32_t tlamp_tensor_layout;
enum {
    TLAMP_TENSOR_BSHD = 0, /* [batch, seq, head, dim]: FlashAttention, "NHD" */
    TLAMP_TENSOR_BHSD = 1, /* [batch, head, seq, dim]: PyTorch, "HND" */
    TLAMP_TENSOR_THD = 2   /* [total, head, dim]: packed sequences */
};

/* Fills q_stride, k_stride, v_stride, o_stride and lse_stride for dense tensors of that layout from the shapes already set:
 * lengths, totals with varlen, heads and dims. LSE becomes [batch, head, seq], packed [head, total_q]. */
TLAMP_API tlamp_status tlamp_set_strides(tlamp_problem *problem, tlamp_tensor_layout layout, tlamp_error *err);

/* ------------------------------------------------------------------------------------------------ plan */

typedef struct tlamp_plan tlamp_plan;

/* Memory from the caller. alloc returns size bytes aligned to align (a power of two), or NULL. */
typedef struct tlamp_allocator {
    void *context;
    void *(*alloc)(void *context, size_t size, size_t align);
    void (*free)(void *context, void *memory);
} tlamp_allocator;

/* The status tlamp_plan_create would give, without memory or data. */
TLAMP_API tlamp_status tlamp_supported(const tlamp_problem *problem, tlamp_error *err);

/* Checks the problem and fixes tiles, splits and kernel. One allocation; freed by tlamp_plan_destroy. allocator NULL:
 * malloc; otherwise copied. *plan is set only on success. */
TLAMP_API tlamp_status tlamp_plan_create(tlamp_plan **plan, const tlamp_problem *problem,
                                         const tlamp_allocator *allocator, tlamp_error *err);
/* The same into memory of the caller's (aligned to 64, tlamp_plan_size() bytes), no allocation; *plan points into it.
 * Nothing to destroy. More than TLAMP_PLAN_INLINE_POLICIES policies need tlamp_plan_create. */
#define TLAMP_PLAN_INLINE_POLICIES 1
TLAMP_API size_t tlamp_plan_size(void);
TLAMP_API tlamp_status tlamp_plan_init(tlamp_plan **plan, void *memory, size_t bytes, const tlamp_problem *problem,
                                       tlamp_error *err);
TLAMP_API void tlamp_plan_destroy(tlamp_plan *plan); /* NULL is fine */

/* Bytes tlamp_execute needs on the host with num_threads threads (0: the number it would choose). SIZE_MAX: it does not fit.
 * Aligned to TLAMP_WORKSPACE_ALIGN; nothing is held there between calls. Keep it: a fresh one of many megabytes costs page
 * faults with every call. Large pages help (madvise MADV_HUGEPAGE; a workspace that the library allocates itself asks for
 * them). */
#define TLAMP_WORKSPACE_ALIGN 64
TLAMP_API size_t tlamp_plan_workspace_size(const tlamp_plan *plan, int32_t num_threads);
/* Bytes of device memory tlamp_execute needs with exec.device >= 0 and TLAMP_MEMORY_DEVICE, aligned alike, on whichever of the
 * library's device paths runs the plan; counters, and INT8 codes that are not aligned to 16 bytes, take some more by themselves.
 * 0: nothing is needed, or there is no device. */
TLAMP_API size_t tlamp_plan_device_workspace_size(const tlamp_plan *plan);

/* The name of the kernel that will run, e.g. "tlamp_fwd_dx__scalar". Lives as long as the library. */
TLAMP_API const char *tlamp_plan_kernel_name(const tlamp_plan *plan);
/* The same with exec.device >= 0, e.g. "tlamp_fwd_dx__portable": what runs where tensors are aligned to 16 bytes and no routing
 * row has more than 64 groups, and with k and v in INT8 they are in device memory; others may take a more general kernel. "": there is no device, or none of its kernels runs it. */
TLAMP_API const char *tlamp_plan_device_kernel_name(const tlamp_plan *plan);

/* The arithmetic of P V that this kernel uses: what the policy asks for, or what AUTO has become on this machine. Never AUTO,
 * except of a NULL plan. Put it into the policy to have tlamp_reference bound just that. On a device P has the type
 * of V under AUTO, f16 where that is INT8. */
TLAMP_API tlamp_pv tlamp_plan_pv(const tlamp_plan *plan);

/* ------------------------------------------------------------------------------------------------ execution */

/* What a call did, in numbers. All are filled on every successful call that asks for them.
 * Units: a tile is block_m query rows by block_n keys of one query head; a cell is one (row, key) pair; a group is one bit
 * of one KV head's routing row. Only what some row sees by causal kind, window and lengths counts (boolean masks and bias
 * do not), ALGORITHMS A4. Under INT8 every legal group counts as INT8, under HIGH and X3 none. */
typedef struct tlamp_counters {
    size_t struct_size;
    int64_t groups, groups_int8;
    int64_t tiles, tiles_int8;
    int64_t cells, cells_int8;
    int64_t
        nonfinite_tokens; /* tokens left out of INT8 because they hold NaN or Inf; under TLAMP_QUANTISE_FLY those of Q
                               * only. Queries count where their rows meet an INT8 tile; on tensor cores all that see a key */
    /* LAMP. A tile is here lamp_b_q rows by block_n keys; what every kind of mask hides from all rows does not count */
    int64_t sub_blocks, sub_blocks_recomputed; /* legal ones; of them forced + stage_one + stage_two */
    int64_t stage_one, stage_two, forced; /* recomputed by stage one, by stage two, because the routing word says so */
    int64_t sub_blocks_executed;          /* computed high in the end: more under lamp_compact */
    int64_t tiles_recomputed[3];          /* tiles with 0, 1, 2 or more recomputed sub-blocks */
    int64_t histogram[33];                /* tiles with 0, 1, 2, ... 32 of them */
    int64_t saturated_logits;             /* HW: logits that left +-448 or +-511.75 at any step of their sum */
    float largest_logit;                  /* largest magnitude of the finite final logits */
} tlamp_counters;

/* The data of one execution. Pointers that the problem does not ask for may be NULL and are ignored. */
typedef struct tlamp_tensors {
    size_t struct_size;
    const void *q, *k, *v; /* shapes at tlamp_problem; may be NULL where the tensor has no element */
    void *o;               /* written for every row of every sequence */
    float *lse;            /* NULL, or [batch, num_heads_q, seq_q] by lse_stride */

    const int32_t *cu_seqlens_q; /* varlen: batch + 1 entries, [0] = 0, not decreasing */
    const int32_t *cu_seqlens_k;
    const int32_t *seqused_k;  /* has_seqused_k: batch entries, each 0 .. the sequence's key length */
    const uint8_t *bool_mask;  /* has_bool_mask: [batch, num_heads_q, seq_q, seq_k]; nonzero = visible */
    const void *bias;          /* has_bias: the same shape, of bias_dtype */
    const float *alibi_slopes; /* has_alibi: [batch or 1, num_heads_q] */
    const float *sinks;        /* has_sinks: [num_heads_q] */

    /* ROUTED, and optionally LAMP, where bit 1 permits cheap logits and 0 forces high ones (ALGORITHMS A3, A4, A6, C0). Group g of routing
     * row m, KV head h of sequence b is bit g % 64 of
     *   words[b * batch + h * head + m * row + g / 64]; 1 = INT8. Packed sequences: row is cu_tm[b] + m instead, with
     *   cu_tm the prefix sums of ceil(Lq_b / block_m), and batch is ignored. Strides in words, 0 shares. Bits of groups
     *   that no row of the routing row sees are ignored.
     * A group is `group` key tiles of block_n keys. groups NULL: the automatic size (tlamp_auto_group) of each sequence's
     *   key length, max_seqlen_k when dense; otherwise batch entries. */
    const uint64_t *words;
    int64_t words_stride_batch, words_stride_head, words_stride_row;
    const int32_t *groups;

    /* Operands the caller has quantised (dtype TLAMP_INT8 in the problem): codes -127 .. 127 through q, k, v above, scales
     * here: [blocks][heads], a block being quant_block_q (q) or quant_block_k (k, v) tokens of one sequence, or one token
     * under TLAMP_SCALES_TOKEN; the blocks of one sequence follow those of the one before. INT8 tiles use the codes as they
     * are; high tiles use scale * code. Certificates and errors refer to scale * code. So a scale that is NaN or Inf makes
     * elements that are, and the rule for those holds: rows that see one are NaN, others are not touched. Scales smaller than
     * 2^-126 may count as 0. */
    const float *q_scale, *k_scale, *v_scale;
    const int32_t *block_table; /* paged cache: [batch, max_pages_per_seq] */
    const void *prepared;       /* keys and values from tlamp_kv_prepare; NULL: k and v are read */

    /* Further outputs, NULL where not wanted */
    float *certificate; /* per row, shaped as lse: a bound on ||p_used - p_exact||_1 (TOLERANCE: at most its tol) */
    float *group_statistics; /* [num_heads_k, routing rows, groups], for words of a next call (ALGORITHMS C4) */
    tlamp_counters *counters;
} tlamp_tensors;

TLAMP_API void tlamp_tensors_init(tlamp_tensors *tensors, size_t struct_size);

/* Runs task(task_context, index) for every index in [0, count), on any threads, in any order, and returns when all are
 * done. worker (0 .. num_threads-1) names the thread: no two tasks run at once with the same worker. An execution calls it
 * once for each of its phases that has work: to look at, to pack and to quantise keys and values, for the queries, to merge
 * splits. */
typedef void (*tlamp_task)(void *task_context, int64_t index, int32_t worker);
typedef void (*tlamp_parallel_for)(void *context, int64_t count, tlamp_task task, void *task_context);

/* DEVICE memory: every tensor is a device pointer (q, k, v, o, lse, words, scales, mask, bias, slopes, sinks); cu_seqlens,
 * seqused_k, groups and counters stay host memory. The call
 * runs on the OpenMP runtime's own stream and is complete on return: a caller with work in flight on a stream of its own
 * waits for that first (PyTorch: torch.cuda.current_stream().synchronize()). HOST memory is copied there and back. */
typedef int32_t tlamp_memory;
enum { TLAMP_MEMORY_HOST = 0, TLAMP_MEMORY_DEVICE = 1 };

/* How to run a call. NULL or zeros: OpenMP with its default number of threads, on the host. */
typedef struct tlamp_exec {
    size_t struct_size;
    int32_t num_threads; /* 0: OpenMP's default, 1 inside a parallel region. Calls too small for so many threads run on
                          * fewer. With parallel_for: workers, >= 1 */
    tlamp_parallel_for parallel_for; /* NULL: OpenMP */
    void *parallel_context;
    tlamp_allocator allocator; /* alloc NULL: malloc. Used only where the workspace argument is NULL */
    tlamp_memory memory;       /* HOST: all pointers are host memory; DEVICE: they are device memory */
    int32_t device;            /* -1: the host */
} tlamp_exec;

TLAMP_API void tlamp_exec_init(tlamp_exec *exec, size_t struct_size);

/* One attention. Checks lengths, cu_seqlens and pointers (O(batch)) before touching any output. workspace: at least
 * tlamp_plan_workspace_size(plan, exec->num_threads) bytes, aligned to 64; NULL takes it from exec's allocator and gives
 * it back. With TLAMP_MEMORY_DEVICE: tlamp_plan_device_workspace_size(plan) bytes of the device's; a device that works on HOST
 * memory takes its own. exec may be NULL. */
TLAMP_API tlamp_status tlamp_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                                     void *workspace, size_t workspace_bytes, tlamp_error *err);

/* Plan, execute and forget in one call. */
TLAMP_API tlamp_status tlamp_attention(const tlamp_problem *problem, const tlamp_tensors *tensors,
                                       const tlamp_exec *exec, tlamp_error *err);

/* Merges two partial results of the same rows over disjoint keys (each a softmax over its own keys, with its LSE) into a:
 *   lse = log(exp(lse_a) + exp(lse_b)); o = o_a exp(lse_a - lse) + o_b exp(lse_b - lse)
 * (0, -Inf) is neutral. Where an LSE is NaN or +Inf its part saw a logit that is NaN or +Inf: the row becomes NaN, LSE and
 * all, as the softmax over all keys is. (FlashAttention-2 writes +Inf for empty rows: make it -Inf first.) f32, rows x head_dim
 * with row strides in elements; lse dense [rows]. In place on a. INVALID_ARGUMENT for negative rows, a head_dim below 1, NULL
 * with rows > 0, or an o_a_stride of 0. */
TLAMP_API tlamp_status tlamp_merge(int64_t rows, int32_t head_dim, float *o_a, int64_t o_a_stride, float *lse_a,
                                   const float *o_b, int64_t o_b_stride, const float *lse_b, tlamp_error *err);

/* Packs (and quantises) keys and values once, for many calls with the same plan: bytes needed, and the packing itself.
 * This version: TLAMP_UNSUPPORTED. */
TLAMP_API tlamp_status tlamp_kv_prepared_size(const tlamp_plan *plan, size_t *bytes, tlamp_error *err);
TLAMP_API tlamp_status tlamp_kv_prepare(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                                        void *prepared, size_t bytes, tlamp_error *err);

/* ------------------------------------------------------------------------------------------------ routing layouts */

typedef int32_t tlamp_layout_kind;
enum {
    TLAMP_LAYOUT_ONE = 0,           /* every legal group INT8 */
    TLAMP_LAYOUT_ZERO = 1,          /* none */
    TLAMP_LAYOUT_BAND = 2,          /* HIGH within `width` groups of the diagonal */
    TLAMP_LAYOUT_GLOBAL = 3,        /* HIGH in the first `width` groups */
    TLAMP_LAYOUT_ROW_RAND = 4,      /* a random subset of each row HIGH */
    TLAMP_LAYOUT_ALIGN_SPARSE = 5,  /* HIGH: right-aligned, ceil(alpha + beta m) groups */
    TLAMP_LAYOUT_BIGBIRD = 6,       /* band, global and random */
    TLAMP_LAYOUT_SPTRANS = 7,       /* strided sparse transformer pattern, then retargeted */
    TLAMP_LAYOUT_SPTRANS_SCALED = 8 /* the same pattern in units of groups; retargeted only on request */
};

/* The grid a layout is built on. Lengths are at most 2^40 and their product 2^62. */
typedef struct tlamp_geometry {
    size_t struct_size;
    int64_t seqlen_q, seqlen_k;
    int32_t block_m, block_n; /* 0: 128, 64 */
    int32_t group;            /* key tiles per group; 0: automatic */
    tlamp_mask_kind mask;
    int64_t window_left, window_right; /* -1: unlimited. tlamp_geometry_init sets -1 */
} tlamp_geometry;

TLAMP_API void tlamp_geometry_init(tlamp_geometry *geometry, size_t struct_size);

typedef struct tlamp_layout {
    size_t struct_size;
    tlamp_layout_kind kind;
    double coverage;  /* wanted INT8 share of the legal groups, 0 .. 1; ONE and ZERO use it only to retarget */
    uint32_t seed;    /* of the random layouts, SPTRANS and retarget; tlamp_layout_init sets 42 */
    int32_t retarget; /* 0: as the kind says; 1: shift single groups, in the order of `seed`, until the tile-weighted
                           * coverage is met (ALGORITHMS A5) */
} tlamp_layout;

TLAMP_API void tlamp_layout_init(tlamp_layout *layout, size_t struct_size);

/* What was built: the solved parameters (0 where the layout has none, or where a coverage of exactly 0 or 1 took its place),
 * and the three coverages of ALGORITHMS A4 (0 where nothing is legal). */
typedef struct tlamp_layout_report {
    size_t struct_size;
    int64_t rows, groups;  /* T_m, T_mask */
    int32_t group;         /* g */
    int32_t words_per_row; /* at least 1 */
    double coverage_group, coverage_tile, coverage_cell;
    int64_t width;      /* band: w, -1 none; global: n_g; sptrans*: stride s, tokens */
    int64_t width2;     /* sptrans*: c, tokens */
    double alpha, beta; /* align_sparse */
} tlamp_layout_report;

/* g such that ceil(seqlen_k / (g * block_n)) <= 64 (ALGORITHMS A3). 1 for seqlen_k <= 64 * block_n. -1 where block_n is
 * not allowed or seqlen_k is outside 0 .. 2^40. */
TLAMP_API int32_t tlamp_auto_group(int64_t seqlen_k, int32_t block_n);

/* Words needed by tlamp_layout_build for one routing map: rows * words_per_row. -1 where the geometry is invalid. */
TLAMP_API int64_t tlamp_layout_words(const tlamp_geometry *geometry);

/* Builds a routing map: words[row * words_per_row + w], count words at least. A pure function of its arguments. Bits of
 * illegal groups are 0. report may be NULL. */
TLAMP_API tlamp_status tlamp_layout_build(const tlamp_layout *layout, const tlamp_geometry *geometry, uint64_t *words,
                                          int64_t count, tlamp_layout_report *report, tlamp_error *err);

/* The same map, built where exec says. exec NULL, or HOST memory and device -1: on the host, as tlamp_layout_build does. With a
 * device the parameters are solved on the host, the words are written on the device, and only the report's numbers come back;
 * the bits are those of tlamp_layout_build for every layout, geometry and seed. words (count of them, 64 bits each) is device
 * memory of that device with TLAMP_MEMORY_DEVICE (device -1: the first), and host memory otherwise. Layouts that draw at random
 * or are retargeted follow one random stream: one device thread walks it, in milliseconds for a map of 512 rows. The call takes
 * device memory of its own for its time: 48 bytes a row, and 8 for each legal group where it draws or retargets. It runs on the
 * OpenMP runtime's own stream and is complete on return. Of exec only memory and device count. On error (those of
 * tlamp_layout_build; UNSUPPORTED_HARDWARE without the device or in a library without offload; OUT_OF_MEMORY, DEVICE_ERROR)
 * report is untouched, and so are the words but after DEVICE_ERROR. Any thread may call it, with words of its own. */
TLAMP_API tlamp_status tlamp_layout_build_on(const tlamp_layout *layout, const tlamp_geometry *geometry,
                                             const tlamp_exec *exec, uint64_t *words, int64_t count,
                                             tlamp_layout_report *report, tlamp_error *err);

/* The three coverages of a map from anywhere (rows, groups, group, words_per_row and coverage_* of the report). */
TLAMP_API tlamp_status tlamp_layout_measure(const tlamp_geometry *geometry, const uint64_t *words, int64_t count,
                                            tlamp_layout_report *report, tlamp_error *err);

/* "one", "band", ...; NULL for an unknown kind. */
TLAMP_API const char *tlamp_layout_name(tlamp_layout_kind kind);

/* ------------------------------------------------------------------------------------------------ reference */

/* Attention in double precision with materialised scores, as its definition reads: to check against. Every array is dense
 * and may be NULL. R is batch * max_seqlen_q when dense, total_q when packed; row index r = b * max_seqlen_q + i, or the
 * packed row.
 *   o, abs_pv, o_bound     [R, num_heads_q, head_dim_v]     abs_pv: sum_j p_j |v_j|
 *   lse, lse_bound         [num_heads_q, R]
 *   weights                [num_heads_q, R, max_seqlen_k]   hidden keys: 0
 * o_bound and lse_bound: the largest error the problem's policy may make on that element (ALGORITHMS C1, C2), +Inf where
 * nothing is promised (f32 could overflow, say), NaN where the reference is NaN or infinite (there the pattern must agree),
 * and 0 for an empty row. Rows that no sequence owns are left untouched. tensors.o is not needed. With pv AUTO the bounds
 * are those of what AUTO is on this machine (tlamp_plan_pv).
 * row_step: 0 or 1 computes every row; n > 1 a sample, the rows r of head h with (r + h) % n == 0: the entries of the other
 * rows are left untouched. What a row's result and bounds depend on stays as it is, so they are the same bits. */
typedef struct tlamp_reference_outputs {
    size_t struct_size;
    double *o, *lse, *weights, *abs_pv, *o_bound, *lse_bound;
    int64_t row_step;
} tlamp_reference_outputs;

/* Slow and serial unless exec says otherwise; host memory only. */
TLAMP_API tlamp_status tlamp_reference(const tlamp_problem *problem, const tlamp_tensors *tensors,
                                       const tlamp_reference_outputs *outputs, const tlamp_exec *exec,
                                       tlamp_error *err);

/* ------------------------------------------------------------------------------------------------ machine */

/* Kernels built into this library, best first. Returns their number, and fills at most count; kernels NULL or count 0: only
 * the number. kernels[0].struct_size must be set, to sizeof(tlamp_kernel_info): it is the size of all of the array's elements.
 * -1 where it is not (smaller than a size_t), and nothing is filled.
 *   available  this machine can run it, and TLAMP_MAX_ISA allows it
 *   slow       it would, but its instructions are slower here than those of a lesser kernel (VDPBF16PS on processors of
 *              Intel's with AMX), so that it is not available unless TLAMP_MAX_ISA names its very instruction set */
typedef struct tlamp_kernel_info {
    size_t struct_size;
    const char *name, *isa; /* live as long as the library */
    int32_t available, slow;
} tlamp_kernel_info;
TLAMP_API int32_t tlamp_kernels(tlamp_kernel_info *kernels, int32_t count);

/* The best instruction set this process will use ("scalar", ...), after the environment variable TLAMP_MAX_ISA, which is
 * read once, at first use; empty is as good as not set. A value that is no name of an instruction set allows nothing: this
 * gives "none", and plans and tlamp_supported give INVALID_ARGUMENT with the field "TLAMP_MAX_ISA".
 * AMX: Linux gives tile registers to processes that ask. On a processor that has them, and unless TLAMP_MAX_ISA is below amx,
 * the first call that looks for a kernel (this one, tlamp_kernels, a plan, tlamp_supported, tlamp_reference) asks, for the
 * whole process and for good. Signal frames grow then: alternate signal stacks need sysconf(_SC_SIGSTKSZ) bytes. A refusal
 * only means that kernels for AMX are not available. */
TLAMP_API const char *tlamp_isa(void);
/* Lowers it, as TLAMP_MAX_ISA does: no kernel above it is taken, and kernels of just this instruction set are, even where
 * they are slow. INVALID_ARGUMENT for an unknown name, or once a plan was made or tlamp_supported
 * has answered OK. */
TLAMP_API tlamp_status tlamp_set_max_isa(const char *isa, tlamp_error *err);

/* Offload devices that can run device memory calls. */
TLAMP_API int32_t tlamp_num_devices(void);

/* f16 and bf16 to f32 and back (round to nearest even). */
TLAMP_API float tlamp_f16_to_f32(uint16_t x);
TLAMP_API uint16_t tlamp_f32_to_f16(float x);
TLAMP_API float tlamp_bf16_to_f32(uint16_t x);
TLAMP_API uint16_t tlamp_f32_to_bf16(float x);

#ifdef __cplusplus
}
#endif
#endif
