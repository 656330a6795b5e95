/* Every instruction set that this machine has kernels for, each in a process of its own: the choice is final after the first
 * plan. */
#ifndef TL_TEST_LADDER_H
#define TL_TEST_LADDER_H

#include <stdint.h>

typedef struct tally {
    int64_t passed, failed;
} tally;

/* Runs body under `isa`, or under every available one where isa is NULL; counts added up. A body that dies counts as a
 * failure. The caller must not have made a plan or started threads. */
tally ladder_run(const char *isa, tally (*body)(void *context), void *context);

#endif
