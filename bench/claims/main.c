/* tilelamp-claims: what this library says of its own speed, held against itself.
 *
 *   routed  ROUTED at coverage 0 and 1 takes no longer than the uniform kernels, and the time between them is monotone
 *   cliff   no length and no head dimension is much slower than the next smaller one
 *   causal  a causal attention reaches the rate of a whole one, counted by the pairs that are seen
 *
 * Each is a ratio of two times that are taken in turns, round by round: the median counts. One that misses its target is measured
 * again, up to twice and for twice as long each time: noise does not last. --check fails where a ratio is then still beyond its
 * tolerance, which leaves some room beside the target for what is left of the noise. */
#define _GNU_SOURCE /* argp */
#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/parse.h"
#include "claims.h"

enum { ROUNDS = 15, ATTEMPTS = 3 };

typedef struct arguments {
    common_options common; /* first: cli_parse */
    const char *what;
    bool check, quick;
} arguments;

/* ------------------------------------------------------------------------------------------------ ratios */

/* Measures what misses its target again, each time for longer; the last word is in *r. */
static int settle(ratio *r, runner *runners, int rounds, fault *f)
{
    int code = DONE;
    for (int attempt = 1; attempt < ATTEMPTS && !code && ratio_is_missed(r); attempt++) {
        runner *pair[2] = {&runners[r->a], &runners[r->b]};
        rounds *= 2;
        if (rounds > SAMPLES_MAX_ROUNDS) rounds = SAMPLES_MAX_ROUNDS;
        for (int i = 0; i < 2; i++) pair[i]->times.count = 0;
        for (int round = 0; round < rounds && !code; round++)
            for (int i = 0; i < 2 && !code; i++) code = runner_time(pair[i], f);
        ratio_compute(r, runners);
    }
    return code;
}

static const char *verdict(const ratio *r)
{
    return !isfinite(r->value) ? "not run" : ratio_is_beyond(r) ? "BEYOND" : ratio_is_missed(r) ? "missed" : "";
}

static void print_ratio(const ratio *r, const runner *runners)
{
    const runner *a = &runners[r->a], *b = &runners[r->b];
    printf("  %-44s %-44s %7.3f  %s %.2f  %s\n", runner_name(a, r->by_policy), runner_name(b, r->by_policy), r->value,
           r->at_least ? ">=" : "<=", r->target, verdict(r));
}

static int run_claim(const claim *c, const arguments *a, int *beyond, fault *f)
{
    int code = DONE;
    for (int i = 0; i < c->num_runners && !code; i++) code = runner_open(&c->runners[i], &a->common, f);
    const int rounds = a->quick ? ROUNDS / 3 : ROUNDS;
    for (int round = 0; round < rounds && !code; round++)
        for (int i = 0; i < c->num_runners && !code; i++) code = runner_time(&c->runners[i], f);
    if (!code) printf("\n%s\n", c->title);
    for (int i = 0; i < c->num_ratios && !code; i++) {
        ratio *r = &c->ratios[i];
        ratio_compute(r, c->runners);
        code = settle(r, c->runners, rounds, f);
        if (code) break;
        print_ratio(r, c->runners);
        *beyond += ratio_is_beyond(r);
        (void)fflush(stdout);
    }
    for (int i = 0; i < c->num_runners; i++) runner_close(&c->runners[i]);
    return code;
}

static int run_all(const arguments *a, fault *f)
{
    static const struct {
        const char *name;
        int (*make)(claim *c, int index, bool quick); /* the index-th; 0: there are no more */
    } kinds[] = {{"routed", claim_routed}, {"cliff", claim_cliff}, {"causal", claim_causal}};
    int code = DONE, beyond = 0;
    bool known = false;
    for (int k = 0; k < 3 && !code; k++) {
        if (a->what && strcmp(a->what, kinds[k].name) != 0) continue;
        known = true;
        claim c;
        for (int i = 0; !code && kinds[k].make(&c, i, a->quick); i++) code = run_claim(&c, a, &beyond, f);
    }
    if (!code && !known) return fault_set(f, BAD_INPUT, "'%.40s' is no claim: write routed, cliff or causal", a->what);
    if (code || !a->check || !beyond) return code;
    return fault_set(f, CHECK_FAILED, "%d ratios are beyond their tolerance: BEYOND in the table above", beyond);
}

/* ------------------------------------------------------------------------------------------------ arguments */

enum { KEY_CHECK = 0x5000, KEY_QUICK };

static const struct argp_option option_list[] = {
    {"check", KEY_CHECK, NULL, 0, "Fail where a ratio stays beyond its tolerance", 10},
    {"quick", KEY_QUICK, NULL, 0, "Fewer shapes and rounds", 10},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t parse_argument(int key, char *value, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->common; return 0;
    case KEY_CHECK: a->check = true; return 0;
    case KEY_QUICK: a->quick = true; return 0;
    case ARGP_KEY_ARG:
        if (a->what) return cli_wrong(&a->common, "'%.40s' and '%.40s': one claim at a time", a->what, value);
        a->what = value;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};
static const struct argp argp = {
    option_list,
    parse_argument,
    "[routed|cliff|causal]",
    "Measures what this library says of its own speed: ROUTED against the uniform kernels, lengths and head dimensions "
    "against their neighbours, causal against whole attentions. Every result is checked first.\v"
    "On one thread unless --threads says otherwise, and then by the processor's time, which other programs spoil "
    "least.",
    children,
    NULL,
    NULL,
};

int main(int argc, char **argv)
{
    arguments a = {.what = NULL};
    fault f = {.code = DONE};
    int code = cli_parse(&argp, argc, argv, &a.common);
    if (code) f = a.common.error;
    if (!a.common.threads) a.common.threads = 1;
    if (!code && a.common.json) code = fault_set(&f, BAD_INPUT, "there is no JSON of claims: leave --json out");
    if (!code) code = common_apply(&a.common, &f);
    if (!code) code = run_all(&a, &f);
    if (code) (void)fprintf(stderr, "tilelamp-claims: %s\n", f.text);
    return code;
}
