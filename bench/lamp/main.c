/* tilelamp-lamp: the experiment of LampAttention, run again. */
#define _GNU_SOURCE /* argp */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/parse.h"
#include "chart.h"
#include "report.h"

enum { QUICK_LENGTH = 256, MAX_INPUTS = 16 };

typedef struct arguments {
    char *const *inputs;
    int num_inputs;
    const char *charts; /* directory */
    int32_t threads;
    bool quick, json;
    json_t *output; /* an array that collects the tables; NULL: print them */
} arguments;

enum { KEY_QUICK = 0x1000, KEY_CHARTS, KEY_JSON };

static const struct argp_option option_list[] = {
    {"charts", KEY_CHARTS, "DIRECTORY", 0, "Draw lamp-tradeoff.svg, lamp-rows.svg and lamp-cascade.svg there", 0},
    {"quick", KEY_QUICK, NULL, 0, "One KV head and 256 tokens of each input", 0},
    {"threads", 't', "N", 0, "Use N threads (default: all)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON array and nothing else", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t parse_argument(int key, char *value, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case KEY_CHARTS: a->charts = value; return 0;
    case KEY_QUICK: a->quick = true; return 0;
    case KEY_JSON: a->json = true; return 0;
    case 't':
        if (parse_int32(value, 1, 4096, &a->threads)) return 0;
        argp_error(state, "--threads %.40s: write a number from 1 to 4096", value);
        return EINVAL;
    case ARGP_KEY_ARGS:
        a->inputs = state->argv + state->next;
        a->num_inputs = state->argc - state->next;
        if (a->num_inputs <= MAX_INPUTS) return 0;
        argp_error(state, "more than %d inputs", MAX_INPUTS);
        return EINVAL;
    case ARGP_KEY_NO_ARGS: argp_error(state, "no input: write a problem or a safetensors file"); return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_list,
    parse_argument,
    "INPUT...",
    "LampAttention (arXiv 2609.39361) over tau, delta and the rows of a warp: errors against the exact result, what "
    "was "
    "recomputed, and a cost model. An INPUT is a safetensors file with q, k and v, or a problem as `tilelamp run "
    "--help` "
    "describes it.\v"
    "Example:\n  tilelamp-lamp \"hq2 q768 d128 f16 causal data:qknorm\" tests/data/*.safetensors\n",
    NULL,
    NULL,
    NULL,
};

static int run_input(sweep *s, const arguments *a, const char *what, fault *f)
{
    lamp_input in;
    int code = lamp_input_open(&in, what, a->threads, f);
    if (code) return code;
    if (a->quick) lamp_input_cut(&in, QUICK_LENGTH);
    code = lamp_input_solve(&in, f);
    if (!code) code = sweep_run(s, &in, f);
    if (!code) code = report_sweep(s, a->output, f);
    lamp_input_close(&in);
    return code;
}

static int run(const arguments *a, fault *f)
{
    sweep *sweeps = calloc((size_t)a->num_inputs, sizeof *sweeps);
    int code = sweeps ? DONE : fault_no_memory(f);
    for (int i = 0; i < a->num_inputs && !code; i++) code = run_input(&sweeps[i], a, a->inputs[i], f);
    if (!code && a->charts) code = chart_draw_all(a->charts, sweeps, a->num_inputs, f);
    free(sweeps);
    return code;
}

int main(int argc, char **argv)
{
    arguments a = {.inputs = NULL};
    fault f = {.code = DONE};
    argp_err_exit_status = BAD_INPUT;
    (void)argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.json) a.output = json_array();
    const int code = a.json && !a.output ? fault_no_memory(&f) : run(&a, &f);
    if (code) (void)fprintf(stderr, "tilelamp-lamp: %s\n", f.text);
    if (!code && a.json) {
        (void)json_dumpf(a.output, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        putchar('\n');
    }
    json_decref(a.output);
    return code;
}
