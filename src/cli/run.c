/* `tilelamp run`: one attention, compared with the exact result. */
#define _GNU_SOURCE /* argp */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "file.h"
#include "measure.h"
#include "output.h"
#include "problem.h"
#include "result.h"

typedef struct run_options {
    common_options common; /* first: cli_parse */
    const char *path, *policy, *out;
    char *problem; /* from malloc; NULL with path */
} run_options;

enum { KEY_QKV = 0x2000, KEY_OUT };

static const struct argp_option run_arguments[] = {
    {"qkv", KEY_QKV, "FILE", 0, "Take q, k and v from a safetensors file", 10},
    {"policy", 'p', "POLICY", 0, "Precision policy (default: high)", 10},
    {"out", KEY_OUT, "FILE", 0, "Write o and lse to a safetensors file", 10},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t take_problem(run_options *o, const struct argp_state *state)
{
    if (o->path && state->argc > state->next)
        return cli_wrong(&o->common, "a problem and a file are given: leave one of them out");
    if (!o->path) o->problem = join_arguments(state->argv + state->next, state->argc - state->next);
    return 0;
}

static error_t parse_run(int key, char *value, struct argp_state *state)
{
    run_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case KEY_QKV:
        if (o->path) return cli_wrong(&o->common, "--qkv is given twice: run takes one file, compare takes several");
        o->path = value;
        return 0;
    case 'p':
        if (o->policy) return cli_wrong(&o->common, "--policy is given twice: run takes one, compare takes several");
        o->policy = value;
        return 0;
    case KEY_OUT: o->out = value; return 0;
    case ARGP_KEY_ARGS: return take_problem(o, state);
    case ARGP_KEY_NO_ARGS:
        if (o->path) return 0;
        return cli_wrong(&o->common,
                         "no problem: write, say, tilelamp run \"hq8 q1024 d64 causal\", or give --qkv FILE");
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};
static const struct argp run_argp = {
    run_arguments,
    parse_run,
    "PROBLEM\n--qkv FILE",
    "Computes one attention under one precision policy, compares it with the exact result in double precision, and "
    "times it. "
    "Fails where an error is larger than the policy promises.\v"
    "Example:\n  tilelamp run \"hq8 q1024 d64 causal\" --policy band:0.5\n",
    children,
    cli_filter_help,
    NULL,
};

static double percent(int64_t part, int64_t whole) { return whole > 0 ? 100 * (double)part / (double)whole : 0; }

static void print_recomputed(const tlamp_counters *c)
{
    const int64_t *tiles = c->tiles_recomputed, all = tiles[0] + tiles[1] + tiles[2];
    printf("recomputed     %.1f %% of the sub-blocks: stage one %.1f %%, stage two %.1f %%, forced %.1f %%\n",
           percent(c->sub_blocks_recomputed, c->sub_blocks), percent(c->stage_one, c->sub_blocks),
           percent(c->stage_two, c->sub_blocks), percent(c->forced, c->sub_blocks));
    printf("tiles          with 0, 1, more of them: %.1f %%, %.1f %%, %.1f %%\n", percent(tiles[0], all),
           percent(tiles[1], all), percent(tiles[2], all));
    printf("largest logit  %.2f; saturated: %lld\n", (double)c->largest_logit, (long long)c->saturated_logits);
}

static void print_text(const subject *s, const measurement *m)
{
    const shares share = result_shares(m);
    char ratio[16], *title = subject_title(s);
    printf("input          %s\n", title ? title : "");
    free(title);
    if (s->source) printf("source         %s\n", s->source);
    printf("policy         %s\n", m->policy.text);
    printf("kernel         %s\n", m->kernel);
    printf("time           %.3f ms, %.2f GFLOP/s\n", m->ms, m->gflops);
    printf("max error      %.3e   (mean %.3e, relative L2 %.3e)\n", m->max_abs_error, m->mean_abs_error,
           m->rel_l2_error);
    printf("max LSE error  %.3e\n", m->max_lse_error);
    printf("error / bound  %s\n", result_ratio(m, ratio));
    const bool lamp = m->policy.policy.kind == TLAMP_POLICY_LAMP;
    if (m->counters.groups && (!lamp || policy_has_words(&m->policy)))
        printf("%-13s  groups %.1f %%, tiles %.1f %%, cells %.1f %%\n", lamp ? "low allowed" : "INT8 share",
               100 * share.group, 100 * share.tile, 100 * share.cell);
    if (m->counters.sub_blocks) print_recomputed(&m->counters);
}

static int measure_and_print(const run_options *o, subject *s, const policy_spec *policy, measurement *result, fault *f)
{
    progress bar;
    progress_begin(&bar, measure_steps(1));
    int code = measure(s, policy, 1, result, &o->common, &bar, f);
    progress_clear(&bar);
    if (!code && o->out) code = output_write(o->out, s, result, f);
    if (code) return code;
    if (!o->common.json) print_text(s, result);
    if (o->common.json) code = print_json(result_json(s, result), f);
    return code ? code : result_verdict(s, result, 1, f);
}

static int run(const run_options *o, fault *f)
{
    policy_spec policy;
    int code = policy_parse(&policy, o->policy ? o->policy : "high", f);
    if (!code) code = common_apply(&o->common, f);
    if (!code) code = file_check(o->out, f);
    if (code) return code;
    subject s;
    code = subject_create(&s, o->problem, o->path, &o->common, f);
    if (code) return code;
    measurement *result = calloc(1, sizeof *result);
    code = result ? measure_and_print(o, &s, &policy, result, f) : fault_no_memory(f);
    measurements_free(result, 1);
    subject_free(&s);
    return code;
}

int command_run(int argc, char **argv, fault *f)
{
    run_options options = {.path = NULL};
    int code = cli_parse(&run_argp, argc, argv, &options.common);
    if (code)
        *f = options.common.error;
    else
        code = run(&options, f);
    free(options.problem);
    return code;
}
