#include "measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"
#include "qkv.h"

/* ------------------------------------------------------------------------------------------------ subjects */

static double *new_doubles(int64_t count) { return calloc((size_t)count + 1, sizeof(double)); }

static bool allocate_reference(subject *s)
{
    const int64_t rows = s->in.rows, heads = s->in.spec.heads_q, dv = s->in.spec.dv;
    s->o = new_doubles(rows * heads * dv);
    s->o_bound = new_doubles(rows * heads * dv);
    s->lse = new_doubles(rows * heads);
    s->lse_bound = new_doubles(rows * heads);
    s->problem = problem_print(&s->in.spec);
    return s->o && s->o_bound && s->lse && s->lse_bound && s->problem;
}

static int generate(subject *s, const char *problem, const common_options *options, fault *f)
{
    problem_spec spec;
    int code = problem_parse(&spec, problem, f);
    if (code) return code;
    if (options->has_seed) spec.seed = options->seed;
    code = input_create(&s->in, &spec, f);
    return code ? code : input_fill(&s->in, f);
}

int subject_create(subject *s, const char *problem, const char *path, const common_options *options, fault *f)
{
    *s = (subject){.path = path};
    int code = path ? qkv_load(&s->in, path, &s->source, f) : generate(s, problem, options, f);
    if (!code && options->threads) s->in.spec.threads = options->threads;
    if (!code && !allocate_reference(s)) code = fault_no_memory(f);
    if (code) subject_free(s);
    return code;
}

bool subject_has_row(const subject *s, int64_t row, int64_t head)
{
    return s->row_step < 2 || (row + head) % s->row_step == 0;
}

void subject_drop_data(subject *s)
{
    input_free(&s->in);
    free(s->o);
    free(s->lse);
    free(s->o_bound);
    free(s->lse_bound);
    s->o = s->lse = s->o_bound = s->lse_bound = NULL;
}

void subject_free(subject *s)
{
    subject_drop_data(s);
    free(s->source);
    free(s->problem);
    *s = (subject){.path = NULL};
}

/* ------------------------------------------------------------------------------------------------ one policy */

/* A policy ready to run. */
typedef struct job {
    measurement *result;
    tlamp_policy policy;
    tlamp_problem problem;
    tlamp_tensors tensors;
    tlamp_plan *plan;
    size_t workspace_bytes;
    int repeats; /* in a round; 0: not known yet */
} job;

/* What the jobs share. */
struct measuring {
    subject *s;
    const common_options *options;
    tlamp_exec exec;
    void *workspace;
    size_t workspace_bytes;
    measurement *results;
    job *jobs; /* of what is available */
    int count, num_results;
    progress *bar;
};

/* The library's text, with the command that leads to it. */
static int library_fault(const measuring *x, const job *j, const tlamp_error *err, fault *f)
{
    const int code = fault_from_library(f, err);
    char text[sizeof f->text];
    memcpy(text, f->text, sizeof text);
    if (x->s->path)
        return fault_set(f, code, "%.300s [tilelamp run --qkv %s --policy \"%s\"]", text, x->s->path,
                         j->result->policy.text);
    return fault_set(f, code, "%.300s [tilelamp run \"%s\" --policy \"%s\"]", text, x->s->problem,
                     j->result->policy.text);
}

static bool is_power_of_two(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

static void describe_job(const measuring *x, job *j)
{
    const input *in = &x->s->in;
    const policy_spec *policy = &j->result->policy;
    j->policy = policy->policy;
    if (policy->hadamard_if_possible && is_power_of_two(in->spec.d)) j->policy.hadamard = 1;
    j->problem = in->problem;
    j->problem.policy = &j->policy;
    if (policy->splits) j->problem.num_splits = num_splits_of(policy->splits);
    j->tensors = in->tensors;
}

/* Words, plan and workspace size. The library is asked first, so that words are only built for what it accepts. */
static int prepare_job(const measuring *x, job *j, fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    routing *routes = &j->result->routes;
    if (j->result->policy.wrong[0]) return fault_set(f, BAD_INPUT, "%s", j->result->policy.wrong);
    int code = routing_open(routes, &j->result->policy, f);
    if (code) return code;
    describe_job(x, j);
    if (tlamp_supported(&j->problem, &err)) return library_fault(x, j, &err, f);
    if (policy_has_words(&j->result->policy)) {
        const uint32_t seed = x->options->has_seed ? (uint32_t)x->options->seed : 42;
        code = routing_build(routes, &j->result->policy, &x->s->in, seed, f);
        if (code) return code;
        j->problem.words_per_row = routes->words_per_row;
        routing_apply(routes, &j->tensors);
    }
    if (tlamp_plan_create(&j->plan, &j->problem, NULL, &err)) return library_fault(x, j, &err, f);
    j->result->kernel = x->options->device < 0 ? tlamp_plan_kernel_name(j->plan)
                                               : tlamp_plan_device_kernel_name(j->plan);
    j->result->pv = tlamp_plan_pv(j->plan);
    j->workspace_bytes = tlamp_plan_workspace_size(j->plan, x->exec.num_threads);
    return DONE;
}

static int execute_by(const measuring *x, job *j, const tlamp_exec *exec, tlamp_counters *counters, fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    j->tensors.counters = counters;
    if (tlamp_execute(j->plan, &j->tensors, exec, x->workspace, x->workspace_bytes, &err))
        return library_fault(x, j, &err, f);
    return DONE;
}

static int execute(const measuring *x, job *j, tlamp_counters *counters, fault *f)
{
    return execute_by(x, j, &x->exec, counters, f);
}

/* ------------------------------------------------------------------------------------------------ errors */

/* Sums over the elements of O and LSE. */
typedef struct errors {
    double max, sum, squares, exact_squares, max_lse, to_bound;
    int64_t count;
} errors;

/* Where an element is, for a complaint. */
typedef struct place {
    int64_t b, i, h, c; /* c < 0: LSE */
} place;

static void complain(measurement *m, place at, double got, double exact, double bound)
{
    if (m->failed) return; /* the first one is enough */
    m->failed = true;
    char where[100], reason[60] = "which it must equal";
    if (at.c < 0)
        (void)snprintf(where, sizeof where, "LSE of sequence %lld, row %lld, head %lld", (long long)at.b,
                       (long long)at.i, (long long)at.h);
    else
        (void)snprintf(where, sizeof where, "O of sequence %lld, row %lld, head %lld, column %lld", (long long)at.b,
                       (long long)at.i, (long long)at.h, (long long)at.c);
    if (isfinite(exact)) (void)snprintf(reason, sizeof reason, "beyond the bound of %.3g", bound);
    (void)snprintf(m->complaint, sizeof m->complaint, "%s is %.9g and exactly %.9g, %s", where, got, exact, reason);
}

/* The largest finite number of a dtype, and half a step more. */
static double overflow_threshold(tlamp_dtype dtype)
{
    return dtype == TLAMP_F16 ? 65520 : dtype == TLAMP_BF16 ? 0x1.ffp127 : 0x1.ffffffp127;
}

/* An element is right if it is NaN or Inf where the exact one is, and otherwise no further off than its bound. An exact
 * value that the dtype cannot hold is Inf. Returns the error, 0 where both are the same infinity or NaN. */
static double check_element(measurement *m, errors *e, place at, double got, double exact, double bound,
                            tlamp_dtype dtype)
{
    const double threshold = overflow_threshold(dtype);
    if (isfinite(exact) && isinf(bound) && !isfinite(got)) return 0; /* nothing is promised: f16 overflowed, say */
    if (isinf(got) && isfinite(exact) && fabs(exact) + bound >= threshold && (got > 0) == (exact > 0)) return 0;
    if (isnan(got) || isinf(got) || !isfinite(exact)) {
        const bool same = isnan(exact) ? isnan(got) : got == exact;
        if (!same) complain(m, at, got, exact, bound);
        return 0;
    }
    const double error = fabs(got - exact);
    if (!(error <= bound)) complain(m, at, got, exact, bound);
    if (isfinite(bound)) {
        const double ratio = error == 0 ? 0 : error / bound;
        if (!(e->to_bound >= ratio)) e->to_bound = ratio;
    }
    return error;
}

static void check_row(const subject *s, const job *j, errors *e, int64_t b, int64_t i, int64_t h)
{
    const input *in = &s->in;
    const tlamp_tensors *t = &j->tensors;
    const int64_t dv = in->spec.dv, heads = in->spec.heads_q, row = input_row(in, b, i);
    const int64_t at = input_offset(&j->problem.o_stride, t->cu_seqlens_q, b, i, h);
    for (int64_t c = 0; c < dv; c++) {
        const int64_t r = (row * heads + h) * dv + c;
        const double got = tensor_get(t->o, in->spec.o_dtype, at + c), exact = s->o[r];
        const double error = check_element(j->result, e, (place){b, i, h, c}, got, exact, s->o_bound[r],
                                           in->spec.o_dtype);
        if (error > e->max) e->max = error;
        e->sum += error;
        e->squares += error * error;
        if (isfinite(exact)) e->exact_squares += exact * exact;
        e->count++;
    }
    const int64_t r = h * in->rows + row;
    const double got = (double)t->lse[input_lse_offset(in, b, i, h)];
    const double error = check_element(j->result, e, (place){b, i, h, -1}, got, s->lse[r], s->lse_bound[r], TLAMP_F32);
    if (error > e->max_lse) e->max_lse = error;
}

static void check_result(const subject *s, const job *j)
{
    const problem_spec *spec = &s->in.spec;
    measurement *m = j->result;
    errors e = {.to_bound = (double)NAN};
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t i = 0; i < problem_length_q(spec, b); i++)
            for (int64_t h = 0; h < spec->heads_q; h++)
                if (subject_has_row(s, input_row(&s->in, b, i), h)) check_row(s, j, &e, b, i, h);
    m->max_abs_error = e.max;
    m->mean_abs_error = e.count ? e.sum / (double)e.count : 0;
    m->rel_l2_error = e.squares == 0 ? 0 : sqrt(e.squares / e.exact_squares);
    m->max_lse_error = e.max_lse;
    m->max_error_to_bound = e.to_bound;
}

/* Everything NaN, so that an element that is not written shows. */
static void wipe_outputs(input *in)
{
    const problem_spec *spec = &in->spec;
    const int32_t *cu = in->tensors.cu_seqlens_q;
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t i = 0; i < problem_length_q(spec, b); i++)
            for (int64_t h = 0; h < spec->heads_q; h++) {
                const int64_t at = input_offset(&in->problem.o_stride, cu, b, i, h);
                for (int64_t c = 0; c < spec->dv; c++) tensor_set(in->tensors.o, spec->o_dtype, at + c, (double)NAN);
                in->tensors.lse[input_lse_offset(in, b, i, h)] = NAN;
            }
}

/* Where no policy runs, others may still be compared with the exact result. */
static int exact_result(const measuring *x, fault *f)
{
    subject *s = x->s;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const tlamp_reference_outputs outputs = {
        .struct_size = sizeof outputs, .o = s->o, .lse = s->lse, .row_step = s->row_step};
    return tlamp_reference(&s->in.problem, &s->in.tensors, &outputs, &x->exec, &err) ? fault_from_library(f, &err)
                                                                                     : DONE;
}

static int reference(const measuring *x, const job *j, const tlamp_reference_outputs *outputs, fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_tensors tensors = j->tensors;
    tlamp_problem problem = j->problem;
    tlamp_policy policy = *problem.policy;
    policy.pv = j->result->pv; /* the bounds are those of the arithmetic that the kernel uses */
    problem.policy = &policy;
    tensors.counters = NULL;
    if (tlamp_reference(&problem, &tensors, outputs, &x->exec, &err)) return library_fault(x, j, &err, f);
    return DONE;
}

/* The exact result depends on no policy; what a policy may be off by does. */
static int check_job(measuring *x, job *j, fault *f)
{
    subject *s = x->s;
    tlamp_reference_outputs outputs = {.struct_size = sizeof outputs, .o_bound = s->o_bound, .lse_bound = s->lse_bound};
    outputs.row_step = s->row_step;
    if (j == x->jobs) {
        outputs.o = s->o;
        outputs.lse = s->lse;
    }
    progress_step(x->bar, j == x->jobs ? "exact result" : j->result->policy.text);
    int code = reference(x, j, &outputs, f);
    if (code) return code;
    wipe_outputs(&s->in);
    j->result->counters = (tlamp_counters){.struct_size = sizeof j->result->counters};
    code = execute(x, j, &j->result->counters, f);
    if (!code) check_result(s, j);
    return code;
}

/* ------------------------------------------------------------------------------------------------ times */

static int time_job(const measuring *x, job *j, fault *f)
{
    int code = DONE;
    double start = samples_now();
    if (j->repeats != 1) code = execute(x, j, NULL, f); /* untimed, or to know how long it takes */
    if (!j->repeats) j->repeats = samples_repeats(samples_now() - start);
    start = samples_now();
    for (int i = 0; i < j->repeats && !code; i++) code = execute(x, j, NULL, f);
    if (!code) samples_add(&j->result->times, (samples_now() - start) / j->repeats);
    return code;
}

int measuring_call(measuring *m, const measurement *which, const tlamp_exec *exec, fault *f)
{
    for (int i = 0; i < m->count; i++)
        if (m->jobs[i].result == which) return execute_by(m, &m->jobs[i], exec, NULL, f);
    return DONE;
}

int measuring_round(measuring *m, fault *f)
{
    int code = DONE;
    for (int i = 0; i < m->count && !code; i++) code = time_job(m, &m->jobs[i], f);
    return code;
}

/* The jobs take turns, so that a machine that speeds up or slows down does so for all. At least 3 rounds unless they are
 * very slow, more while they are short. Each job has run once before. */
static int time_jobs(measuring *x, fault *f)
{
    const double start = samples_now(), enough = 0.4 * x->count;
    progress_step(x->bar, "timing");
    for (int rounds = 1; rounds <= SAMPLES_MAX_ROUNDS; rounds++) {
        const int code = measuring_round(x, f);
        if (code) return code;
        const double spent = samples_now() - start;
        if ((rounds >= 3 && spent > enough) || spent > 30) break;
    }
    return DONE;
}

static void rate(const measuring *x)
{
    const problem_spec *spec = &x->s->in.spec;
    const double flop = 2 * problem_visible_cells(spec) * (double)(spec->d + spec->dv);
    for (int i = 0; i < x->count; i++) {
        measurement *m = x->jobs[i].result;
        const double seconds = samples_median(&m->times);
        m->ms = seconds * 1e3;
        m->gflops = seconds > 0 ? flop / seconds * 1e-9 : 0;
    }
}

static void relate_to_high(measurement *results, int count)
{
    double high = (double)NAN;
    for (int i = 0; i < count; i++)
        if (results[i].policy.policy.kind == TLAMP_POLICY_HIGH && isnan(high)) high = results[i].ms;
    for (int i = 0; i < count; i++) results[i].speedup = high / results[i].ms;
}

/* ------------------------------------------------------------------------------------------------ all policies */

static int create_workspace(measuring *x, fault *f)
{
    const size_t align = TLAMP_WORKSPACE_ALIGN;
    for (int i = 0; i < x->count; i++)
        if (x->jobs[i].workspace_bytes > x->workspace_bytes) x->workspace_bytes = x->jobs[i].workspace_bytes;
    if (x->workspace_bytes > SIZE_MAX / 2) return fault_no_memory(f);
    x->workspace = aligned_alloc(align, (x->workspace_bytes + align) / align * align);
    return x->workspace ? DONE : fault_no_memory(f);
}

static int prepare_jobs(measuring *x, bool skip_unavailable, fault *f)
{
    for (int i = 0; i < x->num_results; i++) {
        job *j = &x->jobs[x->count];
        *j = (job){.result = &x->results[i]};
        const int code = prepare_job(x, j, f);
        if (code && skip_unavailable) {
            j->result->unavailable = true;
            j->result->invalid = code == BAD_INPUT;
            const char *command = strstr(f->text, " [tilelamp ");
            const int length = command ? (int)(command - f->text) : (int)strlen(f->text);
            (void)snprintf(j->result->complaint, sizeof j->result->complaint, "%.*s", length, f->text);
        } else if (code) {
            return code;
        } else {
            x->count++;
        }
    }
    return DONE;
}

int measuring_open(measuring **m, subject *s, const policy_spec *policies, int count, measurement *results,
                   const common_options *options, bool skip_unavailable, progress *bar, fault *f)
{
    *m = NULL;
    measuring *x = calloc(1, sizeof *x);
    job *jobs = calloc((size_t)count + 1, sizeof *jobs);
    if (!x || !jobs) {
        free(x);
        free(jobs);
        return fault_no_memory(f);
    }
    *x = (measuring){.s = s, .options = options, .results = results, .jobs = jobs, .num_results = count, .bar = bar};
    tlamp_exec_init(&x->exec, sizeof x->exec);
    x->exec.num_threads = (int32_t)s->in.spec.threads;
    x->exec.device = options->device;
    for (int i = 0; i < count; i++) results[i] = (measurement){.policy = policies[i]};
    int code = prepare_jobs(x, skip_unavailable, f);
    if (!code) code = create_workspace(x, f);
    if (code)
        measuring_close(x);
    else
        *m = x;
    return code;
}

int measuring_check(measuring *m, fault *f)
{
    int code = m->count ? DONE : exact_result(m, f);
    for (int i = 0; i < m->count && !code; i++) code = check_job(m, &m->jobs[i], f);
    return code;
}

void measuring_close(measuring *m)
{
    if (!m) return;
    rate(m);
    relate_to_high(m->results, m->num_results);
    for (int i = 0; i < m->count; i++) tlamp_plan_destroy(m->jobs[i].plan);
    free(m->workspace);
    free(m->jobs);
    free(m);
}

int measure_steps(int count) { return count + 1; }

int measure(subject *s, const policy_spec *policies, int count, measurement *results, const common_options *options,
            progress *bar, fault *f)
{
    measuring *m;
    int code = measuring_open(&m, s, policies, count, results, options, false, bar, f);
    if (!code) code = measuring_check(m, f);
    if (!code) code = time_jobs(m, f);
    measuring_close(m);
    return code;
}

void measurements_free(measurement *results, int count)
{
    for (int i = 0; results && i < count; i++) routing_free(&results[i].routes);
    free(results);
}
