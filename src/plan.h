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
    size_t prepared_bytes; /* for the keys of one sequence of max_seqlen_k, all KV heads: what one wave may use */
    size_t scratch_bytes;  /* of one worker */
    tlamp_allocator allocator;
    int32_t allocated;
};

/* What tl_prepared points at for one KV head of a sequence of lk keys. */
tl_prepared tl_lay_out_prepared(const tlamp_plan *plan, int64_t lk, tl_arena *arena);
/* The same in bytes for all KV heads. */
size_t tl_prepared_size(const tlamp_plan *plan, int64_t lk);
/* Units of unit_keys that must be surveyed and packed before a sequence's tasks run; 0 where nothing is made. */
int64_t tl_units(const tlamp_plan *plan, int64_t lk);
int tl_needs_survey(const tlamp_plan *plan);
int tl_needs_pack(const tlamp_plan *plan);

/* The caller's allocator, or malloc. */
tlamp_allocator tl_allocator(const tlamp_allocator *given);

/* The head of every workspace: what an execution keeps per sequence and per worker. */
typedef struct {
    tl_sequence *sequences;       /* [batch] */
    tl_worker_counters *counters; /* [workers], 64 bytes apart */
    unsigned char *prepared;
    unsigned char *scratch; /* [workers] */
} tl_workspace;
tl_workspace tl_lay_out_workspace(const tlamp_plan *plan, int32_t workers, tl_arena *arena);
#define TL_COUNTERS_STRIDE ((sizeof(tl_worker_counters) + 63) / 64 * 64)

#endif
