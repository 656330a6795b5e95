#include "peak.h"

#ifdef __AVX2__
#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 32")
/* More chains than latency times pipes, and all in registers. */
enum { CHAINS = 12, LANES = 8, OPERATIONS = 2 * CHAINS * LANES };

static float run(int64_t steps)
{
    volatile float source = 0.5f;
    const __m256 a = _mm256_set1_ps(source), b = a;
    __m256 c[CHAINS], sum = _mm256_setzero_ps();
    for (int i = 0; i < CHAINS; i++) c[i] = _mm256_set1_ps((float)i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = _mm256_fmadd_ps(c[i], a, b);
    }
    for (int i = 0; i < CHAINS; i++) sum = _mm256_add_ps(sum, c[i]);
    return _mm256_cvtss_f32(sum);
}

const peak_loop peak_fma_avx2 = {"fma_ymm", "avx2", "avx2 fma", 2000000, OPERATIONS, run};
#else
const peak_loop peak_fma_avx2 = {"fma_ymm", "avx2", "avx2 fma", 1, 0, NULL};
#endif
