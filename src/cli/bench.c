/* `tilelamp bench`: measures speed. */
#define _GNU_SOURCE /* argp */
#include "bench.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "parse.h"
#include "pin.h"

/* ------------------------------------------------------------------------------------------------ how much */

int bench_rounds(const bench_options *o) { return o->quick ? 5 : 15; }

int bench_threads(const bench_options *o, const machine *m)
{
#ifdef _OPENMP
    const int most = pin_available() < m->threads ? pin_available() : (int)m->threads;
    return o->common.threads ? (int)o->common.threads : most;
#else
    (void)o;
    (void)m;
    return 1;
#endif
}

void bench_pin(const bench_options *o, const machine *m, int threads)
{
    pin_threads(threads, peak_find(PEAK_FMA, m, o->common.isa));
}

void bench_print_run(int threads)
{
    int cpus[PIN_MAX];
    const int count = pin_list(cpus);
    printf("run on   %d threads, bound to processor%s", threads, count == 1 ? "" : "s");
    for (int i = 0; i < count; i++) printf(" %d", cpus[i]);
    printf("; kernels up to %s\n", tlamp_isa());
}

/* ------------------------------------------------------------------------------------------------ stopping */

static volatile sig_atomic_t stopped;

static void note_stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

bool bench_stopped(void) { return stopped; }

/* A second signal ends the program as usual. */
void bench_catch_stop(bool on)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_flags = (int)SA_RESETHAND};
    action.sa_handler = on ? note_stop : SIG_DFL;
    for (int i = 0; i < 3; i++) (void)sigaction(signals[i], &action, NULL);
}

/* ------------------------------------------------------------------------------------------------ JSON */

json_t *bench_machine_json(const machine *m)
{
    int cpus[PIN_MAX];
    json_t *list = json_array();
    for (int i = 0, count = pin_list(cpus); i < count; i++) (void)json_array_append_new(list, json_integer(cpus[i]));
    return json_pack("{s:s, s:s, s:I, s:o, s:s, s:s}", "processor", m->processor, "features", m->features, "threads",
                     (json_int_t)m->threads, "processors", list, "isa", tlamp_isa(), "compiler", machine_compiler());
}

void bench_print_machine(const machine *m)
{
    printf("machine  %s, %ld threads\n", m->processor, m->threads);
    printf("built    tilelamp %s with %s\n", tlamp_version_string(), machine_compiler());
}

json_t *bench_result_json(const char *shape, const char *mode, const char *kernel, int threads, const samples *s,
                          double rate, double roofline_fraction)
{
    json_t *object = json_pack("{s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:{}}", "shape", shape, "mode", mode, "kernel",
                               kernel, "threads", threads, "ms_min", json_number(1e3 * samples_min(s)), "ms_median",
                               json_number(1e3 * samples_median(s)), "gflops", json_number(rate), "peers");
    (void)json_object_set_new(object, "roofline_fraction", json_number(roofline_fraction));
    return object;
}

/* ------------------------------------------------------------------------------------------------ what is wrong */

const char *bench_complaint(const measurement *results, int count)
{
    for (int i = 0; i < count; i++)
        if (!results[i].invalid) return NULL;
    return results[0].complaint;
}

/* ------------------------------------------------------------------------------------------------ the command */

static const struct benchmark {
    const char *name;
    int (*run)(const bench_options *o, fault *f);
    bool has_shapes, has_peers;
} benchmarks[] = {
    {"prefill", bench_prefill, true, true}, {"decode", bench_decode, true, true}, {"quant", bench_quant, true, false},
    {"lamp", bench_lamp, false, false},     {"peak", bench_peak, false, false},   {"tune", bench_tune, false, false},
};
enum {
    NUM_BENCHMARKS = sizeof benchmarks / sizeof benchmarks[0],
    KEY_QUICK = 0x4000,
    KEY_SHAPES,
    KEY_PEERS,
    KEY_SECONDS
};

static const struct argp_option bench_arguments[] = {
    {"quick", KEY_QUICK, NULL, 0, "Fewer and smaller shapes, fewer rounds: less than 40 seconds", 10},
    {"seconds", KEY_SECONDS, "N", 0,
     "prefill, decode: end within about N seconds, however many rounds that are, and print what was measured", 10},
    {"shapes", KEY_SHAPES, "FILE", 0, "Measure the shapes of FILE (bench/shapes has examples)", 10},
    {"peers", KEY_PEERS, "LIST", OPTION_ARG_OPTIONAL,
     "Measure other libraries too, in turns with this one: those of LIST (default: build/peers.txt, which `./dev bench "
     "--peers` writes)",
     10},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t parse_bench(int key, char *value, struct argp_state *state)
{
    bench_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case KEY_QUICK: o->quick = true; return 0;
    case KEY_SECONDS:
        if (parse_int32(value, 1, 1000000, &o->seconds)) return 0;
        return cli_wrong(&o->common, "--seconds %.40s: write a whole number, 1 or more", value);
    case KEY_SHAPES: o->shapes = value; return 0;
    case KEY_PEERS: o->peers = value ? value : "build/peers.txt"; return 0;
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
    "[prefill|decode|quant|lamp|peak|tune]",
    "Measures speed. Every result is checked first; what is compared is timed in turns.\n\n"
    "prefill (the default): whole attentions, against the rate that this machine's peaks allow. decode: few rows "
    "against "
    "many keys, against the time of reading K and V. quant: packing and quantising K and V, against copying them. "
    "lamp: "
    "simulated products per second of LampAttention's formats, against the FMA rate. peak: what this machine can do at "
    "most. tune: which forms of the kernels for GPUs are fastest on this one, into a table to build with.\v"
    "A file of shapes has problem strings in the first column and, indented below them, policy strings.\n\n"
    "Examples:\n"
    "  tilelamp bench --quick\n"
    "  tilelamp bench decode --threads 2 --json\n",
    children,
    NULL,
    NULL,
};

static int run_benchmark(const bench_options *o, fault *f)
{
    const char *what = o->what ? o->what : "prefill";
    for (int i = 0; i < NUM_BENCHMARKS; i++) {
        const struct benchmark *b = &benchmarks[i];
        if (strcmp(b->name, what) != 0) continue;
        if (o->shapes && !b->has_shapes)
            return fault_set(f, BAD_INPUT, "bench %s has no shapes: leave --shapes out", what);
        if (o->seconds && !b->has_peers)
            return fault_set(f, BAD_INPUT, "bench %s takes the time it takes: leave --seconds out", what);
        if (o->peers && !b->has_peers) return fault_set(f, BAD_INPUT, "bench %s has no peers: leave --peers out", what);
        return b->run(o, f);
    }
    return fault_set(f, BAD_INPUT, "'%.40s' is nothing to bench: write prefill, decode, quant, lamp, peak or tune",
                     what);
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
    if (!code && options.common.device >= 0)
        code = fault_set(f, UNAVAILABLE,
                         "bench measures the host, whose peaks it compares with: GPUs are measured by ./dev gpu bench");
    return code ? code : run_benchmark(&options, f);
}
