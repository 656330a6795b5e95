#include "peak.h"

#ifdef __AVX512F__
#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 32")
/* More chains than latency times pipes, and all in registers. */
enum { CHAINS = 24, LANES = 16, OPERATIONS = 2 * CHAINS * LANES };

static float run(int64_t steps)
{
    volatile float source = 0.5f;
    const __m512 a = _mm512_set1_ps(source), b = a;
    __m512 c[CHAINS], sum = _mm512_setzero_ps();
    for (int i = 0; i < CHAINS; i++) c[i] = _mm512_set1_ps((float)i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = _mm512_fmadd_ps(c[i], a, b);
    }
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_ps(sum, c[i]);
    return _mm512_cvtss_f32(sum);
}

const peak_loop peak_fma_avx512 = {"fma_zmm", "avx512", "avx512f", 1000000, OPERATIONS, run};
#else
const peak_loop peak_fma_avx512 = {"fma_zmm", "avx512", "avx512f", 1, 0, NULL};
#endif
