#define _GNU_SOURCE /* sched_setaffinity */
#include "pin.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "samples.h"

static int bound[PIN_MAX], num_bound; /* by pin_threads */

int pin_available(void)
{
    cpu_set_t all;
    return sched_getaffinity(0, sizeof all, &all) == 0 ? CPU_COUNT(&all) : 1;
}

/* Has a core several processors, and is this not the first of them? */
static int is_sibling(int cpu)
{
    char path[100];
    int first = cpu;
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *in = fopen(path, "r");
    if (in && fscanf(in, "%d", &first) != 1) first = cpu;
    if (in) (void)fclose(in);
    return first != cpu;
}

/* Those that may be used, first ones of cores first. */
static int list_cpus(int cpus[PIN_MAX])
{
    cpu_set_t all;
    int count = 0;
    if (sched_getaffinity(0, sizeof all, &all)) return 0;
    for (int siblings = 0; siblings < 2; siblings++)
        for (int cpu = 0; cpu < PIN_MAX && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((size_t)cpu, &all) && is_sibling(cpu) == siblings) cpus[count++] = cpu;
    return count;
}

static void bind_thread(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one); /* where it is not allowed, nothing is bound */
}

static void bind_team(const int *cpus, int count, int threads)
{
    (void)threads;
    (void)count;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    bind_thread(cpus[omp_get_thread_num() % count]);
#else
    bind_thread(cpus[0]);
#endif
}

/* ------------------------------------------------------------------------------------------------ which */

/* Two threads of one core that want all of it take twice as long; those of different cores at most what the clock falls by when
 * more of them work. */
static const double too_slow = 1.4;

void pin_order(int *cpus, int count, int wanted, pin_probe time_of, void *context)
{
    const double alone = time_of(context, cpus, 1);
    int chosen = 1;
    for (int i = 1; i < count && chosen < wanted; i++) {
        const int candidate = cpus[i];
        /* those passed over move up by one, so that the chosen ones stand together */
        memmove(&cpus[chosen + 1], &cpus[chosen], (size_t)(i - chosen) * sizeof cpus[0]);
        cpus[chosen] = candidate;
        if (time_of(context, cpus, chosen + 1) < too_slow * alone) {
            chosen++;
        } else {
            memmove(&cpus[chosen], &cpus[chosen + 1], (size_t)(i - chosen) * sizeof cpus[0]);
            cpus[i] = candidate;
        }
    }
}

/* The best of some turns of each processor; of those the worst. */
static double time_load(void *context, const int *cpus, int n)
{
    enum { TURNS = 6 };
    const peak_loop *load = context;
    double slowest = 0;
    bind_team(cpus, n, n);
#pragma omp parallel num_threads(n) reduction(max : slowest)
    {
        double best = HUGE_VAL;
        for (int turn = 0; turn < TURNS; turn++) {
#pragma omp barrier
            const double start = samples_now();
            volatile float sink = load->run(load->steps / 4);
            (void)sink;
            best = fmin(best, samples_now() - start);
        }
        slowest = fmax(slowest, best);
    }
    return slowest;
}

void pin_threads(int threads, const peak_loop *load)
{
    int cpus[PIN_MAX];
    const int count = list_cpus(cpus);
    if (!count) return;
    if (load && threads < count) pin_order(cpus, count, threads, time_load, (void *)(uintptr_t)load);
    num_bound = threads < count ? threads : count;
    memcpy(bound, cpus, (size_t)num_bound * sizeof bound[0]);
    bind_team(bound, num_bound, threads);
}

int pin_list(int cpus[PIN_MAX])
{
    memcpy(cpus, bound, (size_t)num_bound * sizeof bound[0]);
    return num_bound;
}

void pin_release(void)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int i = 0; i < num_bound; i++) CPU_SET((size_t)bound[i], &all);
    if (num_bound) (void)sched_setaffinity(0, sizeof all, &all);
}
