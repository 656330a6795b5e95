/* One kernel of the portable path. The including file has included the text of a scalar kernel (its functions pack and attend)
 * with TL_ROW_BLOCKS 1 and TL_SYMBOL, and says
 *   TL_PORTABLE   the symbol of the tl_portable_kernel
 *   TL_LAUNCH     a name that no other instantiation has: clang names a region after its function and its place in this file
 *   TL_PACKS      1: the kernel has a function pack */
#include <omp.h>

#include "portable.h"

/* Units or tasks worker, worker + workers, ... of a phase. */
static void work(const tl_portable_run *run, tl_phase phase, int64_t worker)
{
    const tl_wave *w = &run->wave;
    void *scratch = run->scratch + run->scratch_bytes * (size_t)worker;
    tl_worker_counters *counters = (void *)(run->counters + run->counters_bytes * (size_t)worker);
    const int64_t count = phase == TL_PHASE_ATTEND ? w->tasks
                          : phase == TL_PHASE_MEAN ? w->count * run->call.shape.heads_k
                                                   : w->units;
    for (int64_t i = worker; i < count; i += run->workers) {
        if (phase == TL_PHASE_SURVEY) {
            tl_survey_work(w, i, scratch);
        } else if (phase == TL_PHASE_MEAN) {
            tl_mean_work(w, i);
        } else if (phase == TL_PHASE_ATTEND) {
            const tl_task_work k = tl_task_at(w, i);
            attend(&run->call, k.seq, &k.prepared, &k.task, k.head, scratch, counters);
        } else {
#if TL_PACKS
            const tl_unit_work u = tl_unit_at(w, i);
            pack(&run->call, u.seq, &u.prepared, u.kv_head, u.unit, scratch, counters);
#endif
        }
    }
}

enum { THREADS = TILELAMP_TEAM_THREADS }; /* workers of a team; CMake says how many suit the device */

#if TILELAMP_BARE_ONLY /* no device runtime to link: threads are counted here */

static int64_t worker_of_thread(void)
{
#ifdef __NVPTX__
    return (int64_t)__nvvm_read_ptx_sreg_ctaid_x() * THREADS + __nvvm_read_ptx_sreg_tid_x();
#else
    return -1; /* the host */
#endif
}

static int TL_LAUNCH(const tl_portable_run *run, tl_phase phase, int64_t workers, int32_t device)
{
    const int blocks = (int)tl_ceil_div(workers, THREADS);
    int on_host = 0;
#pragma omp target teams ompx_bare num_teams(blocks) thread_limit(THREADS) device(device) is_device_ptr(run)           \
    map(tofrom                                                                                                         \
        : on_host)
    {
        const int64_t worker = worker_of_thread();
        if (worker < 0)
            on_host = 1;
        else if (worker < workers)
            work(run, phase, worker);
    }
    return on_host;
}

#else

static int TL_LAUNCH(const tl_portable_run *run, tl_phase phase, int64_t workers, int32_t device)
{
    const int teams = (int)tl_ceil_div(workers, THREADS);
    int on_host = 0;
#pragma omp target teams distribute parallel for num_teams(teams) device(device) is_device_ptr(run) map(tofrom         \
                                                                                                        : on_host)
    for (int64_t worker = 0; worker < workers; worker++) {
        if (omp_is_initial_device())
            on_host = 1;
        else
            work(run, phase, worker);
    }
    return on_host;
}

#endif

extern const tl_portable_kernel TL_PORTABLE;
const tl_portable_kernel TL_PORTABLE = {&TL_SYMBOL, TL_LAUNCH};
