#define _GNU_SOURCE /* strtok_r */
#include "peak.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "parse.h"
#include "samples.h"

const char *const peak_names[NUM_PEAKS] = {"fma", "bf16", "int8", "softmax", "read", "copy"};
const char *const peak_units[NUM_PEAKS] = {"GFLOP/s", "GFLOP/s", "GOP/s", "Gelem/s", "GB/s", "GB/s"};

/* ------------------------------------------------------------------------------------------------ which loop */

bool machine_has(const machine *m, const char *flags)
{
    char copy[128], have[sizeof m->features + 2], *rest = NULL;
    (void)snprintf(copy, sizeof copy, "%s", flags);
    (void)snprintf(have, sizeof have, " %s ", m->features);
    for (const char *flag = strtok_r(copy, " ", &rest); flag; flag = strtok_r(NULL, " ", &rest)) {
        char wanted[40];
        (void)snprintf(wanted, sizeof wanted, " %s ", flag);
        if (!strstr(have, wanted)) return false;
    }
    return true;
}

/* Does --isa, or else TLAMP_MAX_ISA, allow it? Both were checked. */
static bool is_allowed(const char *isa, const char *limit)
{
    static const char *const ladder[] = {"scalar",     "avx2",       "avxvnni",    "avx512",
                                         "avx512vnni", "avx512bf16", "avx512fp16", "amx"};
    enum { RUNGS = sizeof ladder / sizeof ladder[0] };
    if (!limit) limit = getenv("TLAMP_MAX_ISA");
    const int highest = limit ? find_name(ladder, RUNGS, limit) : -1;
    return highest < 0 || find_name(ladder, RUNGS, isa) <= highest;
}

static bool runs(const peak_loop *loop, const machine *m, const char *isa)
{
    return loop->run && machine_has(m, loop->needs) && is_allowed(loop->isa, isa) && (!loop->ready || loop->ready());
}

enum { MOST_LOOPS = 4 };

const peak_loop *peak_find(peak_kind kind, const machine *m, const char *isa)
{
    static const peak_loop *const loops[NUM_PEAKS][MOST_LOOPS] = {
        [PEAK_FMA] = {&peak_fma_avx512, &peak_fma_avx2, &peak_fma_scalar},
        [PEAK_BF16] = {&peak_bf16_amx, &peak_bf16_avx512bf16},
        [PEAK_INT8] = {&peak_int8_amx, &peak_int8_avx512vnni, &peak_int8_avxvnni, &peak_int8_avx2},
        [PEAK_SOFTMAX] = {&peak_softmax_avx512, &peak_softmax_avx2, &peak_softmax_scalar},
    };
    for (int i = 0; i < MOST_LOOPS && loops[kind][i]; i++)
        if (runs(loops[kind][i], m, isa)) return loops[kind][i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ work */

/* What every thread of a team does. */
typedef struct work {
    void (*of_thread)(const struct work *w, int index);
    const peak_loop *loop;
    unsigned char *const *buffers;
    size_t bytes;
} work;

static int thread_index(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* From the first that begins to the last that ends. */
static double run_team(const work *w, int threads)
{
    double begin = HUGE_VAL, end = -HUGE_VAL;
    (void)threads;
#pragma omp parallel num_threads(threads) reduction(min : begin) reduction(max : end)
    {
#pragma omp barrier
        begin = samples_now();
        w->of_thread(w, thread_index());
        end = samples_now();
    }
    return end - begin;
}

static void repeat_loop(const work *w, int index)
{
    (void)index;
    volatile float sink = w->loop->run(w->loop->steps);
    (void)sink;
}

double peak_time(const peak_loop *loop, int threads)
{
    const work w = {.of_thread = repeat_loop, .loop = loop};
    return run_team(&w, threads);
}

/* ------------------------------------------------------------------------------------------------ memory */

/* Each thread writes its buffer first, so that it lies in memory close by. */
static void write_buffer(const work *w, int index)
{
    if (w->buffers[index]) memset(w->buffers[index], index + 1, w->bytes);
}

static void read_buffer(const work *w, int index)
{
    enum { CHAINS = 8 };
    const unsigned char *buffer = w->buffers[index];
    uint64_t sum[CHAINS] = {0};
    for (size_t i = 0; i + sizeof sum <= w->bytes; i += sizeof sum) {
        uint64_t line[CHAINS];
        memcpy(line, buffer + i, sizeof line);
        for (int j = 0; j < CHAINS; j++) sum[j] ^= line[j];
    }
    for (int j = 1; j < CHAINS; j++) sum[0] ^= sum[j];
    volatile uint64_t sink = sum[0];
    (void)sink;
}

static void copy_buffer(const work *w, int index)
{
    const size_t half = w->bytes / 2;
    memcpy(w->buffers[index] + half, w->buffers[index], half);
}

bool peak_buffers_create(peak_buffers *b, int threads, size_t total)
{
    *b = (peak_buffers){.threads = threads, .bytes = (total / (size_t)threads + 127) & ~(size_t)127};
    b->data = calloc((size_t)threads, sizeof *b->data);
    bool good = b->data != NULL;
    for (int i = 0; i < threads && good; i++) good = (b->data[i] = aligned_alloc(64, b->bytes + 128)) != NULL;
    const work w = {.of_thread = write_buffer, .buffers = b->data, .bytes = b->bytes};
    if (good) (void)run_team(&w, threads);
    return good;
}

void peak_buffers_free(peak_buffers *b)
{
    for (int i = 0; b->data && i < b->threads; i++) free(b->data[i]);
    free(b->data);
}

double peak_read_time(const peak_buffers *b)
{
    const work w = {.of_thread = read_buffer, .buffers = b->data, .bytes = b->bytes};
    return run_team(&w, b->threads);
}

double peak_copy_time(const peak_buffers *b)
{
    const work w = {.of_thread = copy_buffer, .buffers = b->data, .bytes = b->bytes};
    return run_team(&w, b->threads);
}
