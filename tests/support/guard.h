/* Memory with watched edges: the byte behind the last one lies in a page that may not be touched, and the bytes before the
 * first one are a canary (all ones: a NaN in every float type). */
#ifndef TL_TEST_GUARD_H
#define TL_TEST_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct guarded {
    unsigned char *data; /* bytes of them; aligned to 64 where bytes is a multiple of 64 */
    size_t bytes;
    unsigned char *map;
    size_t room;
} guarded;

/* Makes *g hold `bytes` bytes, anything in them. *g is zero at first; a larger buffer is used again. */
void guarded_resize(guarded *g, size_t bytes);
void guarded_copy(guarded *g, const void *from, size_t bytes);
void guarded_free(guarded *g);

/* Nothing wrote before data. */
bool guarded_is_intact(const guarded *g);

/* malloc and calloc that end the program where there is no memory. Never NULL. */
void *new_memory(size_t count, size_t size);
void *new_zeros(size_t count, size_t size);

#endif
