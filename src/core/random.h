/* The random stream of the seeded layouts (ALGORITHMS A5, S6): MT19937 and a Fisher-Yates shuffle from the left, the
 * permutation that PyTorch's CPU randperm gives for the same seed. Freestanding: host and device draw alike. */
#ifndef TL_CORE_RANDOM_H
#define TL_CORE_RANDOM_H

#include "port.h"

enum { TL_MT_WORDS = 624 };

typedef struct {
    uint32_t state[TL_MT_WORDS];
    int next;
} tl_random;

TL_SHARED void tl_random_seed(tl_random *random, uint32_t seed)
{
    random->state[0] = seed;
    for (uint32_t i = 1; i < TL_MT_WORDS; i++) {
        const uint32_t previous = random->state[i - 1];
        random->state[i] = 1812433253u * (previous ^ previous >> 30) + i;
    }
    random->next = TL_MT_WORDS;
}

/* The recurrence of MT19937 over the whole state: x[k + 624] from x[k], x[k + 1] and x[k + 397]. */
TL_SHARED void tl_random_refill(tl_random *random)
{
    uint32_t *x = random->state;
    for (int k = 0; k < TL_MT_WORDS; k++) {
        const uint32_t y = (x[k] & 0x80000000u) | (x[(k + 1) % TL_MT_WORDS] & 0x7fffffffu);
        x[k] = x[(k + 397) % TL_MT_WORDS] ^ y >> 1 ^ (y & 1u ? 0x9908b0dfu : 0u);
    }
    random->next = 0;
}

TL_SHARED uint32_t tl_random_next(tl_random *random)
{
    if (random->next == TL_MT_WORDS) tl_random_refill(random);
    uint32_t y = random->state[random->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* One step of the shuffle of items[0 .. n): fixes items[i] and returns it. For i = 0, 1, ... in turn: the first k steps
 * draw k items without replacement, n steps are a permutation. The last item is fixed without a draw. */
TL_SHARED int64_t tl_random_step(tl_random *random, int64_t *items, int64_t n, int64_t i)
{
    const int64_t z = i < n - 1 ? (int64_t)tl_random_next(random) % (n - i) : 0;
    const int64_t drawn = items[i + z];
    items[i + z] = items[i];
    return items[i] = drawn;
}

#endif
