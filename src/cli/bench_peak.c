/* `tilelamp bench peak`: what this machine can do at most. */
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "peak.h"

typedef enum { KIND_FMA, KIND_INT8, KIND_READ } kind;
static const char *const kind_names[] = {"fma", "int8", "read"}, *const units[] = {"GFLOP/s", "GOP/s", "GB/s"};

/* One kind of work on so many threads. */
typedef struct race {
    kind kind;
    const peak_loop *loop;       /* NULL for reading */
    const peak_buffers *buffers; /* for reading */
    int threads;
    double work; /* of one round, all threads: operations or bytes */
    samples times;
} race;

enum { MAX_RACES = 6 };

typedef struct races {
    int count;
    race list[MAX_RACES];
    peak_buffers buffers[2];
} races;

static void add_loop(races *r, kind what, const peak_loop *loop, int threads)
{
    if (!loop) return;
    const double work = loop->operations * (double)loop->steps * threads;
    r->list[r->count++] = (race){.kind = what, .loop = loop, .threads = threads, .work = work};
}

static void add_read(races *r, const peak_buffers *b)
{
    const double work = (double)b->bytes * b->threads;
    r->list[r->count++] = (race){.kind = KIND_READ, .buffers = b, .threads = b->threads, .work = work};
}

static void run_round(races *r)
{
    for (int i = 0; i < r->count; i++) {
        race *x = &r->list[i];
        samples_add(&x->times, x->loop ? peak_time(x->loop, x->threads) : peak_read_time(x->buffers));
    }
}

/* At the best and at the median round, in 1e9 per second. */
static double best_rate(const race *x) { return x->work / samples_min(&x->times) * 1e-9; }
static double median_rate(const race *x) { return x->work / samples_median(&x->times) * 1e-9; }

/* ------------------------------------------------------------------------------------------------ output */

static const race *find(const races *r, kind what, int threads)
{
    for (int i = 0; i < r->count; i++)
        if (r->list[i].kind == what && r->list[i].threads == threads) return &r->list[i];
    return NULL;
}

static const char *name_of(const race *x) { return x->loop ? x->loop->name : "read"; }

static void put_peak(json_t *peak, const races *r, const char *name, kind what, int threads)
{
    const race *x = find(r, what, threads);
    (void)json_object_set_new(peak, name, json_number(x ? best_rate(x) : (double)NAN));
}

static json_t *races_json(const machine *m, const races *r, int threads)
{
    json_t *results = json_array(), *peak = json_object();
    put_peak(peak, r, "fma_gflops_1", KIND_FMA, 1);
    put_peak(peak, r, "fma_gflops", KIND_FMA, threads);
    put_peak(peak, r, "int8_gops_1", KIND_INT8, 1);
    put_peak(peak, r, "int8_gops", KIND_INT8, threads);
    put_peak(peak, r, "read_gbs_1", KIND_READ, 1);
    put_peak(peak, r, "read_gbs", KIND_READ, threads);
    for (int i = 0; i < r->count; i++) {
        const race *x = &r->list[i];
        json_t *result = bench_result_json(kind_names[x->kind], "peak", name_of(x), x->threads, &x->times,
                                           median_rate(x), (double)NAN);
        (void)json_object_set_new(result, "unit", json_string(units[x->kind]));
        (void)json_array_append_new(results, result);
    }
    return json_pack("{s:o, s:o, s:o}", "machine", bench_machine_json(m), "peak", peak, "results", results);
}

static void print_text(const machine *m, const races *r)
{
    printf("machine  %s, %ld threads\n\n", m->processor, m->threads);
    printf("%-6s %-11s %7s  %9s %9s\n", "what", "loop", "threads", "best", "median");
    for (int i = 0; i < r->count; i++) {
        const race *x = &r->list[i];
        printf("%-6s %-11s %7d  %9.2f %9.2f %s\n", kind_names[x->kind], name_of(x), x->threads, best_rate(x),
               median_rate(x), units[x->kind]);
    }
    if (!find(r, KIND_INT8, 1)) printf("int8   no instruction for INT8 products that is measured here\n");
}

int bench_peak(const bench_options *o, fault *f)
{
    machine m;
    machine_read(&m);
    const int threads = bench_threads(o, &m), kinds = threads > 1 ? 2 : 1;
    races r = {.count = 0};
    bool good = true;
    for (int i = 0; i < kinds && good; i++) {
        const int n = i ? threads : 1;
        add_loop(&r, KIND_FMA, peak_fma(&m, o->common.isa), n);
        add_loop(&r, KIND_INT8, peak_int8(&m, o->common.isa), n);
        good = peak_buffers_create(&r.buffers[i], n);
        if (good) add_read(&r, &r.buffers[i]);
    }
    for (int round = 0; round < bench_rounds(o) && good; round++) run_round(&r);
    for (int i = 0; i < kinds; i++) peak_buffers_free(&r.buffers[i]);
    if (!good) return fault_no_memory(f);
    if (o->common.json) return print_json(races_json(&m, &r, threads), f);
    print_text(&m, &r);
    return DONE;
}
