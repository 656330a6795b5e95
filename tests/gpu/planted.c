/* Faults that a sanitizer must find, or it did not look: planted memory | race | barrier. Each is one small kernel. */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 64 };

typedef enum { MEMORY, RACE, BARRIER } fault;

static volatile int ran_on_host;

#ifdef __NVPTX__
#pragma omp begin declare target device_type(nohost)
#include "ptx.h"

static void run(fault planted, int32_t *x)
{
    static TL_SHARED_SPACE volatile int32_t shared[THREADS];
    if (planted == MEMORY) {
        x[THREADS + tl_thread()] = 1; /* behind the end */
    } else if (planted == RACE) {
        shared[tl_thread()] = tl_thread();
        x[tl_thread()] = shared[THREADS - 1 - tl_thread()]; /* which the other warp may not have written */
    } else {
        static TL_SHARED_SPACE uint64_t barrier; /* which nobody has initialised */
        const uint32_t at = (uint32_t)(uintptr_t)&barrier;
        __asm__ volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(at) : "memory");
    }
}
#pragma omp end declare target
#else
static void run(fault planted, int32_t *x)
{
    (void)planted;
    (void)x;
    ran_on_host = 1;
}
#endif

int main(int argc, char **argv)
{
    static const char *const names[] = {"memory", "race", "barrier"};
    int planted = 0;
    while (argc == 2 && planted < 3 && strcmp(argv[1], names[planted]) != 0) planted++;
    if (argc != 2 || planted == 3) {
        fputs("usage: planted memory|race|barrier\n", stderr);
        return 2;
    }
    int32_t *x = omp_target_alloc(THREADS * sizeof *x, 0);
    if (!x) abort();
    const fault f = (fault)planted;
#pragma omp target teams ompx_bare num_teams(1) thread_limit(THREADS) device(0) is_device_ptr(x)
    {
        run(f, x);
    }
    omp_target_free(x, 0);
    printf("planted: %s%s\n", argv[1], ran_on_host ? ", but it ran on the host" : "");
    return ran_on_host;
}
