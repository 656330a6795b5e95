#include "peak.h"

#define UNROLL _Pragma("GCC unroll 32")
enum { CHAINS = 48 };

/* A multiplication and an addition: not every processor that runs this has FMA. */
static float run(int64_t steps)
{
    volatile float source = 0.5f;
    const float a = source, b = source;
    float c[CHAINS], sum = 0;
    for (int i = 0; i < CHAINS; i++) c[i] = (float)i;
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = c[i] * a + b;
    }
    for (int i = 0; i < CHAINS; i++) sum += c[i];
    return sum;
}

const peak_loop peak_fma_scalar = {"mul_add", "scalar", "", 500000, 2 * CHAINS, run};
