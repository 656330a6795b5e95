/* The low exponential of LampAttention's hw mode two ways, per element: 256 entries in registers (VPERMI2B), and the polynomial
 * of core/exp2.h rounded to ue5m3. Both start from the same rounded shifts; the table's values are compared with its
 * definition before anything is timed. Prints nothing but a reason, and exits 77, where the processor has no AVX512-VBMI.
 *     tilelamp-exp-table [--json] */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/exp2.h"
#include "simd/exp_table_vbmi.h"

enum { N = 4096, ROUNDS = 2000, REPEATS = 15 };

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void by_table(const float *shift, float *e)
{
    const tl_exp_registers table = tl_exp_registers_load();
    for (int i = 0; i < N; i += 16) _mm512_storeu_ps(e + i, tl_exp_lookup_16(&table, _mm512_loadu_ps(shift + i)));
}

static void by_polynomial(const float *shift, float *e)
{
    const tl_minifloat format = tl_ue5m3(TL_EXP_BIAS);
    for (int i = 0; i < N; i++) e[i] = tl_mini_round(tl_exp2(shift[i] * -TL_LOG2E), format);
}

/* Nanoseconds per element, one repeat. The barrier keeps the compiler from dropping rounds. */
static double time_of(void (*run)(const float *, float *), const float *shift, float *e)
{
    const double start = now();
    for (int i = 0; i < ROUNDS; i++) {
        run(shift, e);
        __asm__ volatile("" : : "r"(e) : "memory");
    }
    return (now() - start) * 1e9 / ((double)ROUNDS * (double)N);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static float shift[N], e[N];
    const int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    double table[REPEATS], polynomial[REPEATS];
    if (!__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512dq")) {
        fputs("tilelamp-exp-table: this processor has no AVX512-VBMI\n", stderr);
        return 77;
    }
    for (int i = 0; i < N; i++) shift[i] = tl_mini_decode((uint32_t)i * 37u % 256u, tl_ue5m3(TL_SHIFT_BIAS));
    by_table(shift, e);
    for (int i = 0; i < N; i++)
        if (e[i] != tl_exp_lookup(shift[i])) {
            fprintf(stderr, "tilelamp-exp-table: e^-%g is %g by registers, %g by definition\n", (double)shift[i],
                    (double)e[i], (double)tl_exp_lookup(shift[i]));
            return 1;
        }
    for (int r = 0; r < REPEATS; r++) { /* interleaved */
        table[r] = time_of(by_table, shift, e);
        polynomial[r] = time_of(by_polynomial, shift, e);
    }
    qsort(table, REPEATS, sizeof *table, by_size);
    qsort(polynomial, REPEATS, sizeof *polynomial, by_size);
    const double a = table[REPEATS / 2], b = polynomial[REPEATS / 2];
    printf(json ? "{\"table_ns\": %.4f, \"polynomial_ns\": %.4f, \"ratio\": %.2f}\n"
                : "table %.4f ns per element, polynomial %.4f ns: %.2f x as fast\n",
           a, b, b / a);
    return 0;
}
