/* Launches work(run, phase, worker) for every worker, one to a device thread. The including file defines that function and says
 *   TL_RUN      the type of *run, which lies in device memory
 *   TL_LAUNCH   the launch's name, which no other file has: clang names a region after its function and its place in this file
 * The launch is complete on return: 0, or 1 where the OpenMP runtime ran the region on the host, where it does nothing. */
#include <omp.h>
#include <stdint.h>

#include "core/port.h"

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

static int TL_LAUNCH(TL_RUN *run, int32_t phase, int64_t workers, int32_t device)
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

static int TL_LAUNCH(TL_RUN *run, int32_t phase, int64_t workers, int32_t device)
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
