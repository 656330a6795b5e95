/* Threads: the caller's parallel_for, OpenMP, or none. */
#ifndef TL_CPU_TEAM_H
#define TL_CPU_TEAM_H

#include <stdatomic.h>

#include "tilelamp/tilelamp.h"

/* Workers of a call: exec->num_threads, or OpenMP's default (1 inside a parallel region, and without OpenMP). At most
 * TL_MAX_WORKERS. Without OpenMP too a call may have many: tlamp_plan_workspace_size cannot know of a parallel_for. */
enum { TL_MAX_WORKERS = 1024 };
int32_t tl_team_workers(const tlamp_exec *exec);

/* Runs task(context, i, worker) for i in [0, count), worker below `workers`; returns when all are done. OpenMP: neighbours
 * run on the same worker, in rising order, as far as that leaves none idle: the tasks are `runs` runs (0: one for each worker),
 * equal where they can be; workers share a run where there are more of them; and the tasks of a run begin in rising order,
 * whoever takes them. */
enum { TL_MOST_RUNS = 64 };
void tl_team_run(const tlamp_exec *exec, int32_t workers, int32_t runs, int64_t count, tlamp_task task, void *context);

/* Returns once the count is at least that; what was written before it was raised (by a release) is there. A task may wait for
 * tasks that begin before it in its run. */
void tl_team_wait(const _Atomic int64_t *count, int64_t least);

#endif
