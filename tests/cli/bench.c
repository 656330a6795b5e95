/* `tilelamp bench` from inside: a wrong result is found whatever the times are; what is computed from times; files of shapes.
 *
 * The linker puts __wrap_tlamp_execute before the library's tlamp_execute (--wrap), so that results can be spoilt. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/peers.h"
#include "cli/pin.h"
#include "cli/roofline.h"
#include "cli/shapes.h"

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("FAILED %s:%d: %s\n", __FILE__, __LINE__, #condition);                                              \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

/* ------------------------------------------------------------------------------------------------ wrong results */

static enum { RIGHT, WRONG_OUTPUT, NAN_OUTPUT, WRONG_LSE, LAST_ROW_LOST } fault_kind;

tlamp_status __real_tlamp_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                                  void *workspace, size_t workspace_bytes, tlamp_error *err);
tlamp_status __wrap_tlamp_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                                  void *workspace, size_t workspace_bytes, tlamp_error *err);

enum { HEADS = 2, ROWS = 40, DIM = 16 }; /* of the shape below, f32 */

tlamp_status __wrap_tlamp_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                                  void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    const tlamp_status status = __real_tlamp_execute(plan, tensors, exec, workspace, workspace_bytes, err);
    float *o = tensors->o;
    if (fault_kind == WRONG_OUTPUT) o[7 * HEADS * DIM + 3] += 0.5f;
    if (fault_kind == NAN_OUTPUT) o[0] = NAN;
    if (fault_kind == WRONG_LSE && tensors->lse) tensors->lse[5] += 0.5f;
    if (fault_kind == LAST_ROW_LOST) o[ROWS * HEADS * DIM - 1] = NAN; /* as it was before the call */
    return status;
}

static void write_file(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");
    if (!out || fputs(text, out) < 0 || fclose(out) != 0) abort();
}

/* Runs a benchmark with its text thrown away. */
static int run_quietly(int (*bench)(const bench_options *, fault *), const bench_options *o, fault *f)
{
    fflush(stdout);
    FILE *screen = stdout;
    stdout = fopen("/dev/null", "w");
    if (!stdout) abort();
    const int code = bench(o, f);
    fclose(stdout);
    stdout = screen;
    return code;
}

static void test_wrong_results(void)
{
    static const char path[] = "cli_bench.shapes";
    write_file(path, "hq2 q40 k80 d16 f32\n    high pv=f32\n    int8 pv=f32\n");
    const bench_options o = {.common = {.threads = 2, .device = -1}, .shapes = path, .quick = true};
    int (*const benches[])(const bench_options *, fault *) = {bench_prefill, bench_decode, bench_quant};
    for (int i = 0; i < 3; i++)
        for (fault_kind = RIGHT; fault_kind <= (i == 0 ? LAST_ROW_LOST : WRONG_OUTPUT); fault_kind++) {
            fault f = {.code = DONE, .text = ""};
            const int code = run_quietly(benches[i], &o, &f);
            if (fault_kind != RIGHT) CHECK(strstr(f.text, "report it with: tilelamp run"));
            CHECK(code == (fault_kind == RIGHT ? DONE : CHECK_FAILED));
        }
    fault_kind = RIGHT;
    remove(path);
}

/* ------------------------------------------------------------------------------------------------ numbers */

static void test_samples(void)
{
    samples a = {.count = 0}, b = {.count = 0};
    CHECK(isnan(samples_median(&a)) && isnan(samples_min(&a)));
    const double x[] = {3, 1, 10, 2}, y[] = {6, 1, 40, 6};
    for (int i = 0; i < 4; i++) {
        samples_add(&a, x[i]);
        samples_add(&b, y[i]);
    }
    CHECK(samples_min(&a) == 1 && samples_max(&a) == 10 && samples_median(&a) == 2.5);
    CHECK(samples_median_ratio(&a, &b) == 2.5); /* of 2, 1, 4, 3; not the ratio of the medians, 2.4 */
    CHECK(a.seconds[0] == 3);                   /* order is kept: rounds belong together */
    for (int i = 0; i < 2 * SAMPLES_MAX_ROUNDS; i++) samples_add(&a, 1);
    CHECK(a.count == SAMPLES_MAX_ROUNDS);
    CHECK(samples_repeats(1) == 1 && samples_repeats(1e-3) == 2 && samples_repeats(0) == 1000);
}

static double bound_of(const bench_peaks *peaks, const char *problem, const char *policy, double int8_share)
{
    fault f;
    problem_spec spec;
    measurement m = {.counters = {.cells = 1000, .cells_int8 = (int64_t)(1000 * int8_share)}};
    CHECK(problem_parse(&spec, problem, &f) == DONE && policy_parse(&m.policy, policy, &f) == DONE);
    m.pv = m.policy.policy.pv; /* of the kernel that ran */
    return roofline_prefill(peaks, &spec, &m);
}

static void test_roofline(void)
{
    bench_peaks p = {.rate = {[PEAK_FMA] = 100, [PEAK_BF16] = (double)NAN, [PEAK_INT8] = 400, [PEAK_SOFTMAX] = 5}};
    /* 2 heads of 10 x 20 cells: 400 cells; Q K^T 2 * 8, P V 2 * 4 operations, 1 softmax element each */
    const char *f32 = "hq2 q10 k20 d8 dv4 f32", *bf16 = "hq2 q10 k20 d8 dv4 bf16";
    const double qk = 400 * 16 * 1e-9, pv = 400 * 8 * 1e-9, softmax = 400 * 1e-9 / 5;
#define NEAR(a, b) CHECK(fabs((a) / (b)-1) < 1e-12)
    NEAR(bound_of(&p, f32, "high", 0), qk / 100 + softmax + pv / 100);
    NEAR(bound_of(&p, f32, "int8 pv=f32", 1), qk / 400 + softmax + pv / 100);
    NEAR(bound_of(&p, f32, "int8 pv=int8", 1), qk / 400 + softmax + pv / 400);
    NEAR(bound_of(&p, f32, "x3 pv=f32", 0), 3 * qk / 400 + softmax + pv / 100);
    NEAR(bound_of(&p, f32, "band:0.5 pv=f32", 0.25), .25 * qk / 400 + .75 * qk / 100 + softmax + pv / 100);
    NEAR(bound_of(&p, bf16, "high pv=bf16", 0), qk / 100 + softmax + pv / 100); /* no products of bf16 */
    CHECK(isnan(bound_of(&p, f32, "lamp:low", 0)));
    p.rate[PEAK_BF16] = 200;
    NEAR(bound_of(&p, bf16, "high pv=bf16", 0), qk / 200 + softmax + pv / 200);
    NEAR(bound_of(&p, f32, "high", 0), qk / 100 + softmax + pv / 100);
    NEAR(bound_of(&p, f32, "int8 pv=bf16", 1), qk / 400 + softmax + pv / 200);
    p.rate[PEAK_BF16] = 1000; /* f32 by 6 products of planes, f16 by 4, f32 with bf16 by 3, with f16 by 5 */
    NEAR(bound_of(&p, f32, "high", 0), 6 * qk / 1000 + softmax + 6 * pv / 1000);
    NEAR(bound_of(&p, bf16, "high pv=f32", 0), qk / 1000 + softmax + 3 * pv / 1000);
    NEAR(bound_of(&p, "hq2 q10 k20 d8 dv4 f16", "high pv=f32", 0), 4 * qk / 1000 + softmax + 5 * pv / 1000);
    p.rate[PEAK_BF16] = 50; /* slower than f32: nobody has to use it */
    NEAR(bound_of(&p, bf16, "high pv=bf16", 0), qk / 100 + softmax + pv / 100);
    NEAR(bound_of(&p, "hq2 q20 d8 dv4 f32 causal", "high", 0), (qk / 100 + softmax + pv / 100) * 420 / 400);
#undef NEAR

    fault f;
    problem_spec spec;
    CHECK(problem_parse(&spec, "b2 hq8 hk2 q1 k100 d8 dv4 f16", &f) == DONE);
    CHECK(roofline_bytes(&spec) == 2. * 2 * 100 * (8 + 4) * 2);
    CHECK(problem_parse(&spec, "hq8 hk2 q2 k100 d8 f32 causal window:9,0", &f) == DONE);
    CHECK(roofline_bytes(&spec) == 2. * 11 * 16 * 4); /* keys 89 to 99 */
}

/* ------------------------------------------------------------------------------------------------ processors */

/* A machine whose processors i and i + 4 share a core, whatever it says of itself. */
static double shared_cores(void *context, const int *cpus, int n)
{
    double slowest = 1;
    (void)context;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (cpus[i] % 4 == cpus[j] % 4) slowest = 2;
    return slowest + 0.1 * n; /* the clock falls */
}

static bool order_is(int wanted, const int *first, const int *expected)
{
    int cpus[8];
    memcpy(cpus, first, sizeof cpus);
    pin_order(cpus, 8, wanted, shared_cores, NULL);
    return memcmp(cpus, expected, sizeof cpus) == 0;
}

static void test_processors(void)
{
    const int mixed[] = {0, 4, 1, 5, 2, 6, 3, 7}, by_core[] = {0, 1, 2, 3, 4, 5, 6, 7};
    CHECK(order_is(1, mixed, mixed));
    CHECK(order_is(2, mixed, (const int[]){0, 1, 4, 5, 2, 6, 3, 7}));
    CHECK(order_is(4, mixed, (const int[]){0, 1, 2, 3, 4, 5, 6, 7}));
    CHECK(order_is(6, mixed, (const int[]){0, 1, 2, 3, 4, 5, 6, 7})); /* there are no more: as they come */
    CHECK(order_is(2, by_core, by_core) && order_is(8, by_core, by_core));

    int cpus[PIN_MAX];
    machine m;
    machine_read(&m);
    pin_threads(1, peak_find(PEAK_FMA, &m, NULL));
    CHECK(pin_list(cpus) == 1 && pin_available() == 1);
}

/* ------------------------------------------------------------------------------------------------ shapes */

static int parse(const char *text, shapes *s, fault *f)
{
    f->text[0] = '\0';
    return shapes_parse(s, "file", text, f);
}

static void test_shapes(void)
{
    shapes s;
    fault f;
    CHECK(parse("# comment\n\nq4 d4 # of it\r\nq5 d4\n  high\n\tint8 pv=f32\n\nq6 d4\n high", &s, &f) == DONE);
    CHECK(s.count == 3 && s.num_policies == 3);
    CHECK(strcmp(s.list[0].problem, "q4 d4") == 0);
    CHECK(s.list[0].first_policy == 0 && s.list[0].num_policies == 2);
    CHECK(s.list[1].first_policy == 0 && s.list[1].num_policies == 2);
    CHECK(s.list[2].first_policy == 2 && s.list[2].num_policies == 1);
    CHECK(strcmp(s.policies[1].text, "int8 pv=f32") == 0);
    shapes_free(&s);

    CHECK(parse("q4 d4\n high pv=f64\n int8\n", &s, &f) == DONE);
    CHECK(strncmp(s.policies[0].wrong, "file:2: policy: ", 16) == 0 && strcmp(s.policies[0].text, "high pv=f64") == 0);
    CHECK(!s.policies[1].wrong[0] && s.list[0].num_policies == 2);
    shapes_free(&s);

    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "file:1: no problem"},
        {"# only a comment\n", "file:1: no problem"},
        {"  high\n", "file:1: a policy without a problem"},
        {"q4 d4\n", "file:1: a problem without a policy"},
        {"q4 d4\n high\n\nq5 d4\n", "file:4: a problem without a policy"},
        {"q4 d4\n high\nq4\n high\n", "file:3: problem: "},
        {"q4 d4\n\n high pv=f64\n", "file:3: policy: "},
        {"q4 d4\n high\nq4 d4 threads:1\n high\n", "file:3: problem: threads: "},
        {"q4 d4\n high\nq1000000000 d1024 hq1024\n high\n", "file:3: problem: it needs "},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK(parse(wrong[i].text, &s, &f) == BAD_INPUT);
        CHECK(strncmp(f.text, wrong[i].says, strlen(wrong[i].says)) == 0);
        shapes_free(&s);
    }

    CHECK(parse("q4 d4\n high\nq4 d4 cache:int8\n high\n", &s, &f) == UNAVAILABLE);
    CHECK(strncmp(f.text, "file:3: problem: cache: ", 24) == 0);
    shapes_free(&s);

    CHECK(parse("q4 d4\n high\n\nq5 d4\n high", &s, &f) == DONE);
    (void)fault_set(&f, BAD_INPUT, "wrong");
    CHECK(shapes_fault(&s, &s.list[1], &f) == BAD_INPUT && strcmp(f.text, "file:4: wrong") == 0);
    shapes_free(&s);

    const char *const built_in[] = {shapes_prefill,      shapes_prefill_quick, shapes_decode,
                                    shapes_decode_quick, shapes_quant,         shapes_quant_quick};
    for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++) {
        CHECK(parse(built_in[i], &s, &f) == DONE);
        CHECK(s.count > 0);
        shapes_free(&s);
    }
}

int main(void)
{
    test_samples();
    test_roofline();
    test_shapes();
    test_wrong_results();
    test_processors(); /* the last: it leaves one processor */
    printf(failures ? "%d failed\n" : "all passed\n", failures);
    return failures > 0;
}
