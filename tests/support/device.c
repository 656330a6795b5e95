#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool device_parse(const char *text, int32_t *device)
{
    char *end = NULL;
    *device = strcmp(text, "host") == 0 ? -1 : 0;
    if (*device < 0 || strcmp(text, "gpu") == 0) return true;
    if (strncmp(text, "gpu:", 4) != 0) return false;
    const long n = strtol(text + 4, &end, 10);
    *device = (int32_t)n;
    return end != text + 4 && !*end && n >= 0 && n < 1 << 16;
}

#if TILELAMP_TEST_DEVICES
#include <omp.h>

enum { EDGE = 256, FILL = 0xff }; /* a NaN in every float type */

static void must(bool ok)
{
    if (ok) return;
    fputs("test: the device gave no memory or a copy failed\n", stderr);
    exit(2);
}

static void *new_bytes(size_t n)
{
    void *p = malloc(n);
    must(p);
    return p;
}

void *device_copy(int32_t device, const void *from, size_t bytes)
{
    if (!from) return NULL;
    unsigned char *whole = new_bytes(bytes + 2 * EDGE), *there = omp_target_alloc(bytes + 2 * EDGE, device);
    memset(whole, FILL, bytes + 2 * EDGE);
    if (bytes) memcpy(whole + EDGE, from, bytes);
    must(there && !omp_target_memcpy(there, whole, bytes + 2 * EDGE, 0, 0, device, omp_get_initial_device()));
    free(whole);
    return there + EDGE;
}

bool device_take(int32_t device, void *there, void *to, size_t bytes)
{
    if (!there) return true;
    unsigned char *whole = new_bytes(bytes + 2 * EDGE), *base = (unsigned char *)there - EDGE;
    must(!omp_target_memcpy(whole, base, bytes + 2 * EDGE, 0, 0, omp_get_initial_device(), device));
    bool intact = true;
    for (size_t i = 0; i < EDGE; i++) intact = intact && whole[i] == FILL && whole[EDGE + bytes + i] == FILL;
    if (bytes) memcpy(to, whole + EDGE, bytes);
    omp_target_free(base, device);
    free(whole);
    return intact;
}

enum { ALIGN = 64 };

device_memory device_new(int32_t device, size_t bytes)
{
    unsigned char edge[EDGE];
    device_memory m = {NULL, omp_target_alloc(bytes + 2 * EDGE + ALIGN, device), bytes};
    must(m.base);
    const uintptr_t data = ((uintptr_t)m.base + EDGE + ALIGN - 1) / ALIGN * ALIGN;
    m.data = (unsigned char *)m.base + (data - (uintptr_t)m.base);
    memset(edge, FILL, EDGE);
    must(!omp_target_memcpy((unsigned char *)m.data - EDGE, edge, EDGE, 0, 0, device, omp_get_initial_device()) &&
         !omp_target_memcpy((unsigned char *)m.data + bytes, edge, EDGE, 0, 0, device, omp_get_initial_device()));
    return m;
}

bool device_delete(int32_t device, device_memory m)
{
    unsigned char edges[2 * EDGE];
    bool intact = true;
    must(!omp_target_memcpy(edges, (unsigned char *)m.data - EDGE, EDGE, 0, 0, omp_get_initial_device(), device) &&
         !omp_target_memcpy(edges + EDGE, (unsigned char *)m.data + m.bytes, EDGE, 0, 0, omp_get_initial_device(),
                            device));
    for (size_t i = 0; i < sizeof edges; i++) intact = intact && edges[i] == FILL;
    omp_target_free(m.base, device);
    return intact;
}

#else

device_memory device_new(int32_t device, size_t bytes)
{
    (void)device;
    (void)bytes;
    fputs("test: built without devices\n", stderr);
    exit(2);
}

bool device_delete(int32_t device, device_memory memory)
{
    (void)device;
    return !memory.data;
}

void *device_copy(int32_t device, const void *from, size_t bytes)
{
    (void)device;
    (void)from;
    (void)bytes;
    fputs("test: built without devices\n", stderr);
    exit(2);
}

bool device_take(int32_t device, void *there, void *to, size_t bytes)
{
    (void)device;
    (void)to;
    (void)bytes;
    return !there;
}

#endif
