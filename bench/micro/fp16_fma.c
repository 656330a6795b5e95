/* What f16 inputs would gain from VFMADDPH: scores of 8 rows and 32 keys by f32 fma, and by f16 fma whose sums are added to
 * f32 ones every so many channels. Rate of each, and how far the scores are from their double values: relative to sum |q k|,
 * the largest and the root mean square. Prints nothing but a reason, and exits 77, where the processor has no AVX512-FP16.
 *     tilelamp-fp16-fma */
#define _POSIX_C_SOURCE 200809L
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/port.h"

enum { D = 128, ROWS = 8, KEYS = 32, REPEATS = 15, ROUNDS = 2000, BLOCKS = 64 };

typedef struct {
    uint16_t q16[ROWS][D], k16[D][KEYS];
    float q[ROWS][D], k[D][KEYS];
} operands;

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void by_f32(const operands *x, int flush, float s[ROWS][KEYS])
{
    __m512 a[ROWS][2];
    (void)flush;
    TL_UNROLL for (int r = 0; r < ROWS; r++) a[r][0] = a[r][1] = _mm512_setzero_ps();
    for (int c = 0; c < D; c++) {
        const __m512 low = _mm512_loadu_ps(x->k[c]), high = _mm512_loadu_ps(x->k[c] + 16);
        TL_UNROLL for (int r = 0; r < ROWS; r++)
        {
            const __m512 q = _mm512_set1_ps(x->q[r][c]);
            a[r][0] = _mm512_fmadd_ps(q, low, a[r][0]);
            a[r][1] = _mm512_fmadd_ps(q, high, a[r][1]);
        }
    }
    TL_UNROLL for (int r = 0; r < ROWS; r++)
    {
        _mm512_storeu_ps(s[r], a[r][0]);
        _mm512_storeu_ps(s[r] + 16, a[r][1]);
    }
}

/* flush: channels, a divisor of D. */
static void by_f16(const operands *x, int flush, float s[ROWS][KEYS])
{
    __m512 a[ROWS][2];
    TL_UNROLL for (int r = 0; r < ROWS; r++) a[r][0] = a[r][1] = _mm512_setzero_ps();
    for (int c = 0; c < D; c += flush) {
        __m512h sum[ROWS];
        TL_UNROLL for (int r = 0; r < ROWS; r++) sum[r] = _mm512_castsi512_ph(_mm512_setzero_si512());
        for (int i = c; i < c + flush; i++) {
            const __m512h k = _mm512_castsi512_ph(_mm512_loadu_si512(x->k16[i]));
            TL_UNROLL for (int r = 0; r < ROWS; r++)
            {
                const __m512h q = _mm512_castsi512_ph(_mm512_set1_epi16((int16_t)x->q16[r][i]));
                sum[r] = _mm512_fmadd_ph(q, k, sum[r]);
            }
        }
        TL_UNROLL for (int r = 0; r < ROWS; r++)
        {
            const __m512i h = _mm512_castph_si512(sum[r]);
            a[r][0] = _mm512_add_ps(a[r][0], _mm512_cvtph_ps(_mm512_castsi512_si256(h)));
            a[r][1] = _mm512_add_ps(a[r][1], _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)));
        }
    }
    TL_UNROLL for (int r = 0; r < ROWS; r++)
    {
        _mm512_storeu_ps(s[r], a[r][0]);
        _mm512_storeu_ps(s[r] + 16, a[r][1]);
    }
}

typedef void scores(const operands *, int flush, float s[ROWS][KEYS]);

/* GF/s, the best of some repeats. The barrier keeps the compiler from dropping rounds. */
static double rate_of(scores *run, int flush, const operands *x)
{
    static float s[ROWS][KEYS];
    const double work = 2. * (double)(ROWS * KEYS * D) * (double)ROUNDS;
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        const double start = now();
        for (int j = 0; j < ROUNDS; j++) {
            run(x, flush, s);
            __asm__ volatile("" : : "r"(s) : "memory");
        }
        best = fmax(best, work / (now() - start) / 1e9);
    }
    return best;
}

/* Sum of twelve uniform numbers less 6. */
static float next_normal(uint32_t *state)
{
    float sum = -6.f;
    for (int i = 0; i < 12; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (float)(*state >> 8) * 0x1p-24f;
    }
    return sum;
}

static void fill(operands *x, uint32_t *state)
{
    for (int c = 0; c < D; c++) {
        for (int r = 0; r < ROWS; r++) {
            x->q16[r][c] = tl_to_f16(next_normal(state));
            x->q[r][c] = tl_from_f16(x->q16[r][c]);
        }
        for (int j = 0; j < KEYS; j++) {
            x->k16[c][j] = tl_to_f16(next_normal(state));
            x->k[c][j] = tl_from_f16(x->k16[c][j]);
        }
    }
}

static void report(const char *name, scores *run, int flush, operands *x)
{
    double largest = 0, squares = 0;
    uint32_t state = 1;
    for (int b = 0; b < BLOCKS; b++) {
        float s[ROWS][KEYS];
        fill(x, &state);
        run(x, flush, s);
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < KEYS; j++) {
                double sum = 0, size = 0;
                for (int c = 0; c < D; c++) {
                    const double product = (double)x->q[r][c] * (double)x->k[c][j];
                    sum += product;
                    size += fabs(product);
                }
                const double error = fabs((double)s[r][j] - sum) / size;
                largest = fmax(largest, error);
                squares += error * error;
            }
    }
    printf("%-28s %7.1f GF/s   error / sum |q k|: largest %.1e, rms %.1e\n", name, rate_of(run, flush, x), largest,
           sqrt(squares / (double)(BLOCKS * ROWS * KEYS)));
}

int main(void)
{
    static operands x;
    if (!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512fp16")) {
        fputs("tilelamp-fp16-fma: this processor has no AVX512-FP16\n", stderr);
        return 77;
    }
    report("f32 fma", by_f32, D, &x);
    for (int flush = 2; flush <= 32; flush *= 2) {
        char name[40];
        (void)snprintf(name, sizeof name, "f16 fma, f32 every %d", flush);
        report(name, by_f16, flush, &x);
    }
    return 0;
}
