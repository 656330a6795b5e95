/* `tilelamp bench quant`: how fast keys and values are packed and quantised, against copying them.
 *
 * The library packs K and V once per call, before the queries. With R queries a call takes T(R) = packing + R rows, so that
 * packing = 2 T(R) - T(2 R): both are timed in each round, and the median of the rounds' differences counts. Where it is not
 * positive the noise is larger than the packing, and nothing is said. The fraction is that of the time that memcpy takes for
 * as many bytes as K and V have. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "measure.h"
#include "pin.h"
#include "result.h"
#include "roofline.h"
#include "shapes.h"

enum { ONE, TWO, SIZES }; /* R and 2 R queries */

/* One shape and what was measured. */
typedef struct outcome {
    const shape *shape;
    subject subjects[SIZES]; /* without their data */
    measurement *results[SIZES];
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

/* ------------------------------------------------------------------------------------------------ one shape */

/* The problem with 2 R queries; from malloc. */
static char *doubled(const char *problem)
{
    fault f;
    problem_spec spec;
    if (problem_parse(&spec, problem, &f)) return NULL;
    spec.lq *= 2;
    return problem_print(&spec);
}

static int create_subjects(const quant_bench *b, outcome *x, fault *f)
{
    const double cells = 1 << 18; /* of which the exact result is computed */
    char *twice = doubled(x->shape->problem);
    int code = twice ? DONE : fault_no_memory(f);
    for (int k = 0; k < SIZES && !code; k++) {
        code = subject_create(&x->subjects[k], k == ONE ? x->shape->problem : twice, NULL, &b->common, f);
        x->subjects[k].row_step = (int64_t)ceil(problem_visible_cells(&x->subjects[k].in.spec) / cells);
    }
    free(twice);
    if (code) return code;
    const problem_spec *spec = &x->subjects[ONE].in.spec;
    if (spec->varlen || spec->mask || spec->window_left >= 0 || spec->window_right >= 0)
        return fault_set(f, BAD_INPUT, "%.300s: bench quant takes dense problems without masks: leave them out",
                         x->shape->problem);
    x->bytes = roofline_bytes(spec);
    x->elements = (double)(spec->batch * spec->heads_k * spec->lk * (spec->d + spec->dv));
    return DONE;
}

static int run_rounds(quant_bench *b, outcome *x, measuring *const m[SIZES], fault *f)
{
    peak_buffers buffers;
    int code = peak_buffers_create(&buffers, b->common.threads, 2 * (size_t)x->bytes) ? DONE : fault_no_memory(f);
    for (int round = 0; round < rounds_of(b) && !code; round++) {
        progress_step(&b->bar, x->shape->problem);
        for (int k = 0; k < SIZES && !code; k++) code = measuring_round(m[k], f);
        (void)peak_copy_time(&buffers);
        samples_add(&x->copy, peak_copy_time(&buffers));
    }
    peak_buffers_free(&buffers);
    return code;
}

static int run_shape(quant_bench *b, outcome *x, fault *f)
{
    measuring *m[SIZES] = {NULL, NULL};
    int code = create_subjects(b, x, f);
    for (int k = 0; k < SIZES && !code; k++) {
        x->results[k] = calloc((size_t)x->shape->num_policies + 1, sizeof *x->results[k]);
        if (!x->results[k]) code = fault_no_memory(f);
        if (!code)
            code = measuring_open(&m[k], &x->subjects[k], b->shapes.policies + x->shape->first_policy,
                                  x->shape->num_policies, x->results[k], &b->common, true, &b->bar, f);
        if (!code) code = measuring_check(m[k], f);
    }
    if (!code) code = run_rounds(b, x, m, f);
    for (int k = 0; k < SIZES; k++) {
        measuring_close(m[k]);
        subject_drop_data(&x->subjects[k]);
    }
    return code;
}

/* 2 T(R) - T(2 R) of every round. */
static samples packing(const outcome *x, int i)
{
    const samples *one = &x->results[ONE][i].times, *two = &x->results[TWO][i].times;
    samples s = {.count = 0};
    for (int round = 0; round < one->count && round < two->count; round++)
        samples_add(&s, 2 * one->seconds[round] - two->seconds[round]);
    return s;
}

/* Of two times; NaN where the noise is larger. */
static double per(double work, double seconds) { return seconds > 0 ? work / seconds : (double)NAN; }

/* ------------------------------------------------------------------------------------------------ output */

static json_t *result_object(const quant_bench *b, const outcome *x, int i)
{
    const measurement *m = &x->results[ONE][i];
    const samples s = packing(x, i);
    const double median = samples_median(&s);
    json_t *object = bench_result_json(x->shape->problem, m->policy.text, m->kernel, b->common.threads, &s,
                                       per(1e-9 * x->elements, median), per(samples_median(&x->copy), median));
    (void)json_object_set_new(object, "unit", json_string("Gelem/s"));
    (void)json_object_set_new(object, "ms_max", json_number(1e3 * samples_max(&s)));
    (void)json_object_set_new(object, "rounds", json_integer(s.count));
    (void)json_object_set_new(object, "ms_call", json_number(m->ms));
    (void)json_object_set_new(object, "passed", json_boolean(!m->failed && !x->results[TWO][i].failed));
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
            const measurement *m = &x->results[ONE][i];
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

static void print_outcome(const outcome *x)
{
    printf("\n%s\n  %-24s %9s %9s %9s %9s %9s  kernel\n", x->shape->problem, "mode", "ms min", "median", "max",
           "Gelem/s", "of memcpy");
    for (int i = 0; i < x->shape->num_policies; i++) {
        const measurement *m = &x->results[ONE][i];
        const samples s = packing(x, i);
        const double median = samples_median(&s);
        if (m->unavailable)
            printf("  not run: %s: %s\n", m->policy.text, m->complaint);
        else
            printf("  %-24s %9.3f %9.3f %9.3f %9.2f %7.1f %%  %s%s\n", m->policy.text, 1e3 * samples_min(&s),
                   1e3 * median, 1e3 * samples_max(&s), per(1e-9 * x->elements, median),
                   100 * per(samples_median(&x->copy), median), m->kernel,
                   m->failed || x->results[TWO][i].failed ? "  FAILED" : "");
    }
    printf("  %-24s %9.3f %9.3f %9.3f %9.2f\n", "memcpy of K and V", 1e3 * samples_min(&x->copy),
           1e3 * samples_median(&x->copy), 1e3 * samples_max(&x->copy), 1e-9 * x->elements / samples_median(&x->copy));
}

static void print_text(const quant_bench *b)
{
    bench_print_machine(&b->machine);
    printf("run on   %d threads, each bound to a processor; kernels up to %s\n", (int)b->common.threads, tlamp_isa());
    for (int i = 0; i < b->shapes.count; i++) print_outcome(&b->outcomes[i]);
}

/* ------------------------------------------------------------------------------------------------ the command */

static int verdict(const quant_bench *b, fault *f)
{
    int code = DONE;
    for (int i = 0; i < b->shapes.count; i++)
        for (int k = 0; k < SIZES && !code; k++)
            code = result_verdict(&b->outcomes[i].subjects[k], b->outcomes[i].results[k],
                                  b->shapes.list[i].num_policies, f);
    return code;
}

static int run_shapes(quant_bench *b, fault *f)
{
    int steps = 0, code = DONE;
    for (int i = 0; i < b->shapes.count; i++) steps += 2 * b->shapes.list[i].num_policies + rounds_of(b);
    progress_begin(&b->bar, steps);
    for (int i = 0; i < b->shapes.count && !code; i++) {
        b->outcomes[i].shape = &b->shapes.list[i];
        code = run_shape(b, &b->outcomes[i], f);
    }
    progress_clear(&b->bar);
    if (!code && b->o->common.json) code = print_json(bench_json(b), f);
    if (!code && !b->o->common.json) print_text(b);
    return code ? code : verdict(b, f);
}

int bench_quant(const bench_options *o, fault *f)
{
    quant_bench b = {.o = o, .common = o->common};
    machine_read(&b.machine);
    b.common.threads = bench_threads(o, &b.machine);
    int code = o->shapes ? shapes_read(&b.shapes, o->shapes, f)
                         : shapes_parse(&b.shapes, "quant", o->quick ? shapes_quant_quick : shapes_quant, f);
    b.outcomes = calloc((size_t)b.shapes.count + 1, sizeof *b.outcomes);
    if (!code && !b.outcomes) code = fault_no_memory(f);
    if (!code) {
        pin_threads(b.common.threads);
        code = run_shapes(&b, f);
    }
    for (int i = 0; b.outcomes && i < b.shapes.count; i++)
        for (int k = 0; k < SIZES; k++) {
            measurements_free(b.outcomes[i].results[k], b.shapes.list[i].num_policies);
            subject_free(&b.outcomes[i].subjects[k]);
        }
    free(b.outcomes);
    shapes_free(&b.shapes);
    return code;
}
