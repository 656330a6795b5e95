/* Memory inside one buffer of the caller's, handed out piece by piece. */
#ifndef TL_WORKSPACE_H
#define TL_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>

/* base NULL: pieces are NULL, only `used` grows, which is how sizes are learnt from the code that lays memory out. used
 * stays at SIZE_MAX once it has overflowed. */
typedef struct {
    unsigned char *base;
    size_t used;
} tl_arena;

/* `bytes` (>= 0) bytes, aligned as base is, up to 64. */
void *tl_take(tl_arena *arena, int64_t bytes);
/* count * bytes. */
void *tl_take_array(tl_arena *arena, int64_t count, size_t bytes);

/* a + b and a * b, SIZE_MAX where that does not fit. */
size_t tl_add_size(size_t a, size_t b);
size_t tl_mul_size(size_t a, size_t b);

#endif
