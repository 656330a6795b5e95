#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "guard.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 65536, CANARY = 256 }; /* PAGE: a multiple of every page size */

static void out_of_memory(void)
{
    fputs("test: out of memory\n", stderr);
    exit(2);
}

void *new_memory(size_t count, size_t size)
{
    void *memory = count <= SIZE_MAX / 2 / (size ? size : 1) ? malloc(count * size + 1) : NULL;
    if (!memory) out_of_memory();
    return memory;
}

void *new_zeros(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size ? size : 1);
    if (!memory) out_of_memory();
    return memory;
}

static void map_room(guarded *g, size_t room)
{
    guarded_free(g);
    void *map = mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect((char *)map + room, PAGE, PROT_NONE)) out_of_memory();
    g->map = map;
    g->room = room;
}

void guarded_resize(guarded *g, size_t bytes)
{
    const size_t needed = (bytes + CANARY + PAGE - 1) / PAGE * PAGE;
    if (g->room < needed) map_room(g, needed);
    g->bytes = bytes;
    g->data = g->map + g->room - bytes;
    memset(g->data - CANARY, 0xff, CANARY);
}

void guarded_copy(guarded *g, const void *from, size_t bytes)
{
    guarded_resize(g, bytes);
    if (bytes) memcpy(g->data, from, bytes);
}

bool guarded_is_intact(const guarded *g)
{
    for (size_t i = 1; i <= CANARY; i++)
        if (g->data[-(ptrdiff_t)i] != 0xff) return false;
    return true;
}

void guarded_free(guarded *g)
{
    if (g->map) munmap(g->map, g->room + PAGE);
    *g = (guarded){NULL, 0, NULL, 0};
}
