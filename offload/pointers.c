/* Whose memory a pointer points to, asked of the device's driver. */
#include "backend.h"

#if TILELAMP_HAVE_CUDA
#include <dlfcn.h>

typedef int attribute_of(void *to, int attribute, uint64_t pointer); /* cuPointerGetAttribute */
enum { MEMORY_TYPE = 2, INVALID_VALUE = 1 };

/* The driver that the OpenMP runtime has loaded; nothing is loaded here. */
static attribute_of *find_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *symbol;
    attribute_of *f = NULL;
    if (!driver) return NULL;
    symbol = dlsym(driver, "cuPointerGetAttribute");
    *(void **)&f = symbol; /* as POSIX has it: C knows no way from void * to a function */
    (void)dlclose(driver);
    return f;
}

int tl_is_host_memory(const void *p)
{
    static attribute_of *_Atomic known;
    attribute_of *f = known;
    uint32_t type = 0;
    if (!f) known = f = find_driver();
    /* Any other answer is no answer. Memory that was allocated or registered through the driver is known to it. */
    return f && f(&type, MEMORY_TYPE, (uint64_t)(uintptr_t)p) == INVALID_VALUE;
}

#else

int tl_is_host_memory(const void *p)
{
    (void)p;
    return 0;
}

#endif
