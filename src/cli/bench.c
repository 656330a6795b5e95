/* `tilelamp bench`: measures speed. */
#define _GNU_SOURCE /* argp, clock_gettime */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------------ samples */

int bench_rounds(const bench_options *o) { return o->quick ? 5 : BENCH_MAX_ROUNDS; }

int bench_threads(const bench_options *o, const machine *m)
{
#ifdef _OPENMP
    return o->common.threads ? (int)o->common.threads : (int)m->threads;
#else
    (void)o;
    (void)m;
    return 1;
#endif
}

void samples_add(samples *s, double seconds) { s->seconds[s->count++] = seconds; }

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double samples_min(const samples *s)
{
    double least = s->seconds[0];
    for (int i = 1; i < s->count; i++) least = s->seconds[i] < least ? s->seconds[i] : least;
    return least;
}

double samples_median(const samples *s)
{
    samples copy = *s;
    return median(copy.seconds, copy.count);
}

double samples_median_ratio(const samples *a, const samples *b)
{
    samples ratio = *a;
    for (int i = 0; i < a->count; i++) ratio.seconds[i] = b->seconds[i] / a->seconds[i];
    return median(ratio.seconds, ratio.count);
}

double bench_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------------------------------------ JSON */

json_t *bench_machine_json(const machine *m)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "processor", m->processor, "features", m->features, "threads",
                     (json_int_t)m->threads, "isa", tlamp_isa(), "compiler", machine_compiler());
}

json_t *bench_result_json(const char *shape, const char *mode, const char *kernel, int threads, const samples *s,
                          double rate, double roofline_fraction)
{
    json_t *object = json_pack("{s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:{}}", "shape", shape, "mode", mode, "kernel",
                               kernel, "threads", threads, "ms_min", 1e3 * samples_min(s), "ms_median",
                               1e3 * samples_median(s), "gflops", rate, "peers");
    (void)json_object_set_new(object, "roofline_fraction", json_number(roofline_fraction));
    return object;
}

/* ------------------------------------------------------------------------------------------------ the command */

/* run NULL: named in the documentation, and not in this version. */
static const struct benchmark {
    const char *name;
    int (*run)(const bench_options *o, fault *f);
} benchmarks[] = {
    {"peak", bench_peak}, {"lamp", bench_lamp}, {"prefill", NULL}, {"decode", NULL}, {"quant", NULL}, {"tune", NULL},
};
enum { NUM_BENCHMARKS = sizeof benchmarks / sizeof benchmarks[0], KEY_QUICK = 0x4000 };

static const struct argp_option bench_arguments[] = {
    {"quick", KEY_QUICK, NULL, 0, "Fewer rounds", 10},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t parse_bench(int key, char *value, struct argp_state *state)
{
    bench_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case KEY_QUICK: o->quick = true; return 0;
    case ARGP_KEY_ARG:
        if (o->what) return cli_wrong(&o->common, "'%.40s' and '%.40s': bench one thing at a time", o->what, value);
        o->what = value;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};
static const struct argp bench_argp = {
    bench_arguments,
    parse_bench,
    "peak|lamp",
    "Measures speed; what is compared is timed in turns. peak: what this machine can do at most, in FMA, in INT8 "
    "products "
    "and in reading memory. lamp: simulated products per second of LampAttention's formats, against the FMA rate.\v"
    "Example: tilelamp bench lamp --quick",
    children,
    NULL,
    NULL,
};

static int run_benchmark(const bench_options *o, fault *f)
{
    const char *what = o->what ? o->what : "prefill";
    for (int i = 0; i < NUM_BENCHMARKS; i++) {
        if (strcmp(benchmarks[i].name, what) != 0) continue;
        if (benchmarks[i].run) return benchmarks[i].run(o, f);
        return fault_set(f, UNAVAILABLE,
                         "bench %s is not in this version: compare measures too, bench peak and lamp work", what);
    }
    return fault_set(f, BAD_INPUT, "'%.40s' is nothing to bench: write peak or lamp", what);
}

int command_bench(int argc, char **argv, fault *f)
{
    bench_options options = {.what = NULL};
    int code = cli_parse(&bench_argp, argc, argv, &options.common);
    if (code) {
        *f = options.common.error;
        return code;
    }
    code = common_apply(&options.common, f);
    return code ? code : run_benchmark(&options, f);
}
