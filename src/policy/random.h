/* The random stream of the seeded layouts (ALGORITHMS A5, S6): MT19937 and a Fisher-Yates shuffle from the left, the
 * permutation that PyTorch's CPU randperm gives for the same seed. */
#ifndef TL_POLICY_RANDOM_H
#define TL_POLICY_RANDOM_H

#include <stdint.h>

enum { TL_MT_WORDS = 624 };

typedef struct {
    uint32_t state[TL_MT_WORDS];
    int next;
} tl_random;

void tl_random_seed(tl_random *random, uint32_t seed);
uint32_t tl_random_next(tl_random *random);

/* One step of the shuffle of items[0 .. n): fixes items[i] and returns it. For i = 0, 1, ... in turn: the first k steps
 * draw k items without replacement, n steps are a permutation. The last item is fixed without a draw. */
int64_t tl_random_step(tl_random *random, int64_t *items, int64_t n, int64_t i);

#endif
