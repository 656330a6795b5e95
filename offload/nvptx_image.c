/* Which image of the library's a device runs: of several that fit it, the OpenMP runtime chooses one. */
#include "nvptx.h"

static volatile int ran_on_host;

#ifdef __NVPTX__
#pragma omp begin declare target device_type(nohost)
#include "ptx.h"
TL_INLINE void run(int32_t *at)
{
    if (tl_thread() == 0) *at = TL_IMAGE_ARCH == 90 ? TL_ARCH_90 : TL_ARCH_80;
}
#pragma omp end declare target
#else
static void run(int32_t *at)
{
    (void)at;
    ran_on_host = 1;
}
#endif

int tl_nvptx_which_image(int32_t device, int32_t *at)
{
#pragma omp target teams ompx_bare num_teams(1) thread_limit(32) device(device) is_device_ptr(at)
    run(at);
    return ran_on_host;
}
