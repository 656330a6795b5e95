/* `tilelamp bench quant`: how fast keys and values are packed and quantised, against copying them.
 *
 * The library does that once per call, before the queries, and runs each of its phases by the caller's parallel_for where it is
 * given one: ours times them. A call without splits ends with the phase of the queries; what comes before it (looking for
 * NaN, the mean of the keys, packing and quantising) is what is measured here. The fraction is that of the time that memcpy
 * takes for as many bytes as K and V have. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "bench.h"
#include "measure.h"
#include "result.h"
#include "roofline.h"
#include "shapes.h"

/* One shape and what was measured. */
typedef struct outcome {
    const shape *shape;
    subject subject; /* without its data */
    measurement *results;
    samples *packing; /* of each result; empty where its call packs nothing */
    samples copy;
    double bytes, elements; /* of K and V */
} outcome;

typedef struct quant_bench {
    const bench_options *o;
    common_options common; /* with the number of threads */
    machine machine;
    shapes shapes;
    outcome *outcomes;
    progress bar;
} quant_bench;

static int rounds_of(const quant_bench *b) { return b->o->quick ? 7 : 25; }

/* ------------------------------------------------------------------------------------------------ phases */

typedef struct phases {
    int threads, count;
    double all, last; /* seconds */
} phases;

/* A tlamp_parallel_for. Neighbouring tasks share a head: each thread begins with a run of them. */
static void run_phase(void *context, int64_t count, tlamp_task task, void *task_context)
{
    phases *p = context;
    const double start = samples_now();
#pragma omp parallel for num_threads(p->threads) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        int32_t worker = 0;
#ifdef _OPENMP
        worker = omp_get_thread_num();
#endif
        task(task_context, i, worker);
    }
    p->last = samples_now() - start;
    p->all += p->last;
    p->count++;
}

/* Repeated as short calls are (samples_repeats), by the time that was counted. */
static int time_packing(quant_bench *b, outcome *x, measuring *m, int i, fault *f)
{
    phases p = {.threads = (int)b->common.threads};
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = b->common.threads;
    exec.parallel_for = run_phase;
    exec.parallel_context = &p;
    double sum = 0;
    int code = DONE, repeats = 1;
    for (int k = -1; k < repeats && !code; k++) { /* the first is not counted */
        p.count = 0;
        p.all = p.last = 0;
        code = measuring_call(m, &x->results[i], &exec, f);
        if (k < 0)
            repeats = samples_repeats(p.all - p.last);
        else
            sum += p.all - p.last;
    }
    if (!code && p.count > 1) samples_add(&x->packing[i], sum / repeats);
    return code;
}

/* ------------------------------------------------------------------------------------------------ one shape */

static int check_shape(const quant_bench *b, const shape *s, fault *f)
{
    problem_spec spec;
    const int code = problem_parse(&spec, s->problem, f);
    if (code) return code;
    if (spec.varlen || spec.mask || spec.window_left >= 0 || spec.window_right >= 0)
        return fault_set(f, BAD_INPUT, "%.300s: bench quant takes dense problems without masks: leave them out",
                         s->problem);
    for (int i = 0; i < s->num_policies; i++)
        if (b->shapes.policies[s->first_policy + i].splits)
            return fault_set(f, BAD_INPUT, "%.300s: bench quant splits no keys: leave splits= out", s->problem);
    return DONE;
}

static int check_shapes(const quant_bench *b, fault *f)
{
    for (int i = 0; i < b->shapes.count; i++)
        if (check_shape(b, &b->shapes.list[i], f)) return shapes_fault(&b->shapes, &b->shapes.list[i], f);
    return DONE;
}

static int create_subject(const quant_bench *b, outcome *x, fault *f)
{
    const double cells = 1 << 18; /* of which the exact result is computed */
    const int code = subject_create(&x->subject, x->shape->problem, NULL, &b->common, f);
    if (code) return code;
    const problem_spec *spec = &x->subject.in.spec;
    x->subject.in.problem.num_splits = 1; /* merging would be the last phase */
    x->subject.row_step = (int64_t)ceil(problem_visible_cells(spec) / cells);
    x->bytes = roofline_bytes(spec);
    x->elements = (double)(spec->batch * spec->heads_k * spec->lk * (spec->d + spec->dv));
    return DONE;
}

static int run_round(quant_bench *b, outcome *x, measuring *m, const peak_buffers *buffers, fault *f)
{
    int code = DONE;
    for (int i = 0; i < x->shape->num_policies && !code; i++)
        if (!x->results[i].unavailable) code = time_packing(b, x, m, i, f);
    (void)peak_copy_time(buffers);
    samples_add(&x->copy, peak_copy_time(buffers));
    return code;
}

static int run_rounds(quant_bench *b, outcome *x, measuring *m, fault *f)
{
    peak_buffers buffers;
    int code = peak_buffers_create(&buffers, b->common.threads, 2 * (size_t)x->bytes) ? DONE : fault_no_memory(f);
    for (int round = 0; round < rounds_of(b) && !code; round++) {
        progress_step(&b->bar, x->shape->problem);
        code = run_round(b, x, m, &buffers, f);
    }
    peak_buffers_free(&buffers);
    return code;
}

static int run_shape(quant_bench *b, outcome *x, fault *f)
{
    const int count = x->shape->num_policies;
    measuring *m = NULL;
    x->results = calloc((size_t)count + 1, sizeof *x->results);
    x->packing = calloc((size_t)count + 1, sizeof *x->packing);
    int code = x->results && x->packing ? create_subject(b, x, f) : fault_no_memory(f);
    if (!code)
        code = measuring_open(&m, &x->subject, b->shapes.policies + x->shape->first_policy, count, x->results,
                              &b->common, true, &b->bar, f);
    if (!code) code = measuring_check(m, f);
    if (!code) code = run_rounds(b, x, m, f);
    measuring_close(m);
    for (int i = 0; i < count && !code; i++) {
        measurement *r = &x->results[i];
        if (r->unavailable || r->failed || x->packing[i].count) continue;
        r->unavailable = true;
        (void)snprintf(r->complaint, sizeof r->complaint,
                       "nothing is packed ahead for so few queries, whose task does it on its way");
    }
    subject_drop_data(&x->subject);
    return code;
}

/* ------------------------------------------------------------------------------------------------ output */

static json_t *result_object(const quant_bench *b, const outcome *x, int i)
{
    const measurement *m = &x->results[i];
    const samples *s = &x->packing[i];
    const double median = samples_median(s);
    json_t *object = bench_result_json(x->shape->problem, m->policy.text, m->kernel, b->common.threads, s,
                                       1e-9 * x->elements / median, 1 / samples_median_ratio(&x->copy, s));
    (void)json_object_set_new(object, "unit", json_string("Gelem/s"));
    (void)json_object_set_new(object, "gbs", json_number(1e-9 * x->bytes / median));
    (void)json_object_set_new(object, "ms_max", json_number(1e3 * samples_max(s)));
    (void)json_object_set_new(object, "rounds", json_integer(s->count));
    (void)json_object_set_new(object, "passed", json_boolean(!m->failed));
    return object;
}

static json_t *bench_json(const quant_bench *b)
{
    json_t *results = json_array(), *skipped = json_array(), *peak = json_object();
    double copy = 0;
    for (int k = 0; k < b->shapes.count; k++) {
        const outcome *x = &b->outcomes[k];
        copy = fmax(copy, 1e-9 * x->bytes / samples_min(&x->copy));
        for (int i = 0; i < x->shape->num_policies; i++) {
            const measurement *m = &x->results[i];
            if (!m->unavailable)
                (void)json_array_append_new(results, result_object(b, x, i));
            else
                (void)json_array_append_new(skipped, json_pack("{s:s, s:s, s:o}", "shape", x->shape->problem, "mode",
                                                               m->policy.text, "reason", json_text(m->complaint)));
        }
    }
    (void)json_object_set_new(peak, "copy_gbs", json_number(copy));
    return json_pack("{s:o, s:o, s:o, s:o}", "machine", bench_machine_json(&b->machine), "peak", peak, "results",
                     results, "skipped", skipped);
}

static void print_times(const char *name, const outcome *x, const samples *s)
{
    const double median = samples_median(s);
    printf("  %-24s %9.3f %9.3f %9.3f %9.2f %9.2f", name, 1e3 * samples_min(s), 1e3 * median, 1e3 * samples_max(s),
           1e-9 * x->elements / median, 1e-9 * x->bytes / median);
}

static void print_outcome(const outcome *x)
{
    printf("\n%s\n  %-24s %9s %9s %9s %9s %9s %10s  kernel\n", x->shape->problem, "mode", "ms min", "median", "max",
           "Gelem/s", "GB/s", "of memcpy");
    for (int i = 0; i < x->shape->num_policies; i++) {
        const measurement *m = &x->results[i];
        if (m->unavailable) {
            printf("  not run: %s: %s\n", m->policy.text, m->complaint);
            continue;
        }
        print_times(m->policy.text, x, &x->packing[i]);
        printf(" %8.1f %%  %s%s\n", 100 / samples_median_ratio(&x->copy, &x->packing[i]), m->kernel,
               m->failed ? "  FAILED" : "");
    }
    print_times("memcpy of K and V", x, &x->copy);
    putchar('\n');
}

static void print_text(const quant_bench *b)
{
    bench_print_machine(&b->machine);
    bench_print_run(b->common.threads);
    for (int i = 0; i < b->shapes.count; i++) print_outcome(&b->outcomes[i]);
}

/* ------------------------------------------------------------------------------------------------ the command */

static int verdict(const quant_bench *b, fault *f)
{
    const char *complaint = NULL;
    bool valid = false;
    int code = DONE;
    for (int i = 0; i < b->shapes.count && !code; i++) {
        const outcome *x = &b->outcomes[i];
        const char *said = bench_complaint(x->results, x->shape->num_policies);
        if (!complaint) complaint = said;
        valid = valid || !said;
        code = result_verdict(&x->subject, x->results, x->shape->num_policies, f);
    }
    return code || valid ? code : fault_set(f, BAD_INPUT, "%s", complaint);
}

static int run_shapes(quant_bench *b, fault *f)
{
    int steps = 0, code = DONE;
    for (int i = 0; i < b->shapes.count; i++) steps += b->shapes.list[i].num_policies + rounds_of(b);
    progress_begin(&b->bar, steps);
    for (int i = 0; i < b->shapes.count && !code; i++) {
        b->outcomes[i].shape = &b->shapes.list[i];
        code = run_shape(b, &b->outcomes[i], f) ? shapes_fault(&b->shapes, b->outcomes[i].shape, f) : DONE;
    }
    progress_clear(&b->bar);
    if (!code && b->o->common.json) code = print_json(bench_json(b), f);
    if (!code && !b->o->common.json) print_text(b);
    return code ? code : verdict(b, f);
}

int bench_quant(const bench_options *o, fault *f)
{
    quant_bench b = {.o = o, .common = o->common};
    if (o->common.device >= 0)
        return fault_set(f, UNAVAILABLE, "bench quant runs on the host: on a device nothing tells its phases apart");
    machine_read(&b.machine);
    b.common.threads = bench_threads(o, &b.machine);
    int code = o->shapes ? shapes_read(&b.shapes, o->shapes, f)
                         : shapes_parse(&b.shapes, "quant", o->quick ? shapes_quant_quick : shapes_quant, f);
    if (!code) code = check_shapes(&b, f);
    b.outcomes = calloc((size_t)b.shapes.count + 1, sizeof *b.outcomes);
    if (!code && !b.outcomes) code = fault_no_memory(f);
    if (!code) {
        bench_pin(o, &b.machine, b.common.threads);
        code = run_shapes(&b, f);
    }
    for (int i = 0; b.outcomes && i < b.shapes.count; i++) {
        measurements_free(b.outcomes[i].results, b.shapes.list[i].num_policies);
        free(b.outcomes[i].packing);
        subject_free(&b.outcomes[i].subject);
    }
    free(b.outcomes);
    shapes_free(&b.shapes);
    return code;
}
