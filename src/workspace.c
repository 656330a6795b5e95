#include "workspace.h"

size_t tl_add_size(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

size_t tl_mul_size(size_t a, size_t b) { return b && a > SIZE_MAX / b ? SIZE_MAX : a * b; }

static void *take(tl_arena *arena, size_t bytes)
{
    const size_t padded = bytes > SIZE_MAX - 63 ? SIZE_MAX : (bytes + 63) / 64 * 64;
    void *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used = tl_add_size(arena->used, padded);
    return piece;
}

void *tl_take(tl_arena *arena, int64_t bytes) { return take(arena, (size_t)bytes); }

void *tl_take_array(tl_arena *arena, int64_t count, size_t bytes)
{
    return take(arena, tl_mul_size((size_t)count, bytes));
}
