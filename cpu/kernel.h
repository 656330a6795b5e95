/* What the host hands a CPU kernel. A kernel is one tl_kernel, registered by one line of cpu/kernels.def. */
#ifndef TL_CPU_KERNEL_H
#define TL_CPU_KERNEL_H

#include <stddef.h>

#include "core/index.h"
#include "core/task.h"
#include "tilelamp/tilelamp.h"

/* Fixed by the plan: everything that decides how much memory a kernel needs. */
typedef struct {
    int32_t head_dim_qk, head_dim_v;
    int32_t q_dtype, k_dtype, v_dtype;
    int32_t heads_q, heads_k, group_heads; /* group_heads = heads_q / heads_k */
    int32_t tile_keys;                     /* execution key tile: block_n, at most 64 (LAMP: block_n) */
    int32_t high;                          /* some tile may be high */
    int32_t int8;                          /* some tile may be INT8 */
    int32_t code_planes;             /* of codes of Q and K: 2 under X3, whose tiles take the INT8 route; else 1 */
    int32_t int8_values;             /* P V in INT8 */
    int32_t fly;                     /* INT8 keys and values are made by each task, not once per call */
    int32_t task_tokens, task_heads; /* most query tokens, and query heads of one KV head, of one task */
    int32_t part_tokens;             /* tokens of a routing row, at most 128: no task crosses a part's end */
    int32_t one_task;                /* a KV head of a sequence has one task */
    int64_t unit_keys;               /* keys packed at once: an INT8 scale covers no more */
    int32_t seen, mean;              /* before packing it is found which keys are seen; and their mean */
    int32_t packs;                   /* the kernel packs keys before the tasks run */
    int32_t splits;                  /* most parts that a sequence's keys are split into */
    int32_t split_tiles;             /* key tiles of each; 0: as many as make `splits` parts of a sequence */
    int32_t heads_first;             /* all heads meet one part before the next */
    const tlamp_policy *policy;
} tl_shape;

/* One sequence of an execution. */
typedef struct {
    int64_t batch;              /* index in the batch */
    int64_t q_start, k_start;   /* first row in the packed tensors; 0 when dense */
    int64_t lq, lk;             /* lk: keys used */
    int64_t q_blocks, k_blocks; /* scale blocks of earlier sequences; for operands that the caller quantised */
    int32_t group;              /* key tiles of block_n per routing group */
    const uint64_t *words;      /* of KV head 0, routing row 0; NULL unless routed */
    tl_mask_geometry mask;
    int64_t unit_begin, task_begin; /* of this sequence among those of its wave */
    unsigned char *prepared;        /* what is made once per KV head: heads_k areas, one after another */
    size_t prepared_bytes;          /* of one such area */
    int64_t row_begin;              /* its first row among the rows of all sequences */
} tl_sequence;

/* What the splits of the keys leave for each row, in the order [row][query head][split]; NULL: keys are not split. */
typedef struct {
    float *o; /* [..][head_dim_v] */
    float *m, *l;
} tl_partials;

/* One execution. */
typedef struct {
    tl_shape shape;
    const tlamp_policy *policy;
    tl_operand q, k, v;
    tl_output o;
    float *lse;
    tlamp_lse_strides lse_stride;
    tl_score_operand bool_mask, bias;
    const float *alibi_slopes, *sinks;
    int64_t alibi_batch_stride;
    float softmax_scale, softcap;
    int64_t words_head, words_row; /* strides */
    tl_partials partials;
} tl_call;

/* What is made once per (sequence, KV head), before any task of the sequence runs. */
typedef struct {
    unsigned char *seen; /* [lk] 1: some row of the head's group sees the key; NULL: all keys that geometry shows */
    float *mean;         /* [head_dim_qk] K's mean over the seen keys; NULL without smooth_k */
    float *unit_sums;    /* [units][head_dim_qk] of which the mean is made */
    int64_t *unit_counts;
    void *packed; /* the kernel's own: packed_bytes() */
} tl_prepared;

typedef struct {
    int64_t nonfinite_tokens;
    int64_t lamp[TL_COUNTS];
    float largest_logit;
} tl_worker_counters;

typedef struct {
    const char *name, *isa;
    /* Does it run this checked problem? Whatever it does not look at, every kernel does. */
    int (*supports)(const tlamp_problem *);
    int32_t lamp;      /* 1: runs LAMP policies; 0: runs the others */
    int32_t planes;    /* 1: f32 products are made of bf16 planes, wherever it computes any (ALGORITHMS F) */
    int32_t max_rows;  /* of a task: task_tokens * task_heads is at most this */
    int32_t one_block; /* 1: a task is one row block (of LAMP: at most lamp_b_q tokens of one head) */
    /* Memory: of one worker; and of what pack makes for the lk keys of one KV head (0: there is nothing to pack).
     * Multiples of 64. */
    size_t (*scratch_bytes)(const tl_shape *);
    size_t (*packed_bytes)(const tl_shape *, int64_t lk);
    /* tl_survey_unit (src/survey.h). NULL: that one. */
    void (*survey)(const tl_call *, const tl_sequence *, const tl_prepared *, int32_t kv_head, int64_t unit,
                   void *scratch);
    /* Packs keys [unit * unit_keys, ...) of one KV head. */
    void (*pack)(const tl_call *, const tl_sequence *, const tl_prepared *, int32_t kv_head, int64_t unit,
                 void *scratch, tl_worker_counters *);
    /* Attention of one task: head is its first query head. */
    void (*attend)(const tl_call *, const tl_sequence *, const tl_prepared *, const tl_task *, int32_t head,
                   void *scratch, tl_worker_counters *);
    /* Joins what the task's splits have left (attend with task->splits above 1). NULL: keys cannot be split. */
    void (*merge)(const tl_call *, const tl_sequence *, const tl_prepared *, const tl_task *, int32_t head,
                  void *scratch, tl_worker_counters *);
} tl_kernel;

#endif
