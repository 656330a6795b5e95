#include "peak.h"

#ifdef __AVXVNNI__
#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 32")
enum { CHAINS = 12, CODES = 32, OPERATIONS = 2 * CHAINS * CODES };

static float run(int64_t steps)
{
    volatile int source = 1;
    const __m256i a = _mm256_set1_epi8((char)source), b = a;
    __m256i c[CHAINS], sum = _mm256_setzero_si256();
    UNROLL
    for (int i = 0; i < CHAINS; i++) c[i] = _mm256_set1_epi32(i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = _mm256_dpbusd_avx_epi32(c[i], a, b);
        UNROLL
        for (int i = 0; i < CHAINS; i++) __asm__("" : "+x"(c[i])); /* sums of integers may be regrouped: not these */
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum = _mm256_add_epi32(sum, c[i]);
    return (float)_mm256_extract_epi32(sum, 0);
}

const peak_loop peak_int8_avxvnni = {"dpbusd_ymm", "avxvnni", "avx2 avx_vnni", 1000000, OPERATIONS, run, NULL};
#else
const peak_loop peak_int8_avxvnni = {"dpbusd_ymm", "avxvnni", "avx2 avx_vnni", 1, 0, NULL, NULL};
#endif
