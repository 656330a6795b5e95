#include "count.h"

#include <omp.h>

#include "backend.h"
#include "core/routing.h"
#include "counters.h"
#include "schedule.h"
#include "status.h"

/* The words of one sequence. */
typedef struct {
    int64_t rows, each; /* routing rows of a KV head, words of a row */
} extent;

static extent extent_of(const tl_call *call, const tl_sequence *s)
{
    const int64_t groups = tl_num_groups(s->lk, call->policy->block_n, s->group);
    return (extent){s->words ? tl_ceil_div(s->lq, call->policy->block_m) : 0, tl_ceil_div(groups, 64)};
}

/* Densely, [KV head][routing row][word]. 0, or what omp_target_memcpy returns. */
static int fetch_words(uint64_t *to, const tl_call *call, const tl_sequence *s, int32_t device)
{
    const extent x = extent_of(call, s);
    const int whole = call->words_row == x.each; /* the rows of a head lie side by side */
    const int64_t pieces = whole ? 1 : x.rows, words = whole ? x.rows * x.each : x.each;
    int failed = 0;
    for (int32_t h = 0; h < call->shape.heads_k; h++)
        for (int64_t m = 0; m < pieces && words; m++)
            failed |= omp_target_memcpy(to + (h * x.rows + m) * x.each,
                                        s->words + h * call->words_head + m * call->words_row,
                                        (size_t)words * sizeof *to, 0, 0, omp_get_initial_device(), device);
    return failed;
}

tlamp_status tl_count_geometry(tlamp_counters *counters, const tlamp_plan *plan, const tlamp_tensors *tensors,
                               const tlamp_exec *exec, tlamp_error *err)
{
    const tlamp_allocator memory = tl_allocator(&exec->allocator);
    const tl_call call = tl_make_call(plan, tensors);
    const int64_t batch = plan->problem.batch;
    const size_t bytes = tl_mul_size((size_t)batch, sizeof(tl_sequence));
    if (batch == 0) return TLAMP_OK;
    tl_sequence *sequences = memory.alloc(memory.context, bytes, TLAMP_WORKSPACE_ALIGN);
    if (!sequences) return tl_no_memory(bytes, err);
    tl_make_sequences(sequences, plan, tensors);

    size_t most = 0;
    for (int64_t b = 0; b < batch; b++) {
        const extent x = extent_of(&call, &sequences[b]);
        const size_t words = tl_mul_size((size_t)(x.rows * x.each), (size_t)call.shape.heads_k * sizeof(uint64_t));
        if (words > most) most = words;
    }
    const int fetches = most && exec->memory == TLAMP_MEMORY_DEVICE;
    uint64_t *here = fetches ? memory.alloc(memory.context, most, TLAMP_WORKSPACE_ALIGN) : NULL;
    tlamp_status status = fetches && !here ? tl_no_memory(most, err) : TLAMP_OK;
    for (int64_t b = 0; b < batch && !status; b++) {
        tl_sequence s = sequences[b];
        tl_call its = call;
        if (here && s.words) {
            const extent x = extent_of(&call, &s);
            if (fetch_words(here, &call, &s, exec->device)) status = tl_copy_failed(err);
            s.words = here;
            its.words_row = x.each;
            its.words_head = x.rows * x.each;
        }
        if (!status) tl_count_sequence(&its, &s, counters);
    }
    if (here) memory.free(memory.context, here);
    memory.free(memory.context, sequences);
    return status;
}
