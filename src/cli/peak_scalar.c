#include "peak.h"

#include <math.h>

#define UNROLL _Pragma("GCC unroll 32")
enum { CHAINS = 48 };

/* A multiplication and an addition: not every processor that runs this has FMA. */
static float run_fma(int64_t steps)
{
    volatile float source = 0.5f;
    const float a = source, b = source;
    float c[CHAINS], sum = 0;
    UNROLL
    for (int i = 0; i < CHAINS; i++) c[i] = (float)i;
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = c[i] * a + b;
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum += c[i];
    return sum;
}

/* As in peak_floats.inc.h, with the library's exp2f. */
enum { ROW = 512 };

static float run_softmax(int64_t steps)
{
    float scores[ROW], weights[ROW], total = 0;
    for (int i = 0; i < ROW; i++) scores[i] = (float)(i % 37) - 18;
    for (int64_t step = 0; step < steps; step++) {
        volatile float scale = .125f;
        float top = scores[0], sum = 0;
        for (int i = 1; i < ROW; i++) top = scores[i] > top ? scores[i] : top;
        for (int i = 0; i < ROW; i++) sum += weights[i] = exp2f((scores[i] - top) * scale);
        total += sum + weights[step % ROW];
    }
    return total;
}

const peak_loop peak_fma_scalar = {"mul_add", "scalar", "", 500000, 2 * CHAINS, run_fma, NULL};
const peak_loop peak_softmax_scalar = {"softmax", "scalar", "", 1000, ROW, run_softmax, NULL};
