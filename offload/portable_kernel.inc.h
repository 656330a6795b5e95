/* One kernel of the portable path. The including file has included the text of a scalar kernel (its functions pack and attend)
 * with TL_ROW_BLOCKS 1 and TL_SYMBOL, and says
 *   TL_PORTABLE   the symbol of the tl_portable_kernel
 *   TL_LAUNCH     a name that no other instantiation has (launch.inc.h)
 *   TL_PACKS      1: the kernel has a function pack */
#include "portable.h"

/* Units or tasks worker, worker + workers, ... of a phase. */
static void work(const tl_portable_run *run, int32_t phase, int64_t worker)
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

#define TL_RUN const tl_portable_run
#include "launch.inc.h"

extern const tl_portable_kernel TL_PORTABLE;
const tl_portable_kernel TL_PORTABLE = {&TL_SYMBOL, TL_LAUNCH};
