#include "peak.h"

#ifdef __AVX512F__
#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 32")
/* More chains than latency times pipes, and all in registers. */
enum { CHAINS = 24, LANES = 16, OPERATIONS = 2 * CHAINS * LANES };

static float run_fma(int64_t steps)
{
    volatile float source = 0.5f;
    const __m512 a = _mm512_set1_ps(source), b = a;
    __m512 c[CHAINS], sum = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < CHAINS; i++) c[i] = _mm512_set1_ps((float)i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = _mm512_fmadd_ps(c[i], a, b);
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum = _mm512_add_ps(sum, c[i]);
    return _mm512_cvtss_f32(sum);
}

/* A row of scores in the first cache becomes weights: its maximum, then exp2 by a polynomial of degree 3 (p(0) = 1), their sum
 * and the store. Rows are as long as a span of key tiles; there are several chains of maxima and of sums. */
enum { ROW = 512, ROW_CHAINS = 4 };

static __m512 exponential(__m512 x)
{
    const __m512 floor = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
                 f = _mm512_sub_ps(x, floor);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(.0770672235f), f, _mm512_set1_ps(.227644674f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(.695116919f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, f, _mm512_set1_ps(1)), floor);
}

static float run_softmax(int64_t steps)
{
    float scores[ROW], weights[ROW];
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < ROW; i++) scores[i] = (float)(i % 37) - 18;
    for (int64_t step = 0; step < steps; step++) {
        __m512 top[ROW_CHAINS], sum[ROW_CHAINS];
        __asm__ volatile("" : : "r"(scores), "r"(weights) : "memory"); /* other scores, for all that is known */
        for (int c = 0; c < ROW_CHAINS; c++) top[c] = sum[c] = _mm512_loadu_ps(scores + c * LANES);
        for (int i = 0; i < ROW; i += ROW_CHAINS * LANES)
            for (int c = 0; c < ROW_CHAINS; c++)
                top[c] = _mm512_max_ps(top[c], _mm512_loadu_ps(scores + i + c * LANES));
        for (int c = 1; c < ROW_CHAINS; c++) top[0] = _mm512_max_ps(top[0], top[c]);
        const __m512 scale = _mm512_set1_ps(.125f), shift = _mm512_set1_ps(-.125f * _mm512_reduce_max_ps(top[0]));
        for (int i = 0; i < ROW; i += ROW_CHAINS * LANES)
            for (int c = 0; c < ROW_CHAINS; c++) {
                const __m512 s = _mm512_loadu_ps(scores + i + c * LANES);
                const __m512 p = exponential(_mm512_fmadd_ps(s, scale, shift));
                sum[c] = _mm512_add_ps(sum[c], p);
                _mm512_storeu_ps(weights + i + c * LANES, p);
            }
        for (int c = 0; c < ROW_CHAINS; c++) total = _mm512_add_ps(total, sum[c]);
    }
    __asm__ volatile("" : : "r"(weights) : "memory");
    return _mm512_reduce_add_ps(total);
}

const peak_loop peak_fma_avx512 = {"fma_zmm", "avx512", "avx512f avx512vl", 1000000, OPERATIONS, run_fma, NULL};
const peak_loop peak_softmax_avx512 = {"softmax_zmm", "avx512", "avx512f avx512vl", 40000, ROW, run_softmax, NULL};
#else
const peak_loop peak_fma_avx512 = {"fma_zmm", "avx512", "avx512f avx512vl", 1, 0, NULL, NULL};
const peak_loop peak_softmax_avx512 = {"softmax_zmm", "avx512", "avx512f avx512vl", 1, 0, NULL, NULL};
#endif
