/* tilelamp-tables: the tables of the TileMix paper, computed again by this library beside the paper's own figures. */
#define _GNU_SOURCE /* argp */
#include <argp.h>
#include <stdio.h>
#include <string.h>

#include "cli/parse.h"
#include "tables.h"

static const struct table {
    const char *name;
    int (*make)(const options *, fault *);
} tables[] = {{"3", table_3}, {"5", table_5}, {"19", table_19}, {"20", table_20}, {"23", table_23}};
enum { NUM_TABLES = sizeof tables / sizeof tables[0] };

typedef struct arguments {
    options options;
    bool json;
    const char *table;
} arguments;

enum { KEY_SEEDS = 0x1000, KEY_LENGTH, KEY_QUICK, KEY_JSON };

static const struct argp_option option_list[] = {
    {"seeds", KEY_SEEDS, "N", 0, "Random inputs, and random maps on a file (default 5; quick: 2)", 0},
    {"length", KEY_LENGTH, "N", 0,
     "Tokens of random input (default 1024; quick: 512). Table 3: of the longest (default 8192; quick: 1024)", 0},
    {"quick", KEY_QUICK, NULL, 0, "Fewer seeds, shorter inputs, and one KV head of each file", 0},
    {"threads", 't', "N", 0, "Use N threads (default: all)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON array and nothing else", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t parse_value(arguments *a, int key, const char *value, struct argp_state *state)
{
    int32_t n;
    if (!parse_int32(value, 1, 1 << 20, &n)) {
        argp_error(state, "'%.40s' is no number from 1 on", value);
        return EINVAL;
    }
    if (key == KEY_SEEDS) a->options.seeds = n;
    if (key == KEY_LENGTH) a->options.length = n;
    if (key == 't') a->options.threads = n;
    return 0;
}

static error_t parse_argument(int key, char *value, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case KEY_SEEDS:
    case KEY_LENGTH:
    case 't': return parse_value(a, key, value, state);
    case KEY_QUICK: a->options.quick = true; return 0;
    case KEY_JSON: a->json = true; return 0;
    case ARGP_KEY_ARGS:
        a->table = state->argv[state->next];
        a->options.files = state->argv + state->next + 1;
        a->options.num_files = state->argc - state->next - 1;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "no table: write 3, 5, 19, 20, 23 or all"); return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_list,
    parse_argument,
    "3|5|19|20|23|all [FILE...]",
    "Tables of the TileMix paper (arXiv 2608.17336), computed again: on random input, and on the q, k and v of the "
    "safetensors files.\v"
    "Example: tilelamp-tables 19 tests/data/*.safetensors",
    NULL,
    NULL,
    NULL,
};

static int make(const arguments *a, fault *f)
{
    bool known = false;
    for (int i = 0; i < NUM_TABLES; i++) {
        if (strcmp(a->table, "all") != 0 && strcmp(a->table, tables[i].name) != 0) continue;
        known = true;
        const int code = tables[i].make(&a->options, f);
        if (code) return code;
    }
    return known ? DONE : fault_set(f, BAD_INPUT, "'%.40s' is no table: write 3, 5, 19, 20, 23 or all", a->table);
}

int main(int argc, char **argv)
{
    arguments a = {.json = false};
    fault f = {.code = DONE};
    argp_err_exit_status = BAD_INPUT;
    (void)argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (!a.options.seeds) a.options.seeds = a.options.quick ? 2 : 5;
    if (a.json) a.options.output = json_array();
    const int code = a.json && !a.options.output ? fault_no_memory(&f) : make(&a, &f);
    if (code) (void)fprintf(stderr, "tilelamp-tables: %s\n", f.text);
    if (!code && a.json) {
        (void)json_dumpf(a.options.output, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        putchar('\n');
    }
    json_decref(a.options.output);
    return code;
}
