#include "team.h"

#ifdef _OPENMP
#include <omp.h>
#endif

int32_t tl_team_workers(const tlamp_exec *exec)
{
    int32_t n = exec->num_threads;
#ifdef _OPENMP
    if (n == 0) n = omp_in_parallel() ? 1 : omp_get_max_threads();
#endif
    return n < 1 ? 1 : n > TL_MAX_WORKERS ? TL_MAX_WORKERS : n;
}

void tl_team_run(const tlamp_exec *exec, int32_t workers, int64_t count, tlamp_task task, void *context)
{
    if (exec->parallel_for) {
        exec->parallel_for(exec->parallel_context, count, task, context);
        return;
    }
#ifdef _OPENMP
    if (workers > 1 && count > 1) {
        const int team = (int)(count < workers ? count : workers);
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
        for (int64_t i = 0; i < count; i++) task(context, i, omp_get_thread_num());
        return;
    }
#endif
    (void)workers;
    for (int64_t i = 0; i < count; i++) task(context, i, 0);
}
