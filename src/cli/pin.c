#define _GNU_SOURCE /* sched_setaffinity */
#include "pin.h"

#include <sched.h>
#include <stdio.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static cpu_set_t chosen; /* by pin_threads */

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

void pin_threads(int threads)
{
    int cpus[PIN_MAX];
    const int count = list_cpus(cpus);
    if (!count) return;
    CPU_ZERO(&chosen);
    for (int i = 0; i < threads && i < count; i++) CPU_SET((size_t)cpus[i], &chosen);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    bind_thread(cpus[omp_get_thread_num() % count]);
#else
    bind_thread(cpus[0]);
#endif
}

void pin_release(void)
{
    if (CPU_COUNT(&chosen)) (void)sched_setaffinity(0, sizeof chosen, &chosen);
}
