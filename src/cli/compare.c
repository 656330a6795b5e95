/* `tilelamp compare`: many policies on the same input. */
#define _GNU_SOURCE /* argp, asprintf */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "file.h"
#include "measure.h"
#include "parse.h"
#include "problem.h"
#include "report.h"
#include "result.h"

enum { MAX_POLICIES = REPORT_MAX_DOTS, MAX_FILES = 200, MAX_COVERAGES = 20 };

typedef struct compare_options {
    common_options common; /* first: cli_parse */
    const char *files[MAX_FILES];
    int num_files;
    policy_spec *policies; /* [MAX_POLICIES] */
    int num_policies;
    const char *layouts, *report;
    double coverages[MAX_COVERAGES];
    int num_coverages;
    char *problem; /* from malloc; NULL with files */
    char *command; /* from malloc: the command line as it was given */
} compare_options;

enum { KEY_QKV = 0x2000, KEY_LAYOUTS, KEY_COVERAGE, KEY_REPORT };

static const struct argp_option compare_arguments[] = {
    {"qkv", KEY_QKV, "FILE...", 0, "Take q, k and v from safetensors files; a comparison for each", 10},
    {"policy", 'p', "POLICY", 0, "A policy to compare, again for each (default: high, int8, band and global)", 10},
    {"layouts", KEY_LAYOUTS, "NAMES", 0, "Compare these layouts at each coverage: NAME,NAME or all", 10},
    {"coverage", KEY_COVERAGE, "C,C", 0, "Coverages of layouts, 0 to 1 (default: 0.25,0.5,0.75)", 10},
    {"report", KEY_REPORT, "FILE.html", 0, "Write a page with plots, tables and routing maps", 10},
    {NULL, 0, NULL, 0, NULL, 0},
};

/* ------------------------------------------------------------------------------------------------ policies */

static int add_policy(compare_options *o, const char *text, fault *f)
{
    if (o->num_policies == MAX_POLICIES)
        return fault_set(f, BAD_INPUT, "more than %d policies: compare fewer at a time", MAX_POLICIES);
    return policy_parse(&o->policies[o->num_policies++], text, f);
}

static int add_layout(compare_options *o, tlamp_layout_kind layout, fault *f)
{
    const int times = layout_takes_coverage(layout) ? o->num_coverages : 1;
    for (int i = 0; i < times; i++) {
        if (o->num_policies == MAX_POLICIES)
            return fault_set(f, BAD_INPUT, "more than %d policies: compare fewer at a time", MAX_POLICIES);
        const int code = policy_of_layout(&o->policies[o->num_policies++], layout, o->coverages[i], f);
        if (code) return code;
    }
    return DONE;
}

/* Does this version of the library build the layout? */
static bool is_built(tlamp_layout_kind kind)
{
    tlamp_layout layout;
    tlamp_geometry geometry;
    tlamp_layout_init(&layout, sizeof layout);
    tlamp_geometry_init(&geometry, sizeof geometry);
    layout.kind = kind;
    layout.coverage = 0.5;
    geometry.seqlen_q = geometry.seqlen_k = 512;
    uint64_t words[4];
    return tlamp_layout_build(&layout, &geometry, words, 4, NULL, NULL) == TLAMP_OK;
}

/* one and zero equal int8 and high bit for bit: "all" leaves them out. */
static int add_all_layouts(compare_options *o, fault *f)
{
    int code = DONE;
    for (tlamp_layout_kind kind = 0; !code && tlamp_layout_name(kind); kind++)
        if (layout_takes_coverage(kind) && is_built(kind)) code = add_layout(o, kind, f);
    return code;
}

static int add_layouts(compare_options *o, const char *list, fault *f)
{
    if (strcmp(list, "all") == 0) return add_all_layouts(o, f);
    char *copy = strdup(list), *rest = copy;
    int code = copy ? DONE : fault_no_memory(f);
    for (const char *name; !code && (name = next_piece(&rest, ','));) {
        const tlamp_layout_kind kind = layout_of_name(name);
        code = kind == NO_LAYOUT ? fault_set(f, BAD_INPUT, "'%.80s' is no layout: see `tilelamp mask --help`", name)
                                 : add_layout(o, kind, f);
    }
    free(copy);
    return code;
}

/* HIGH is what the others are compared with: it comes first where nobody asked for it. */
static int add_high(compare_options *o, fault *f)
{
    for (int i = 0; i < o->num_policies; i++)
        if (o->policies[i].policy.kind == TLAMP_POLICY_HIGH) return DONE;
    if (o->num_policies == MAX_POLICIES)
        return fault_set(f, BAD_INPUT, "more than %d policies: compare fewer at a time", MAX_POLICIES);
    memmove(&o->policies[1], &o->policies[0], (size_t)o->num_policies++ * sizeof o->policies[0]);
    return policy_parse(&o->policies[0], "high", f);
}

static int complete_policies(compare_options *o, fault *f)
{
    static const double usual[] = {0.25, 0.5, 0.75};
    if (!o->num_coverages) {
        memcpy(o->coverages, usual, sizeof usual);
        o->num_coverages = 3;
    }
    const bool none_named = o->num_policies == 0;
    int code = none_named ? add_policy(o, "high", f) : DONE;
    if (!code && none_named) code = add_policy(o, "int8", f);
    if (!code && (o->layouts || none_named)) code = add_layouts(o, o->layouts ? o->layouts : "band,global", f);
    return code ? code : add_high(o, f);
}

/* ------------------------------------------------------------------------------------------------ arguments */

static error_t take_coverages(compare_options *o, const char *list)
{
    char *copy = strdup(list), *rest = copy;
    bool good = copy != NULL;
    o->num_coverages = 0;
    for (const char *piece; good && (piece = next_piece(&rest, ','));) {
        double *at = &o->coverages[o->num_coverages];
        good = o->num_coverages < MAX_COVERAGES && parse_real(piece, false, at) && *at >= 0 && *at <= 1;
        o->num_coverages++;
    }
    free(copy);
    if (good) return 0;
    return cli_wrong(&o->common, "--coverage %.80s: write numbers from 0 to 1, e.g. 0.25,0.5,0.75", list);
}

static error_t take_file(compare_options *o, const char *path)
{
    if (o->num_files == MAX_FILES)
        return cli_wrong(&o->common, "more than %d files: compare fewer at a time", MAX_FILES);
    o->files[o->num_files++] = path;
    return 0;
}

/* With --qkv the other arguments are further files; else they are the problem. */
static error_t take_rest(compare_options *o, const struct argp_state *state)
{
    error_t error = 0;
    if (!o->num_files)
        o->problem = join_arguments(state->argv + state->next, state->argc - state->next);
    else
        for (int i = state->next; !error && i < state->argc; i++) error = take_file(o, state->argv[i]);
    return error;
}

static error_t parse_compare(int key, char *value, struct argp_state *state)
{
    compare_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case KEY_QKV: return take_file(o, value);
    case 'p': return add_policy(o, value, &o->common.error) ? EINVAL : 0;
    case KEY_LAYOUTS: o->layouts = value; return 0;
    case KEY_COVERAGE: return take_coverages(o, value);
    case KEY_REPORT: o->report = value; return 0;
    case ARGP_KEY_ARGS: return take_rest(o, state);
    case ARGP_KEY_NO_ARGS:
        if (o->num_files) return 0;
        return cli_wrong(&o->common,
                         "no problem: write, say, tilelamp compare \"hq8 q1024 d64 causal\", or give --qkv FILE");
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};
static const struct argp compare_argp = {
    compare_arguments,
    parse_compare,
    "PROBLEM\n--qkv FILE...",
    "Computes the same attention under many precision policies, and prints for each its error against the exact "
    "result, its time and its speed relative to high precision. Fails where an error is larger than the policy "
    "promises.\v"
    "Example:\n"
    "  tilelamp compare --qkv tests/data/*.safetensors --report report.html\n",
    children,
    cli_filter_help,
    NULL,
};

/* ------------------------------------------------------------------------------------------------ comparisons */

static json_t *comparison_json(const comparison *c)
{
    json_t *source = json_object(), *results = json_array();
    (void)json_object_set_new(source, "problem", json_text(c->subject.problem));
    (void)json_object_set_new(source, "file", json_text(c->subject.path));
    (void)json_object_set_new(source, "source", json_text(c->subject.source));
    for (int i = 0; i < c->count; i++) {
        json_t *result = result_json(&c->subject, &c->results[i]);
        (void)json_object_set_new(result, "speedup_vs_high", json_number(c->results[i].speedup));
        (void)json_array_append_new(results, result);
    }
    json_t *object = json_object();
    (void)json_object_set_new(object, "input", source);
    (void)json_object_set_new(object, "results", results);
    return object;
}

/* One input: the object itself. Several: a list of them. */
static int print_comparisons_json(const comparison *comparisons, int count, fault *f)
{
    if (count == 1) return print_json(comparison_json(&comparisons[0]), f);
    json_t *list = json_array(), *object = json_object();
    for (int i = 0; i < count; i++) (void)json_array_append_new(list, comparison_json(&comparisons[i]));
    (void)json_object_set_new(object, "comparisons", list);
    return print_json(object, f);
}

static int compare_one(const compare_options *o, comparison *c, progress *bar, fault *f)
{
    c->count = o->num_policies;
    c->results = calloc((size_t)c->count + 1, sizeof *c->results);
    if (!c->results) return fault_no_memory(f);
    const int code = measure(&c->subject, o->policies, c->count, c->results, &o->common, bar, f);
    subject_drop_data(&c->subject);
    return code;
}

static int compare_all(const compare_options *o, comparison *comparisons, int count, fault *f)
{
    progress bar;
    progress_begin(&bar, count * measure_steps(o->num_policies));
    int code = DONE;
    for (int i = 0; !code && i < count; i++) {
        comparison *c = &comparisons[i];
        code = subject_create(&c->subject, o->problem, o->num_files ? o->files[i] : NULL, &o->common, f);
        if (!code) code = compare_one(o, c, &bar, f);
        if (code || o->common.json) continue;
        progress_clear(&bar);
        if (i) putchar('\n');
        result_print_table(&c->subject, c->results, c->count);
        (void)fflush(stdout);
    }
    progress_clear(&bar);
    return code;
}

static int compare(compare_options *o, fault *f)
{
    int code = complete_policies(o, f);
    if (!code) code = common_apply(&o->common, f);
    if (!code) code = file_check(o->report, f);
    if (code) return code;
    const int count = o->num_files ? o->num_files : 1;
    comparison *comparisons = calloc((size_t)count + 1, sizeof *comparisons);
    if (!comparisons) return fault_no_memory(f);
    code = compare_all(o, comparisons, count, f);
    if (!code && o->common.json) code = print_comparisons_json(comparisons, count, f);
    if (!code && o->report) code = report_write(o->report, comparisons, count, o->command, f);
    if (!code && o->report && !o->common.json) printf("\nreport: %s\n", o->report);
    for (int i = 0; !code && i < count; i++)
        code = result_verdict(&comparisons[i].subject, comparisons[i].results, comparisons[i].count, f);
    for (int i = 0; i < count; i++) {
        measurements_free(comparisons[i].results, comparisons[i].count);
        subject_free(&comparisons[i].subject);
    }
    free(comparisons);
    return code;
}

int command_compare(int argc, char **argv, fault *f)
{
    compare_options options = {.command = quote_arguments(argv, argc)}; /* before argp reorders them */
    options.policies = calloc(MAX_POLICIES, sizeof *options.policies);
    int code = options.policies && options.command ? DONE : fault_no_memory(f);
    if (!code) {
        code = cli_parse(&compare_argp, argc, argv, &options.common);
        if (code) *f = options.common.error;
    }
    if (!code) code = compare(&options, f);
    free(options.policies);
    free(options.problem);
    free(options.command);
    return code;
}
