#include "peak.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 32")
/* Latency 6, two pipes: fewer chains do not reach the peak. */
enum { CHAINS = 24, NUMBERS = 32, OPERATIONS = 2 * CHAINS * NUMBERS };

static float run(int64_t steps)
{
    volatile short source = 0x3f80; /* 1 in bf16 */
    const __m512bh a = (__m512bh)_mm512_set1_epi16(source), b = a;
    __m512 c[CHAINS], sum = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < CHAINS; i++) c[i] = _mm512_set1_ps((float)i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = _mm512_dpbf16_ps(c[i], a, b);
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_ps(sum, c[i]);
    return _mm512_reduce_add_ps(sum);
}

const peak_loop peak_bf16_avx512bf16 = {"dpbf16_zmm", "avx512bf16", "avx512f avx512vl avx512_bf16", 500000, OPERATIONS,
                                        run,          NULL};
#else
const peak_loop peak_bf16_avx512bf16 = {"dpbf16_zmm", "avx512bf16", "avx512f avx512vl avx512_bf16", 1, 0, NULL, NULL};
#endif
