/* `tilelamp bench peak`: what this machine can do at most. */
#include <math.h>
#include <stdio.h>

#include "bench.h"

/* One kind of work on so many threads. */
typedef struct race {
    peak_kind kind;
    const peak_loop *loop; /* NULL: of memory */
    int threads;
    double work; /* of one round, all threads: in the kind's unit */
    samples times;
} race;

enum { MAX_RACES = 2 * NUM_PEAKS };

typedef struct races {
    int count;
    race list[MAX_RACES];
} races;

/* Larger than any cache. */
static const size_t memory_bytes = (size_t)256 << 20;

static void add_races(races *r, const machine *m, const char *isa, int threads)
{
    for (peak_kind kind = 0; kind < NUM_PEAKS; kind++) {
        const peak_loop *loop = peak_find(kind, m, isa);
        race x = {.kind = kind, .loop = loop, .threads = threads};
        if (loop)
            x.work = loop->operations * (double)loop->steps * threads;
        else if (kind == PEAK_READ)
            x.work = (double)memory_bytes;
        else if (kind == PEAK_COPY)
            x.work = (double)memory_bytes / 2;
        if (x.work > 0) r->list[r->count++] = x;
    }
}

static double time_race(const race *x, const peak_buffers *buffers)
{
    if (x->loop) return peak_time(x->loop, x->threads);
    return x->kind == PEAK_READ ? peak_read_time(buffers) : peak_copy_time(buffers);
}

/* Several numbers of threads take turns. */
static int run_races(races *r, const int *threads, int count, int rounds, progress *bar, fault *f)
{
    peak_buffers buffers[2];
    bool good = true;
    for (int i = 0; i < count; i++) good = peak_buffers_create(&buffers[i], threads[i], memory_bytes) && good;
    for (int round = 0; round < rounds && good; round++) {
        progress_step(bar, "peaks of this machine");
        for (int i = 0; i < r->count; i++) {
            race *x = &r->list[i];
            samples_add(&x->times, time_race(x, &buffers[x->threads == threads[0] ? 0 : 1]));
        }
    }
    for (int i = 0; i < count; i++) peak_buffers_free(&buffers[i]);
    return good ? DONE : fault_no_memory(f);
}

/* At the best and at the median round, in 1e9 per second. */
static double best_rate(const race *x) { return x->work / samples_min(&x->times) * 1e-9; }
static double median_rate(const race *x) { return x->work / samples_median(&x->times) * 1e-9; }

static const race *find(const races *r, peak_kind kind, int threads)
{
    for (int i = 0; i < r->count; i++)
        if (r->list[i].kind == kind && r->list[i].threads == threads) return &r->list[i];
    return NULL;
}

static const char *name_of(const race *x) { return x->loop ? x->loop->name : peak_names[x->kind]; }

/* ------------------------------------------------------------------------------------------------ for other benchmarks */

int bench_measure_peaks(const bench_options *o, const machine *m, int threads, bench_peaks *peaks, progress *bar,
                        fault *f)
{
    races r = {.count = 0};
    add_races(&r, m, o->common.isa, threads);
    const int code = run_races(&r, &threads, 1, BENCH_PEAK_ROUNDS, bar, f);
    for (peak_kind kind = 0; kind < NUM_PEAKS; kind++) {
        const race *x = find(&r, kind, threads);
        peaks->rate[kind] = !code && x ? best_rate(x) : (double)NAN;
        peaks->loop[kind] = x ? name_of(x) : NULL;
    }
    return code;
}

void bench_peaks_round(const bench_options *o, const machine *m, int threads, bench_peaks *best)
{
    for (peak_kind kind = 0; kind < NUM_PEAKS; kind++) {
        const peak_loop *loop = peak_find(kind, m, o->common.isa);
        if (!loop) {
            best->rate[kind] = (double)NAN;
            continue;
        }
        const double work = loop->operations * (double)loop->steps * threads;
        best->rate[kind] = fmax(best->rate[kind], 1e-9 * work / peak_time(loop, threads));
    }
}

/* "fma" and "GFLOP/s" are "fma_gflops". */
static void put_peak(json_t *peak, peak_kind kind, const char *suffix, double rate)
{
    static const char *const words[NUM_PEAKS] = {"gflops", "gflops", "gops", "gelems", "gbs", "gbs"};
    char name[40];
    (void)snprintf(name, sizeof name, "%s_%s%s", peak_names[kind], words[kind], suffix);
    (void)json_object_set_new(peak, name, json_number(rate));
}

json_t *bench_peaks_json(const bench_peaks *peaks)
{
    json_t *peak = json_object();
    for (peak_kind kind = 0; kind < NUM_PEAKS; kind++) put_peak(peak, kind, "", peaks->rate[kind]);
    return peak;
}

void bench_print_peaks(const bench_peaks *peaks)
{
    for (peak_kind kind = 0; kind < NUM_PEAKS; kind++)
        if (peaks->loop[kind])
            printf("%-8s %-11s %9.2f %s\n", peak_names[kind], peaks->loop[kind], peaks->rate[kind], peak_units[kind]);
}

/* ------------------------------------------------------------------------------------------------ output */

static json_t *races_json(const machine *m, const races *r, int threads)
{
    json_t *results = json_array(), *peak = json_object();
    for (peak_kind kind = 0; kind < NUM_PEAKS; kind++) {
        const race *one = find(r, kind, 1), *all = find(r, kind, threads);
        put_peak(peak, kind, "_1", one ? best_rate(one) : (double)NAN);
        put_peak(peak, kind, "", all ? best_rate(all) : (double)NAN);
    }
    for (int i = 0; i < r->count; i++) {
        const race *x = &r->list[i];
        json_t *result = bench_result_json(peak_names[x->kind], "peak", name_of(x), x->threads, &x->times,
                                           median_rate(x), (double)NAN);
        (void)json_object_set_new(result, "unit", json_string(peak_units[x->kind]));
        (void)json_array_append_new(results, result);
    }
    return json_pack("{s:o, s:o, s:o}", "machine", bench_machine_json(m), "peak", peak, "results", results);
}

static void print_text(const machine *m, const races *r, int threads)
{
    bench_print_machine(m);
    bench_print_run(threads);
    printf("\n%-8s %-11s %7s  %9s %9s\n", "what", "loop", "threads", "best", "median");
    for (int i = 0; i < r->count; i++) {
        const race *x = &r->list[i];
        printf("%-8s %-11s %7d  %9.2f %9.2f %s\n", peak_names[x->kind], name_of(x), x->threads, best_rate(x),
               median_rate(x), peak_units[x->kind]);
    }
    for (peak_kind kind = 0; kind < NUM_PEAKS; kind++)
        if (!find(r, kind, 1)) printf("%-8s no instruction for it that is measured here\n", peak_names[kind]);
}

int bench_peak(const bench_options *o, fault *f)
{
    machine m;
    machine_read(&m);
    const int threads[2] = {1, bench_threads(o, &m)}, count = threads[1] > 1 ? 2 : 1, rounds = bench_rounds(o);
    races r = {.count = 0};
    progress bar;
    for (int i = 0; i < count; i++) add_races(&r, &m, o->common.isa, threads[i]);
    bench_pin(o, &m, threads[1]);
    progress_begin(&bar, rounds);
    const int code = run_races(&r, threads, count, rounds, &bar, f);
    progress_clear(&bar);
    if (code) return code;
    if (o->common.json) return print_json(races_json(&m, &r, threads[1]), f);
    print_text(&m, &r, threads[1]);
    return DONE;
}
