/* A plan: the checked problem, the kernel that runs it, and how its work is cut. Immutable. */
#ifndef TL_PLAN_H
#define TL_PLAN_H

#include "kernel.h"
#include "tilelamp/tilelamp.h"
#include "workspace.h"

struct tlamp_plan {
    tlamp_problem problem; /* complete: defaults filled in; policy points to the next field */
    tlamp_policy policy;
    tl_shape shape;
    const tl_kernel *kernel;
    tlamp_pv pv;           /* of the kernel; the policy's may be AUTO */
    size_t prepared_bytes; /* for the keys of one sequence of max_seqlen_k, all KV heads: what one wave may use */
    size_t scratch_bytes;  /* of one worker */
    tlamp_allocator allocator;
    int32_t allocated;
};

/* The plan of the same problem for another kernel. */
void tl_plan_with_kernel(tlamp_plan *to, const tlamp_plan *plan, const tl_kernel *kernel);

/* Bytes of what is prepared of a sequence of lk keys, all KV heads. */
size_t tl_prepared_size(const tlamp_plan *plan, int64_t lk);

/* Most parts that the keys of a sequence are split into. */
int32_t tl_splits(const tlamp_problem *problem);

/* The caller's allocator, or malloc. */
tlamp_allocator tl_allocator(const tlamp_allocator *given);

/* The head of every workspace: what an execution keeps per sequence and per worker. */
typedef struct {
    tl_sequence *sequences;       /* [batch] */
    tl_worker_counters *counters; /* [workers], 64 bytes apart */
    unsigned char *prepared;
    unsigned char *scratch; /* [workers] */
    _Atomic int64_t *done;  /* [batch][heads_k] where keys are packed: a KV head's units and tasks that are done */
    tl_partials partials;
} tl_workspace;
tl_workspace tl_lay_out_workspace(const tlamp_plan *plan, int32_t workers, tl_arena *arena);
#define TL_COUNTERS_STRIDE ((sizeof(tl_worker_counters) + 63) / 64 * 64)

#endif
