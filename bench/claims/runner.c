#define _GNU_SOURCE /* clock_gettime */
#include "runner.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "cli/result.h"

int runner_open(runner *r, const common_options *options, fault *f)
{
    const double cells = 1 << 17; /* of which the exact result is computed */
    policy_spec policy;
    progress bar = {.total = 1};
    r->result = calloc(1, sizeof *r->result);
    if (!r->result) return fault_no_memory(f);
    int code = policy_parse(&policy, r->policy, f);
    if (!code) code = subject_create(&r->subject, r->problem, NULL, options, f);
    if (code) return code;
    const problem_spec *spec = &r->subject.in.spec;
    r->flop = 2 * problem_visible_cells(spec) * (double)(spec->d + spec->dv);
    r->subject.row_step = (int64_t)ceil(problem_visible_cells(spec) / cells);
    tlamp_exec_init(&r->exec, sizeof r->exec);
    r->exec.num_threads = options->threads;
    r->exec.device = options->device;
    code = measuring_open(&r->measuring, &r->subject, &policy, 1, r->result, options, true, &bar, f);
    if (!code) code = measuring_check(r->measuring, f);
    return code ? code : result_verdict(&r->subject, r->result, 1, f);
}

static double now(const runner *r)
{
    struct timespec t;
    (void)clock_gettime(r->exec.num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int call(runner *r, int times, double *seconds, fault *f)
{
    const double start = now(r);
    int code = DONE;
    for (int i = 0; i < times && !code; i++) code = measuring_call(r->measuring, r->result, &r->exec, f);
    *seconds = (now(r) - start) / times;
    return code;
}

/* A call before, untimed, brings its data back into the caches. */
int runner_time(runner *r, fault *f)
{
    double seconds = 0;
    if (r->result->unavailable) return DONE;
    int code = call(r, 1, &seconds, f);
    if (!r->repeats) r->repeats = samples_repeats(seconds);
    if (!code) code = call(r, r->repeats, &seconds, f);
    if (!code) samples_add(&r->times, seconds);
    return code;
}

void runner_close(runner *r)
{
    if (!r->result) return;
    measuring_close(r->measuring);
    subject_free(&r->subject);
    measurements_free(r->result, 1);
    r->result = NULL;
}

const char *runner_name(const runner *r, bool by_policy) { return by_policy ? r->policy : r->problem; }
