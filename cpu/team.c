#include "team.h"

#include <sched.h>

#ifdef _OPENMP
#include <omp.h>

/* Tasks are dealt out as one run of neighbours for each worker, who takes from the fullest run once its own is empty. So a
 * worker stays with what its tasks share (the keys of a head, which it has packed itself) while it can, and none waits
 * while there is work. Which worker runs a task changes no bit of its result. */
typedef struct {
    _Alignas(64) _Atomic int64_t next; /* passes end where the run is empty */
    int64_t end;
} task_run;

static int64_t left_in(task_run *r)
{
    const int64_t next = atomic_load_explicit(&r->next, memory_order_relaxed);
    return next < r->end ? r->end - next : 0;
}

static int fullest(task_run *runs, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (left_in(&runs[i]) > left_in(&runs[best])) best = i;
    return best;
}

static void run_team(int team, int wanted, int64_t count, tlamp_task task, void *context)
{
    task_run runs[TL_MOST_RUNS];
    const int n = wanted < TL_MOST_RUNS ? wanted : TL_MOST_RUNS;
    for (int i = 0; i < n; i++) {
        const int64_t each = count / n, more = count % n; /* the first `more` runs have one task more */
        atomic_init(&runs[i].next, i * each + (i < more ? i : more));
        runs[i].end = (i + 1) * each + (i + 1 < more ? i + 1 : more);
    }
#pragma omp parallel num_threads(team)
    {
        const int worker = omp_get_thread_num(), own = worker % n;
        for (int at = own;;) {
            if (left_in(&runs[at]) == 0) at = fullest(runs, n);
            if (left_in(&runs[at]) == 0) break;
            const int64_t i = atomic_fetch_add_explicit(&runs[at].next, 1, memory_order_relaxed);
            if (i < runs[at].end) task(context, i, worker);
            at = own; /* if that is empty, look again where most is left */
        }
    }
}
#endif

int32_t tl_team_workers(const tlamp_exec *exec)
{
    int32_t n = exec->num_threads;
#ifdef _OPENMP
    if (n == 0) n = omp_in_parallel() ? 1 : omp_get_max_threads();
#endif
    return n < 1 ? 1 : n > TL_MAX_WORKERS ? TL_MAX_WORKERS : n;
}

void tl_team_run(const tlamp_exec *exec, int32_t workers, int32_t runs, int64_t count, tlamp_task task, void *context)
{
    if (exec->parallel_for) {
        exec->parallel_for(exec->parallel_context, count, task, context);
        return;
    }
#ifdef _OPENMP
    if (workers > 1 && count > 1) {
        const int team = (int)(count < workers ? count : workers);
        run_team(team, runs ? runs : team, count, task, context);
        return;
    }
#endif
    (void)workers;
    (void)runs;
    for (int64_t i = 0; i < count; i++) task(context, i, 0);
}

void tl_team_wait(const _Atomic int64_t *count, int64_t least)
{
    enum { PATIENCE = 1000 }; /* whoever is waited for may need the processor */
    for (int turns = 0; atomic_load_explicit(count, memory_order_acquire) < least;)
        if (turns < PATIENCE)
            turns++;
        else
            (void)sched_yield();
}
