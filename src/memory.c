/* The memory of callers who bring no allocator. */
#if defined __linux__
#define _DEFAULT_SOURCE /* madvise */
#include <sys/mman.h>
#endif

#include <stdint.h>
#include <stdlib.h>

#include "plan.h"

enum { PAGE = 4096, LARGE = 4 << 20 };

/* A fresh workspace of many megabytes is touched once or twice: in small pages, the faults cost up to a fifth of the time of a
 * call. Whether there are large ones is the system's affair. */
static void ask_for_large_pages(void *memory, size_t size)
{
#if defined __linux__ && defined MADV_HUGEPAGE
    const size_t skip = (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    if (size >= LARGE) (void)madvise((unsigned char *)memory + skip, (size - skip) / PAGE * PAGE, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)size;
#endif
}

static void *default_alloc(void *context, size_t size, size_t align)
{
    (void)context;
    const size_t padded = tl_add_size(size ? size : 1, align - 1) / align * align;
    void *memory = padded < size ? NULL : aligned_alloc(align, padded);
    if (memory) ask_for_large_pages(memory, padded);
    return memory;
}

static void default_free(void *context, void *memory)
{
    (void)context;
    free(memory);
}

tlamp_allocator tl_allocator(const tlamp_allocator *given)
{
    const tlamp_allocator standard = {NULL, default_alloc, default_free};
    return given && given->alloc ? *given : standard;
}
