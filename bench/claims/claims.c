#include "claims.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ ratios */

void ratio_compute(ratio *r, const runner *runners)
{
    const runner *a = &runners[r->a], *b = &runners[r->b];
    const double times = samples_median_ratio(&b->times, &a->times); /* a / b; NaN where one is empty */
    r->value = r->by_time ? times : a->flop / b->flop / times;
}

static bool holds(const ratio *r, double limit)
{
    return !isfinite(r->value) || (r->at_least ? r->value >= limit : r->value <= limit);
}

bool ratio_is_missed(const ratio *r) { return !holds(r, r->target); }
bool ratio_is_beyond(const ratio *r) { return !holds(r, r->tolerance); }

/* ------------------------------------------------------------------------------------------------ making */

static runner runners[MOST_RUNNERS];
static ratio ratios[MOST_RATIOS];

static void begin(claim *c, const char *title)
{
    *c = (claim){.runners = runners, .ratios = ratios};
    (void)snprintf(c->title, sizeof c->title, "%s", title);
}

static int add(claim *c, const char *problem, const char *policy)
{
    runner *r = &c->runners[c->num_runners];
    *r = (runner){.problem = ""};
    (void)snprintf(r->problem, sizeof r->problem, "%s", problem);
    (void)snprintf(r->policy, sizeof r->policy, "%s", policy);
    return c->num_runners++;
}

/* ------------------------------------------------------------------------------------------------ routed */

/* The bits of a coverage cost nothing at its ends; between them, what one step more of INT8 saves. */
int claim_routed(claim *c, int index, bool quick)
{
    static const char *const problems[] = {"hq2 q1024 d128 f32", "hq2 q1024 d128 bf16", "hq2 q2048 d64 f16"};
    static const char *const steps[] = {"high",          "row_rand:0", "row_rand:0.25", "row_rand:0.5",
                                        "row_rand:0.75", "row_rand:1", "int8"};
    if (index >= (quick ? 1 : 3)) return 0;
    begin(c, problems[index]);
    for (int i = 0; i < 7; i++) {
        char policy[40];
        (void)snprintf(policy, sizeof policy, "%s pv=%s", steps[i], index == 1 ? "bf16" : "f32");
        (void)add(c, problems[index], policy);
    }
    const ratio end = {.by_policy = true, .by_time = true, .target = 1.02, .tolerance = 1.05};
    ratio low = end, high = end;
    low.a = 1, low.b = 0;
    high.a = 5, high.b = 6;
    c->ratios[c->num_ratios++] = low;
    c->ratios[c->num_ratios++] = high;
    for (int i = 2; i < 6; i++) {
        ratio step = end; /* a step that saves nothing may be lost in noise */
        step.a = i, step.b = i - 1;
        step.tolerance = 1.08;
        c->ratios[c->num_ratios++] = step;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------ cliffs */

/* A rate may rise with the size, since what a call costs beside it is spread over more; it must not fall by more than a fifth
 * from one size to the next. Lengths include tails of every kind. */
static void add_sizes(claim *c, const char *pattern, const int *sizes, int count, const char *policy)
{
    for (int i = 0; i < count; i++) {
        char problem[80];
        (void)snprintf(problem, sizeof problem, pattern, sizes[i]);
        const int at = add(c, problem, policy);
        if (i)
            c->ratios[c->num_ratios++] = (ratio){
                .a = at, .b = at - 1, .at_least = true, .target = 0.8, .tolerance = 0.7};
    }
}

int claim_cliff(claim *c, int index, bool quick)
{
    static const int lengths[] = {16,  24,  32,  48,  64,  80,  96,  100, 112, 128, 160,
                                  192, 200, 256, 320, 333, 384, 448, 500, 511, 512};
    static const int few[] = {16, 32, 64, 100, 128, 200, 256, 500, 512}, dims[] = {64, 80, 96, 128, 256};
    static const struct {
        const char *type, *policy;
    } modes[] = {{"f32", "high pv=f32"}, {"f32", "int8 pv=f32"}, {"bf16", "high pv=bf16"}, {"bf16", "int8 pv=bf16"}};
    enum { DIMS = 5, LENGTHS = sizeof lengths / sizeof lengths[0], FEW = sizeof few / sizeof few[0] };
    static const int at_length[] = {64, 100, 512};
    const int of_mode = DIMS + 3, mode = index / of_mode, part = index % of_mode;
    if (mode >= (quick ? 1 : 4)) return 0;
    char title[120], pattern[80];
    if (part < DIMS) {
        (void)snprintf(pattern, sizeof pattern, "hq2 q%%d d%d %s", dims[part], modes[mode].type);
        (void)snprintf(title, sizeof title, "rate by length: d%d %s, %s", dims[part], modes[mode].type,
                       modes[mode].policy);
        begin(c, title);
        add_sizes(c, pattern, quick ? few : lengths, quick ? (int)FEW : (int)LENGTHS, modes[mode].policy);
    } else {
        const int length = at_length[part - DIMS];
        (void)snprintf(pattern, sizeof pattern, "hq2 q%d d%%d %s", length, modes[mode].type);
        (void)snprintf(title, sizeof title, "rate by head dimension: q%d %s, %s", length, modes[mode].type,
                       modes[mode].policy);
        begin(c, title);
        add_sizes(c, pattern, dims, DIMS, modes[mode].policy);
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------ causal */

int claim_causal(claim *c, int index, bool quick)
{
    static const struct {
        const char *type, *policy;
    } modes[] = {{"f32", "high pv=f32"},   {"bf16", "high pv=bf16"}, {"f16", "high pv=f32"},  {"f32", "x3 pv=f32"},
                 {"bf16", "int8 pv=bf16"}, {"f32", "int8 pv=f32"},   {"bf16", "int8 pv=int8"}};
    static const int lengths[] = {2048, 4096};
    const int mode = index / 2, length = lengths[index % 2];
    if (mode >= 7 || (quick && index > 0)) return 0;
    char title[120], whole[80], causal[sizeof whole + 8];
    (void)snprintf(title, sizeof title, "causal against whole: q%d d128 %s, %s", length, modes[mode].type,
                   modes[mode].policy);
    begin(c, title);
    (void)snprintf(whole, sizeof whole, "hq1 q%d d128 %s", length, modes[mode].type);
    (void)snprintf(causal, sizeof causal, "%s causal", whole);
    const int b = add(c, whole, modes[mode].policy), a = add(c, causal, modes[mode].policy);
    c->ratios[c->num_ratios++] = (ratio){.a = a, .b = b, .at_least = true, .target = 0.85, .tolerance = 0.8};
    return 1;
}
