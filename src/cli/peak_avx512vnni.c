#include "peak.h"

#ifdef __AVX512VNNI__
#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 32")
enum { CHAINS = 24, CODES = 64, OPERATIONS = 2 * CHAINS * CODES };

static float run(int64_t steps)
{
    volatile int source = 1;
    const __m512i a = _mm512_set1_epi8((char)source), b = a;
    __m512i c[CHAINS], sum = _mm512_setzero_si512();
    UNROLL
    for (int i = 0; i < CHAINS; i++) c[i] = _mm512_set1_epi32(i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = _mm512_dpbusd_epi32(c[i], a, b);
        UNROLL
        for (int i = 0; i < CHAINS; i++) __asm__("" : "+v"(c[i])); /* sums of integers may be regrouped: not these */
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_epi32(sum, c[i]);
    return (float)_mm512_reduce_add_epi32(sum);
}

const peak_loop peak_int8_avx512vnni = {"dpbusd_zmm", "avx512vnni", "avx512f avx512vl avx512_vnni", 1000000, OPERATIONS,
                                        run,          NULL};
#else
const peak_loop peak_int8_avx512vnni = {"dpbusd_zmm", "avx512vnni", "avx512f avx512vl avx512_vnni", 1, 0, NULL, NULL};
#endif
