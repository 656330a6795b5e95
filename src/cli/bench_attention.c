/* `tilelamp bench prefill` and `bench decode`: whole calls of the library, checked, then timed in turns with each other and
 * with peers.
 *
 * What a time is a fraction of: prefill, of the three phases one after another at this machine's peaks (roofline.h), measured
 * in the same rounds; decode, of the time that as many threads take to read as many bytes as K and V have, from a buffer of that size, in the
 * same rounds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "measure.h"
#include "peers.h"
#include "result.h"
#include "roofline.h"
#include "shapes.h"

/* One of the two. */
typedef struct suite {
    const char *name, *shapes, *quick_shapes;
    bool reads; /* bound by reading K and V */
} suite;

/* One shape and what was measured. */
typedef struct outcome {
    const shape *shape;
    subject subject; /* without its data */
    measurement *results;
    bench_peaks peaks; /* in the rounds of this shape */
    double *bounds;    /* seconds of the roofline, for each result */
    peer_result *peers;
    samples read;
    double bytes;
    double until;  /* its rounds should end then */
    bool left_out; /* the time was up */
} outcome;

typedef struct attention_bench {
    const bench_options *o;
    common_options common; /* with the number of threads that all of them run on */
    const suite *suite;
    machine machine;
    shapes shapes;
    peers peers;
    bench_peaks peaks;
    outcome *outcomes;
    progress bar;
    double until; /* when all should be done; +Inf: whenever */
} attention_bench;

/* ------------------------------------------------------------------------------------------------ how long */

/* --quick promises 40 seconds, with the round and the output that are still to come when its time is up. */
static const double quick_seconds = 28, longest_seconds = 30;
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 15 };

/* Somebody wants an end (bench_stopped), or the time is up: what was measured is printed. */
static bool is_over(const attention_bench *b) { return bench_stopped() || samples_now() > b->until; }

static const char *why_left_out(void)
{
    return bench_stopped() ? "the run was stopped" : "the time was up (--quick, --seconds)";
}

/* When rounds of the shape that begins now should end: each of those that are left has its part of the time. */
static double end_of_shape(const attention_bench *b, int left)
{
    const double now = samples_now();
    return now + fmin(longest_seconds, (b->until - now) / left);
}

static bool rounds_are_enough(const attention_bench *b, int rounds, double until)
{
    if (rounds >= MOST_ROUNDS || (rounds && is_over(b))) return true;
    return samples_now() > until && (rounds >= LEAST_ROUNDS || (rounds && isfinite(b->until)));
}

/* The exact result is slow: of long problems it is computed, and the rest compared, in a sample of rows. */
static int64_t row_step(const problem_spec *spec, bool quick)
{
    const double enough = quick ? 1 << 18 : 1 << 21, cells = problem_visible_cells(spec);
    return cells > enough ? (int64_t)ceil(cells / enough) : 1;
}

/* ------------------------------------------------------------------------------------------------ one shape */

/* Threads that slept while peers ran are awake before anything is timed. */
static void wake_threads(int threads)
{
    (void)threads;
#pragma omp parallel num_threads(threads)
    {
#pragma omp barrier
    }
}

static void time_reading(outcome *x, const peak_buffers *buffers, int *repeats)
{
    const double first = *repeats == 1 ? 0 : peak_read_time(buffers);
    if (!*repeats) *repeats = samples_repeats(first);
    double sum = 0;
    for (int i = 0; i < *repeats; i++) sum += peak_read_time(buffers);
    samples_add(&x->read, sum / *repeats);
}

static int run_rounds(attention_bench *b, outcome *x, measuring *m, const peak_buffers *buffers, fault *f)
{
    int code = DONE, repeats = 0;
    for (int rounds = 0; !code && !rounds_are_enough(b, rounds, x->until); rounds++) {
        progress_step(&b->bar, x->shape->problem);
        wake_threads(b->common.threads);
        if (!b->suite->reads) bench_peaks_round(b->o, &b->machine, b->common.threads, &x->peaks);
        code = measuring_round(m, f);
        if (b->suite->reads && !code) time_reading(x, buffers, &repeats);
        if (x->peers && !code) peers_round(&b->peers, x->peers);
    }
    return code;
}

/* Peers that the time was too short for. */
static void drop_untimed(const attention_bench *b, const outcome *x)
{
    for (int i = 0; i < b->peers.count; i++) {
        peer_result *r = &x->peers[i];
        if (!r->ran || r->times.count) continue;
        r->ran = false;
        (void)snprintf(r->reason, sizeof r->reason, "%s", why_left_out());
    }
}

static int check_and_time(attention_bench *b, outcome *x, measuring *m, fault *f)
{
    peak_buffers buffers = {.threads = 0};
    int code = measuring_check(m, f);
    if (!code) progress_step(&b->bar, x->shape->problem);
    if (!code && x->peers) code = peers_open(&b->peers, &x->subject, x->peers, f);
    if (!code && b->suite->reads && !peak_buffers_create(&buffers, b->common.threads, (size_t)x->bytes))
        code = fault_no_memory(f);
    if (!code) code = run_rounds(b, x, m, &buffers, f);
    if (b->suite->reads) peak_buffers_free(&buffers);
    if (x->peers) peers_close(&b->peers);
    if (x->peers) drop_untimed(b, x);
    return code;
}

static void find_bounds(const attention_bench *b, outcome *x)
{
    for (int i = 0; i < x->shape->num_policies; i++) {
        const measurement *m = &x->results[i];
        x->bounds[i] = m->unavailable    ? (double)NAN
                       : b->suite->reads ? samples_min(&x->read)
                                         : roofline_prefill(&x->peaks, &x->subject.in.spec, m);
    }
}

static int run_shape(attention_bench *b, outcome *x, fault *f)
{
    const int count = x->shape->num_policies;
    x->results = calloc((size_t)count + 1, sizeof *x->results);
    x->bounds = calloc((size_t)count + 1, sizeof *x->bounds);
    if (b->peers.count) x->peers = calloc((size_t)b->peers.count, sizeof *x->peers);
    if (!x->results || !x->bounds || (b->peers.count && !x->peers)) return fault_no_memory(f);
    int code = subject_create(&x->subject, x->shape->problem, NULL, &b->common, f);
    if (code) return code;
    x->subject.row_step = row_step(&x->subject.in.spec, isfinite(b->until));
    x->bytes = roofline_bytes(&x->subject.in.spec);
    measuring *m;
    code = measuring_open(&m, &x->subject, b->shapes.policies + x->shape->first_policy, count, x->results, &b->common,
                          true, &b->bar, f);
    if (!code) code = check_and_time(b, x, m, f);
    measuring_close(m);
    if (!code) find_bounds(b, x);
    subject_drop_data(&x->subject);
    return code;
}

static int run_shapes(attention_bench *b, fault *f)
{
    int code = bench_measure_peaks(b->o, &b->machine, b->common.threads, &b->peaks, &b->bar, f);
    int done = b->bar.done;
    for (int i = 0; i < b->shapes.count && !code; i++) {
        outcome *x = &b->outcomes[i];
        x->shape = &b->shapes.list[i];
        x->until = end_of_shape(b, b->shapes.count - i);
        x->left_out = i ? is_over(b) : bench_stopped(); /* something is measured, however short the time */
        if (!x->left_out) code = run_shape(b, x, f) ? shapes_fault(&b->shapes, x->shape, f) : DONE;
        done += x->shape->num_policies + 1 + MOST_ROUNDS;
        b->bar.done = done; /* what was not there, or was short of rounds, is behind us too */
    }
    return code;
}

/* ------------------------------------------------------------------------------------------------ JSON */

static void put(json_t *object, const char *name, json_t *value) { (void)json_object_set_new(object, name, value); }

static json_t *peer_results_json(const attention_bench *b, const outcome *x, const measurement *m)
{
    json_t *all = json_object();
    for (int i = 0; x->peers && i < b->peers.count; i++) {
        const peer_result *r = &x->peers[i];
        json_t *one = json_object();
        if (r->ran) {
            put(one, "ms_min", json_number(1e3 * samples_min(&r->times)));
            put(one, "ms_median", json_number(1e3 * samples_median(&r->times)));
            put(one, "ms_max", json_number(1e3 * samples_max(&r->times)));
            put(one, "ratio", json_number(samples_median_ratio(&m->times, &r->times)));
            put(one, "max_abs_error", json_number(r->max_abs_error));
            put(one, "rel_l2_error", json_number(r->rel_l2_error));
            put(one, "kernel", json_text(r->kernel));
        } else {
            put(one, "ms_median", json_null());
            put(one, "ratio", json_null());
            put(one, "reason", json_text(r->reason));
        }
        put(all, b->peers.list[i].name, one);
    }
    return all;
}

static json_t *result_object(const attention_bench *b, const outcome *x, int i)
{
    const measurement *m = &x->results[i];
    const double median = samples_median(&m->times);
    json_t *object = bench_result_json(x->shape->problem, m->policy.text, m->kernel, b->common.threads, &m->times,
                                       m->gflops, x->bounds[i] / median);
    put(object, "ms_max", json_number(1e3 * samples_max(&m->times)));
    put(object, "rounds", json_integer(m->times.count));
    if (b->suite->reads) put(object, "gbs", json_number(1e-9 * x->bytes / median));
    put(object, "speedup_vs_high", json_number(m->speedup));
    put(object, "max_abs_error", json_number(m->max_abs_error));
    put(object, "max_error_to_bound", json_number(m->max_error_to_bound));
    put(object, "passed", json_boolean(!m->failed));
    put(object, "peers", peer_results_json(b, x, m));
    return object;
}

static json_t *left_out_json(const char *problem, const char *mode, const char *reason)
{
    return json_pack("{s:s, s:s?, s:o}", "shape", problem, "mode", mode, "reason", json_text(reason));
}

static json_t *bench_json(const attention_bench *b)
{
    json_t *results = json_array(), *skipped = json_array(), *list = json_array();
    for (int k = 0; k < b->shapes.count; k++) {
        const outcome *x = &b->outcomes[k];
        if (x->left_out) (void)json_array_append_new(skipped, left_out_json(x->shape->problem, NULL, why_left_out()));
        for (int i = 0; !x->left_out && i < x->shape->num_policies; i++) {
            const measurement *m = &x->results[i];
            if (m->unavailable)
                (void)json_array_append_new(skipped, left_out_json(x->shape->problem, m->policy.text, m->complaint));
            else
                (void)json_array_append_new(results, result_object(b, x, i));
        }
    }
    for (int i = 0; i < b->peers.count; i++) {
        const peer *p = &b->peers.list[i];
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:o, s:o}", "name", p->name, "version", json_text(p->version),
                                              "reason", p->reason[0] ? json_text(p->reason) : json_null()));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "machine", bench_machine_json(&b->machine), "peak",
                     bench_peaks_json(&b->peaks), "results", results, "skipped", skipped, "peers", list);
}

/* ------------------------------------------------------------------------------------------------ text */

static void print_times(const char *name, int width, const samples *s, double work)
{
    const double median = samples_median(s);
    printf("  %-*s %9.3f %9.3f %9.3f %9.1f", width, name, 1e3 * samples_min(s), 1e3 * median, 1e3 * samples_max(s),
           1e-9 * work / median);
}

static void print_mode(const attention_bench *b, const outcome *x, int i, int width, double work)
{
    const measurement *m = &x->results[i];
    char ratio[16], share[16] = "-";
    const double fraction = x->bounds[i] / samples_median(&m->times);
    if (isfinite(fraction)) (void)snprintf(share, sizeof share, "%.1f %%", 100 * fraction);
    print_times(m->policy.text, width, &m->times, b->suite->reads ? x->bytes : work);
    printf(" %8s %10s  %s%s\n", share, result_ratio(m, ratio), m->kernel, m->failed ? "  FAILED" : "");
}

static void print_peer(const attention_bench *b, const outcome *x, int i, int width, double work)
{
    const peer_result *r = &x->peers[i];
    print_times(b->peers.list[i].name, width, &r->times, b->suite->reads ? x->bytes : work);
    printf(" %8s %10.1e  %s\n", "", r->rel_l2_error, r->kernel);
}

/* Every mode against every peer that ran. */
static void print_ratios(const attention_bench *b, const outcome *x, int width)
{
    printf("  %-*s", width, "peer's time / ours");
    for (int i = 0; i < b->peers.count; i++)
        if (x->peers[i].ran) printf(" %*s", (int)strlen(b->peers.list[i].name) + 1, b->peers.list[i].name);
    putchar('\n');
    for (int k = 0; k < x->shape->num_policies; k++) {
        const measurement *m = &x->results[k];
        if (m->unavailable) continue;
        printf("  %-*s", width, m->policy.text);
        for (int i = 0; i < b->peers.count; i++)
            if (x->peers[i].ran)
                printf(" %*.2f", (int)strlen(b->peers.list[i].name) + 1,
                       samples_median_ratio(&m->times, &x->peers[i].times));
        putchar('\n');
    }
}

static void print_peers(const attention_bench *b, const outcome *x, int width, double work)
{
    int ran = 0;
    for (int i = 0; i < b->peers.count; i++) ran += x->peers[i].ran;
    if (ran)
        printf("  %-*s %9s %9s %9s %9s %8s %10s  kernel\n", width, "peer", "ms min", "median", "max",
               b->suite->reads ? "GB/s" : "GFLOP/s", "", "rel. error");
    for (int i = 0; i < b->peers.count; i++)
        if (x->peers[i].ran) print_peer(b, x, i, width, work);
    for (int i = 0; i < b->peers.count; i++)
        if (!x->peers[i].ran) printf("  not run: %s: %s\n", b->peers.list[i].name, x->peers[i].reason);
    if (ran) print_ratios(b, x, width);
}

static void print_outcome(const attention_bench *b, const outcome *x)
{
    if (x->left_out) {
        printf("\n%s\n  not run: %s\n", x->shape->problem, why_left_out());
        return;
    }
    const problem_spec *spec = &x->subject.in.spec;
    const double work = 2 * problem_visible_cells(spec) * (double)(spec->d + spec->dv);
    int width = 20;
    for (int i = 0; i < x->shape->num_policies; i++)
        if ((int)strlen(x->results[i].policy.text) > width) width = (int)strlen(x->results[i].policy.text);
    printf("\n%s\n", x->shape->problem);
    printf("  %-*s %9s %9s %9s %9s %8s %10s  kernel\n", width, "mode", "ms min", "median", "max",
           b->suite->reads ? "GB/s" : "GFLOP/s", "of bound", "err/bound");
    for (int i = 0; i < x->shape->num_policies; i++)
        if (!x->results[i].unavailable) print_mode(b, x, i, width, work);
    for (int i = 0; i < x->shape->num_policies; i++)
        if (x->results[i].unavailable)
            printf("  not run: %s: %s\n", x->results[i].policy.text, x->results[i].complaint);
    if (b->suite->reads)
        printf("  %-*s %9.3f %9.3f %9.3f %9.1f\n", width, "reading K and V", 1e3 * samples_min(&x->read),
               1e3 * samples_median(&x->read), 1e3 * samples_max(&x->read), 1e-9 * x->bytes / samples_min(&x->read));
    if (x->peers) print_peers(b, x, width, work);
}

static void print_text(const attention_bench *b)
{
    bench_print_machine(&b->machine);
    bench_print_run(b->common.threads);
    putchar('\n');
    bench_print_peaks(&b->peaks);
    for (int i = 0; i < b->peers.count; i++) {
        const peer *p = &b->peers.list[i];
        printf("%s%-18s %s%s\n", i ? "" : "\n", p->name, p->version, p->reason[0] ? p->reason : "");
    }
    for (int i = 0; i < b->shapes.count; i++) print_outcome(b, &b->outcomes[i]);
}

/* ------------------------------------------------------------------------------------------------ the command */

static int load_shapes(attention_bench *b, fault *f)
{
    if (b->o->shapes) return shapes_read(&b->shapes, b->o->shapes, f);
    return shapes_parse(&b->shapes, b->suite->name, b->o->quick ? b->suite->quick_shapes : b->suite->shapes, f);
}

/* One that is wrong is left out, but something must be right. */
static int check_validity(const attention_bench *b, fault *f)
{
    const char *complaint = NULL;
    for (int i = 0; i < b->shapes.count; i++) {
        const outcome *x = &b->outcomes[i];
        const char *said = x->left_out ? NULL : bench_complaint(x->results, x->shape->num_policies);
        if (!said) return DONE;
        if (!complaint) complaint = said;
    }
    return fault_set(f, BAD_INPUT, "%s", complaint);
}

static int verdict(const attention_bench *b, fault *f)
{
    int code = check_validity(b, f);
    for (int i = 0; i < b->shapes.count && !code; i++)
        if (!b->outcomes[i].left_out)
            code = result_verdict(&b->outcomes[i].subject, b->outcomes[i].results, b->shapes.list[i].num_policies, f);
    return code;
}

static int run_suite(attention_bench *b, fault *f)
{
    b->outcomes = calloc((size_t)b->shapes.count + 1, sizeof *b->outcomes);
    if (!b->outcomes) return fault_no_memory(f);
    bench_pin(b->o, &b->machine, b->common.threads);
    if (b->o->seconds) b->until = samples_now() + b->o->seconds;
    int code = b->o->peers ? peers_start(&b->peers, b->o->peers, b->common.threads, common_isa(&b->common), b->until, f)
                           : DONE;
    int steps = BENCH_PEAK_ROUNDS;
    for (int i = 0; i < b->shapes.count; i++) steps += b->shapes.list[i].num_policies + 1 + MOST_ROUNDS;
    progress_begin(&b->bar, steps);
    if (b->o->quick && !b->o->seconds) b->until = samples_now() + quick_seconds; /* peers have started */
    bench_catch_stop(true);
    if (!code) code = run_shapes(b, f);
    bench_catch_stop(false);
    progress_clear(&b->bar);
    if (!code && b->o->common.json) code = print_json(bench_json(b), f);
    if (!code && !b->o->common.json) print_text(b);
    if (!code) code = verdict(b, f);
    for (int i = 0; i < b->shapes.count; i++) {
        outcome *x = &b->outcomes[i];
        if (x->shape) measurements_free(x->results, x->shape->num_policies);
        free(x->bounds);
        free(x->peers);
        subject_free(&x->subject);
    }
    free(b->outcomes);
    peers_stop(&b->peers);
    return code;
}

static int bench_suite(const bench_options *o, const suite *which, fault *f)
{
    attention_bench *b = calloc(1, sizeof *b);
    if (!b) return fault_no_memory(f);
    b->o = o;
    b->suite = which;
    b->until = (double)INFINITY;
    machine_read(&b->machine);
    b->common = o->common;
    b->common.threads = bench_threads(o, &b->machine);
    int code = load_shapes(b, f);
    if (!code) code = run_suite(b, f);
    shapes_free(&b->shapes);
    free(b);
    return code;
}

int bench_prefill(const bench_options *o, fault *f)
{
    const suite prefill = {"prefill", shapes_prefill, shapes_prefill_quick, false};
    return bench_suite(o, &prefill, f);
}

int bench_decode(const bench_options *o, fault *f)
{
    const suite decode = {"decode", shapes_decode, shapes_decode_quick, true};
    return bench_suite(o, &decode, f);
}
