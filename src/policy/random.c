#include "policy/random.h"

void tl_random_seed(tl_random *random, uint32_t seed)
{
    random->state[0] = seed;
    for (uint32_t i = 1; i < TL_MT_WORDS; i++) {
        const uint32_t previous = random->state[i - 1];
        random->state[i] = 1812433253u * (previous ^ previous >> 30) + i;
    }
    random->next = TL_MT_WORDS;
}

/* The recurrence of MT19937 over the whole state: x[k + 624] from x[k], x[k + 1] and x[k + 397]. */
static void refill(tl_random *random)
{
    uint32_t *x = random->state;
    for (int k = 0; k < TL_MT_WORDS; k++) {
        const uint32_t y = (x[k] & 0x80000000u) | (x[(k + 1) % TL_MT_WORDS] & 0x7fffffffu);
        x[k] = x[(k + 397) % TL_MT_WORDS] ^ y >> 1 ^ (y & 1u ? 0x9908b0dfu : 0u);
    }
    random->next = 0;
}

uint32_t tl_random_next(tl_random *random)
{
    if (random->next == TL_MT_WORDS) refill(random);
    uint32_t y = random->state[random->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

int64_t tl_random_step(tl_random *random, int64_t *items, int64_t n, int64_t i)
{
    const int64_t z = i < n - 1 ? (int64_t)tl_random_next(random) % (n - i) : 0;
    const int64_t drawn = items[i + z];
    items[i + z] = items[i];
    return items[i] = drawn;
}
