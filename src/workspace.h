/* Memory inside one buffer of the caller's, handed out piece by piece. Freestanding: the
 * host and devices compile it alike. */
#ifndef TL_WORKSPACE_H
#define TL_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>

#include "core/port.h"

/* base NULL: pieces are NULL, only `used` grows, which is how sizes are learnt from the code that lays memory out. used
 * stays at SIZE_MAX once it has overflowed. */
typedef struct {
    unsigned char *base;
    size_t used;
} tl_arena;

/* a + b and a * b, SIZE_MAX where that does not fit. */
TL_INLINE size_t tl_add_size(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }
TL_INLINE size_t tl_mul_size(size_t a, size_t b) { return b && a > SIZE_MAX / b ? SIZE_MAX : a * b; }

/* count * bytes, aligned as base is, up to 64. */
TL_SHARED void *tl_take_array(tl_arena *arena, int64_t count, size_t bytes)
{
    const size_t size = tl_mul_size((size_t)count, bytes),
                 padded = size > SIZE_MAX - 63 ? SIZE_MAX : (size + 63) / 64 * 64;
    void *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used = tl_add_size(arena->used, padded);
    return piece;
}

/* `bytes` (>= 0) bytes. */
TL_INLINE void *tl_take(tl_arena *arena, int64_t bytes) { return tl_take_array(arena, bytes, 1); }

#endif
