#include "peak.h"

#ifdef __AVX2__
#include <immintrin.h>
#include <math.h>

#define UNROLL _Pragma("GCC unroll 32")
/* More chains than latency times pipes, and all in registers. */
enum { CHAINS = 12, LANES = 8, OPERATIONS = 2 * CHAINS * LANES };

static float run_fma(int64_t steps)
{
    volatile float source = 0.5f;
    const __m256 a = _mm256_set1_ps(source), b = a;
    __m256 c[CHAINS], sum = _mm256_setzero_ps();
    UNROLL
    for (int i = 0; i < CHAINS; i++) c[i] = _mm256_set1_ps((float)i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = _mm256_fmadd_ps(c[i], a, b);
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum = _mm256_add_ps(sum, c[i]);
    return _mm256_cvtss_f32(sum);
}

/* Exact int8 products without VNNI: codes widened to int16, pairs multiplied and added by vpmaddwd, then a sum. */
enum { INT8_CHAINS = 8, CODES = 16 };

static float run_int8(int64_t steps)
{
    volatile short source = 1;
    __m256i a = _mm256_set1_epi16(source), b = a;
    __m256i c[INT8_CHAINS], sum = _mm256_setzero_si256();
    UNROLL
    for (int i = 0; i < INT8_CHAINS; i++) c[i] = _mm256_set1_epi32(i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < INT8_CHAINS; i++) {
            __asm__ volatile("" : "+x"(a)); /* another operand each time, for all that is known */
            c[i] = _mm256_add_epi32(c[i], _mm256_madd_epi16(a, b));
        }
    }
    UNROLL
    for (int i = 0; i < INT8_CHAINS; i++) sum = _mm256_add_epi32(sum, c[i]);
    return (float)_mm256_extract_epi32(sum, 0);
}

/* As in peak_avx512.c. */
enum { ROW = 512, ROW_CHAINS = 4 };

static __m256 exponential(__m256 x)
{
    const __m256 whole = _mm256_floor_ps(_mm256_max_ps(x, _mm256_set1_ps(-126))), f = _mm256_sub_ps(x, whole);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(.0770672235f), f, _mm256_set1_ps(.227644674f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(.695116919f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1));
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23)));
}

static float top_of(__m256 x)
{
    float lanes[LANES], top = -HUGE_VALF;
    _mm256_storeu_ps(lanes, x);
    for (int i = 0; i < LANES; i++) top = lanes[i] > top ? lanes[i] : top;
    return top;
}

static float run_softmax(int64_t steps)
{
    float scores[ROW], weights[ROW];
    __m256 total = _mm256_setzero_ps();
    for (int i = 0; i < ROW; i++) scores[i] = (float)(i % 37) - 18;
    for (int64_t step = 0; step < steps; step++) {
        __m256 top[ROW_CHAINS], sum[ROW_CHAINS];
        __asm__ volatile("" : : "r"(scores), "r"(weights) : "memory"); /* other scores, for all that is known */
        for (int c = 0; c < ROW_CHAINS; c++) top[c] = sum[c] = _mm256_loadu_ps(scores + c * LANES);
        for (int i = 0; i < ROW; i += ROW_CHAINS * LANES)
            for (int c = 0; c < ROW_CHAINS; c++)
                top[c] = _mm256_max_ps(top[c], _mm256_loadu_ps(scores + i + c * LANES));
        for (int c = 1; c < ROW_CHAINS; c++) top[0] = _mm256_max_ps(top[0], top[c]);
        const __m256 scale = _mm256_set1_ps(.125f), shift = _mm256_set1_ps(-.125f * top_of(top[0]));
        for (int i = 0; i < ROW; i += ROW_CHAINS * LANES)
            for (int c = 0; c < ROW_CHAINS; c++) {
                const __m256 s = _mm256_loadu_ps(scores + i + c * LANES);
                const __m256 p = exponential(_mm256_fmadd_ps(s, scale, shift));
                sum[c] = _mm256_add_ps(sum[c], p);
                _mm256_storeu_ps(weights + i + c * LANES, p);
            }
        for (int c = 0; c < ROW_CHAINS; c++) total = _mm256_add_ps(total, sum[c]);
    }
    __asm__ volatile("" : : "r"(weights) : "memory");
    return _mm256_cvtss_f32(total);
}

const peak_loop peak_fma_avx2 = {"fma_ymm", "avx2", "avx2 fma", 2000000, OPERATIONS, run_fma, NULL};
const peak_loop peak_int8_avx2 = {"maddwd_ymm", "avx2", "avx2", 1000000, 2 * INT8_CHAINS *CODES, run_int8, NULL};
const peak_loop peak_softmax_avx2 = {"softmax_ymm", "avx2", "avx2 fma", 20000, ROW, run_softmax, NULL};
#else
const peak_loop peak_fma_avx2 = {"fma_ymm", "avx2", "avx2 fma", 1, 0, NULL, NULL};
const peak_loop peak_int8_avx2 = {"maddwd_ymm", "avx2", "avx2", 1, 0, NULL, NULL};
const peak_loop peak_softmax_avx2 = {"softmax_ymm", "avx2", "avx2 fma", 1, 0, NULL, NULL};
#endif
