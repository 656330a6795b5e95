/* `tilelamp bench lamp`: how fast LampAttention's formats are simulated, against this machine's FMA rate.
 *
 * A simulated product is one step c <- rnd(fma(a, b, c)) of q k, and an attention without a mask whose every logit is
 * computed once takes lq lk d of them per head. Two rates come from such attentions, with v so thin that P V hardly counts:
 *   whole  the products of d = 128 in the time of the whole call: exponentials, maxima, sums and P V are in it
 *   steps  the products that d = 256 takes more than d = 128, in the time that it takes longer. All that does not depend on
 *          d is in both calls and drops out: what is left is the accumulation
 * The FMA rate is that of a loop of nothing but FMAs (peak.h): one FMA against one product. Everything takes turns, and
 * the ratio is the median of the rounds' ratios. The target is for the steps. */
#define _GNU_SOURCE /* fork, MAP_ANONYMOUS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "data.h"
#include "peak.h"
#include "policy.h"

enum { HEAD_ROWS = 512, KEYS = 1024, DIM = 128, VALUES = 4, CHECKED_ROWS = 128 };
static const double target = 0.125;

static const struct format {
    const char *mode, *policy;
} formats[] = {
    {"low sim", "lamp:low"},
    {"low hw", "lamp:low,mode=hw"},
    {"high sim", "lamp:mid"},
    {"high hw", "lamp:mid,mode=hw"},
};
enum { NUM_FORMATS = sizeof formats / sizeof formats[0] };

/* ------------------------------------------------------------------------------------------------ attentions */

/* One shape, in every format. */
typedef struct attention {
    char shape[96];
    input in;
    policy_spec policies[NUM_FORMATS];
    tlamp_problem problems[NUM_FORMATS];
    tlamp_plan *plans[NUM_FORMATS];
    samples times[NUM_FORMATS];
} attention;

static int open_format(attention *a, int i, fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const int code = policy_parse(&a->policies[i], formats[i].policy, f);
    if (code) return code;
    a->problems[i] = a->in.problem;
    a->problems[i].policy = &a->policies[i].policy;
    return tlamp_plan_create(&a->plans[i], &a->problems[i], NULL, &err) ? fault_from_library(f, &err) : DONE;
}

static void attention_close(attention *a)
{
    for (int i = 0; i < NUM_FORMATS; i++) tlamp_plan_destroy(a->plans[i]);
    input_free(&a->in);
}

/* attention_close is due in any case. */
static int attention_open(attention *a, int heads, int rows, int dim, fault *f)
{
    problem_spec spec;
    *a = (attention){.shape = ""};
    (void)snprintf(a->shape, sizeof a->shape, "hq%d q%d k%d d%d dv%d f16 out:f32 data:qknorm", heads, rows, KEYS, dim,
                   VALUES);
    int code = problem_parse(&spec, a->shape, f);
    if (!code) code = input_create(&a->in, &spec, f);
    if (!code) code = input_fill(&a->in, f);
    for (int i = 0; i < NUM_FORMATS && !code; i++) code = open_format(a, i, f);
    return code;
}

static int attend(attention *a, int format, int threads, fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_exec exec;
    tlamp_exec_init(&exec, sizeof exec);
    exec.num_threads = threads;
    return tlamp_execute(a->plans[format], &a->in.tensors, &exec, NULL, 0, &err) ? fault_from_library(f, &err) : DONE;
}

static double products(const attention *a)
{
    const problem_spec *s = &a->in.spec;
    return (double)(s->heads_q * s->lq * s->lk * s->d);
}

/* ------------------------------------------------------------------------------------------------ the check */

enum { SHALLOW, DEEP, DEPTHS }; /* d = DIM, 2 DIM */

/* The first rows of the first head, in each format. */
typedef struct outputs {
    float o[NUM_FORMATS][CHECKED_ROWS][VALUES];
} outputs;

static int take_outputs(attention *a, int threads, outputs *out, fault *f)
{
    const float *from = a->in.tensors.o;
    for (int i = 0; i < NUM_FORMATS; i++) {
        const int code = attend(a, i, threads, f);
        if (code) return code;
        for (int64_t row = 0; row < CHECKED_ROWS; row++)
            memcpy(out->o[i][row], from + input_offset(&a->in.problem.o_stride, NULL, 0, row, 0),
                   sizeof out->o[i][row]);
    }
    return DONE;
}

static int run_scalar(outputs out[DEPTHS], fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    int code = tlamp_set_max_isa("scalar", &err) ? fault_from_library(f, &err) : DONE;
    for (int depth = 0; depth < DEPTHS && !code; depth++) {
        attention a;
        code = attention_open(&a, 1, CHECKED_ROWS, DIM << depth, f);
        if (!code) code = take_outputs(&a, 1, &out[depth], f);
        attention_close(&a);
    }
    return code;
}

/* In a child, since a process chooses its instruction set once; so nothing may have been planned yet. */
static int run_scalar_child(outputs out[DEPTHS], fault *f)
{
    const pid_t child = fork();
    if (child == 0) _exit(run_scalar(out, f));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return fault_set(f, UNAVAILABLE, "bench lamp: no child process can be started: close some programs");
    if (WIFEXITED(status) && WEXITSTATUS(status) == DONE) return DONE;
    return fault_set(f, UNAVAILABLE, "bench lamp: the scalar kernel did not run: try tilelamp run --isa scalar");
}

static int compare(attention *a, int threads, const outputs *expected, fault *f)
{
    static outputs got;
    const int code = take_outputs(a, threads, &got, f);
    if (code) return code;
    for (int i = 0; i < NUM_FORMATS; i++)
        if (memcmp(got.o[i], expected->o[i], sizeof got.o[i]) != 0)
            return fault_set(f, CHECK_FAILED,
                             "%s: %s and the scalar kernel differ: report it with: tilelamp bench lamp",
                             formats[i].policy, tlamp_plan_kernel_name(a->plans[i]));
    return DONE;
}

/* ------------------------------------------------------------------------------------------------ times */

/* So many threads, with a head for each. */
typedef struct race {
    int threads;
    attention at[DEPTHS];
    samples fma;
    double fmas; /* of one round */
} race;

static int race_open(race *r, int threads, const peak_loop *loop, const outputs expected[DEPTHS], fault *f)
{
    int code = DONE;
    r->threads = threads;
    r->fmas = loop->operations / 2 * (double)loop->steps * threads;
    for (int depth = 0; depth < DEPTHS && !code; depth++) {
        code = attention_open(&r->at[depth], threads, HEAD_ROWS, DIM << depth, f);
        if (!code) code = compare(&r->at[depth], threads, &expected[depth], f);
    }
    return code;
}

static int race_round(race *r, const peak_loop *loop, fault *f)
{
    samples_add(&r->fma, peak_time(loop, r->threads));
    for (int i = 0; i < NUM_FORMATS; i++)
        for (int depth = 0; depth < DEPTHS; depth++) {
            const double start = samples_now();
            const int code = attend(&r->at[depth], i, r->threads, f);
            if (code) return code;
            samples_add(&r->at[depth].times[i], samples_now() - start);
        }
    return DONE;
}

/* A format's rates, per second and as shares of the FMA rate. */
typedef struct rates {
    double whole, steps, fma, whole_share, steps_share;
} rates;

static rates rates_of(const race *r, int format)
{
    const attention *shallow = &r->at[SHALLOW], *deep = &r->at[DEEP];
    const double more = products(deep) - products(shallow);
    samples longer = {.count = 0};
    for (int i = 0; i < r->fma.count; i++)
        samples_add(&longer, deep->times[format].seconds[i] - shallow->times[format].seconds[i]);
    rates x = {.whole = products(shallow) / samples_median(&shallow->times[format]),
               .steps = more / samples_median(&longer),
               .fma = r->fmas / samples_median(&r->fma)};
    x.whole_share = samples_median_ratio(&shallow->times[format], &r->fma) * products(shallow) / r->fmas;
    x.steps_share = samples_median_ratio(&longer, &r->fma) * more / r->fmas;
    return x;
}

/* ------------------------------------------------------------------------------------------------ output */

static json_t *format_json(const race *r, int format)
{
    const attention *a = &r->at[SHALLOW];
    const rates x = rates_of(r, format);
    json_t *result = bench_result_json(a->shape, formats[format].mode, tlamp_plan_kernel_name(a->plans[format]),
                                       r->threads, &a->times[format], 2e-9 * x.whole, x.whole_share);
    (void)json_object_set_new(result, "policy", json_string(formats[format].policy));
    (void)json_object_set_new(result, "products_per_second_whole", json_number(x.whole));
    (void)json_object_set_new(result, "products_per_second_steps", json_number(x.steps));
    (void)json_object_set_new(result, "fma_per_second", json_number(x.fma));
    (void)json_object_set_new(result, "ratio_whole", json_number(x.whole_share));
    (void)json_object_set_new(result, "ratio_steps", json_number(x.steps_share));
    (void)json_object_set_new(result, "ratio_target", json_number(target));
    return result;
}

static json_t *races_json(const machine *m, const race *races, int count)
{
    const race *last = &races[count - 1];
    json_t *list = json_array(), *peak = json_object();
    for (int i = 0; i < count; i++)
        for (int format = 0; format < NUM_FORMATS; format++)
            (void)json_array_append_new(list, format_json(&races[i], format));
    (void)json_object_set_new(peak, "fma_gflops_1", json_number(2e-9 * races->fmas / samples_min(&races->fma)));
    (void)json_object_set_new(peak, "fma_gflops", json_number(2e-9 * last->fmas / samples_min(&last->fma)));
    return json_pack("{s:o, s:o, s:o, s:s}", "machine", bench_machine_json(m), "peak", peak, "results", list, "checked",
                     "the same bits as the scalar kernel in 128 rows");
}

static void print_race(const race *r)
{
    for (int i = 0; i < NUM_FORMATS; i++) {
        const rates x = rates_of(r, i);
        printf("%7d  %-8s  %8.2f %8.2f %8.2f  %7.3f %7.3f  %-5s  %s\n", r->threads, formats[i].mode, 1e-9 * x.fma,
               1e-9 * x.whole, 1e-9 * x.steps, x.whole_share, x.steps_share, x.steps_share >= target ? "met" : "no",
               tlamp_plan_kernel_name(r->at[SHALLOW].plans[i]));
    }
}

static void print_text(const machine *m, const race *races, int count, const peak_loop *loop)
{
    printf("machine  %s, %ld threads; FMA loop %s\n", m->processor, m->threads, loop->name);
    printf("checked  the same bits as the scalar kernel in %d rows\n", CHECKED_ROWS);
    printf("shape    %s, and d%d; with as many heads as threads\n\n", races->at[SHALLOW].shape, 2 * DIM);
    printf("%7s  %-8s  %8s %17s  %15s\n", "", "", "FMA", "products, 1e9/s", "of the FMA rate");
    printf("%7s  %-8s  %8s %8s %8s  %7s %7s  %-5s  %s\n", "threads", "format", "1e9/s", "whole", "steps", "whole",
           "steps", "1/8", "kernel");
    for (int i = 0; i < count; i++) print_race(&races[i]);
    printf("\nwhole: a whole attention; steps: its accumulation alone, from d = %d against d = %d. The low exponential "
           "by\n"
           "table against the polynomial: tilelamp-exp-table, which needs AVX512-VBMI%s.\n",
           2 * DIM, DIM, machine_has(m, "avx512vbmi") ? "" : "; this processor has none, so it is not measured here");
}

/* ------------------------------------------------------------------------------------------------ the command */

static int run_races(const bench_options *o, race *races, int count, const peak_loop *loop, fault *f)
{
    int code = DONE;
    for (int round = 0; round < bench_rounds(o) && !code; round++)
        for (int i = 0; i < count && !code; i++) code = race_round(&races[i], loop, f);
    return code;
}

int bench_lamp(const bench_options *o, fault *f)
{
    machine m;
    machine_read(&m);
    const int threads = bench_threads(o, &m), count = threads > 1 ? 2 : 1;
    const peak_loop *loop = peak_find(PEAK_FMA, &m, o->common.isa);
    const size_t bytes = DEPTHS * sizeof(outputs);
    outputs *expected = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    race *races = calloc((size_t)count, sizeof *races);
    int code = expected != MAP_FAILED && races ? run_scalar_child(expected, f) : fault_no_memory(f);
    for (int i = 0; i < count && !code; i++) code = race_open(&races[i], i ? threads : 1, loop, expected, f);
    if (!code) code = run_races(o, races, count, loop, f);
    if (!code && o->common.json) code = print_json(races_json(&m, races, count), f);
    if (!code && !o->common.json) print_text(&m, races, count, loop);
    for (int i = 0; races && i < count; i++)
        for (int depth = 0; depth < DEPTHS; depth++) attention_close(&races[i].at[depth]);
    free(races);
    if (expected != MAP_FAILED) (void)munmap(expected, bytes);
    return code;
}
