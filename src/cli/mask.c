/* `tilelamp mask`: builds and draws a routing map. */
#define _GNU_SOURCE /* argp, asprintf */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "file.h"
#include "mapfile.h"
#include "parse.h"
#include "picture.h"
#include "policy.h"

typedef struct mask_options {
    common_options common; /* first: cli_parse */
    tlamp_geometry geometry;
    tlamp_layout layout;
    bool has_coverage, has_retarget_seed;
    const char *svg, *png;
} mask_options;

enum {
    KEY_LAYOUT = 0x3000,
    KEY_COVERAGE,
    KEY_LQ,
    KEY_LK,
    KEY_BLOCK_M,
    KEY_BLOCK_N,
    KEY_GROUP,
    KEY_CAUSAL,
    KEY_CAUSAL_TL,
    KEY_WINDOW,
    KEY_RETARGET,
    KEY_SVG,
    KEY_PNG
};

static const struct argp_option mask_arguments[] = {
    {"layout", KEY_LAYOUT, "NAME", 0,
     "one, zero, band, global, row_rand, align_sparse, bigbird, sptrans or sptrans_scaled", 10},
    {"coverage", KEY_COVERAGE, "C", 0, "Share of INT8 among the groups that any row sees, 0 to 1", 10},
    {"lq", KEY_LQ, "N", 0, "Queries", 20},
    {"lk", KEY_LK, "N", 0, "Keys (default: as many)", 20},
    {"block-m", KEY_BLOCK_M, "N", 0, "Queries of a routing tile (default 128)", 20},
    {"block-n", KEY_BLOCK_N, "N", 0, "Keys of a routing tile (default 64)", 20},
    {"group", KEY_GROUP, "N", 0, "Tiles of a group (default: so many that 64 groups cover all keys)", 20},
    {"causal", KEY_CAUSAL, NULL, 0, "Causal: the last query sees the last key", 30},
    {"causal-tl", KEY_CAUSAL_TL, NULL, 0, "Causal: the first query sees the first key", 30},
    {"window", KEY_WINDOW, "LEFT,RIGHT", 0, "Sliding window, -1: unlimited", 30},
    {"retarget", KEY_RETARGET, "SEED", 0, "Shift single groups until the coverage by tiles is met", 30},
    {"svg", KEY_SVG, "FILE", 0, "Draw the map as SVG", 40},
    {"png", KEY_PNG, "FILE", 0, "Draw the map as PNG", 40},
    {NULL, 0, NULL, 0, NULL, 0},
};

static bool parse_window(char *text, tlamp_geometry *g)
{
    const char *left = next_piece(&text, ',');
    return text && parse_integer(left, -1, INT64_MAX, &g->window_left) &&
           parse_integer(text, -1, INT64_MAX, &g->window_right);
}

/* The options that make the map; ARGP_ERR_UNKNOWN for others. */
static error_t parse_map(mask_options *o, int key, char *value)
{
    tlamp_geometry *g = &o->geometry;
    switch (key) {
    case KEY_LAYOUT: o->layout.kind = layout_of_name(value); return o->layout.kind == NO_LAYOUT;
    case KEY_COVERAGE:
        o->has_coverage = true;
        return !parse_real(value, false, &o->layout.coverage) || o->layout.coverage < 0 || o->layout.coverage > 1;
    case KEY_LQ: return !parse_integer(value, 0, INT32_MAX, &g->seqlen_q);
    case KEY_LK: return !parse_integer(value, 0, INT32_MAX, &g->seqlen_k);
    case KEY_BLOCK_M: return !parse_int32(value, 1, 1 << 20, &g->block_m);
    case KEY_BLOCK_N: return !parse_int32(value, 1, 1 << 20, &g->block_n);
    case KEY_GROUP: return !parse_int32(value, 1, INT32_MAX, &g->group);
    case KEY_CAUSAL: g->mask = TLAMP_MASK_CAUSAL; return 0;
    case KEY_CAUSAL_TL: g->mask = TLAMP_MASK_CAUSAL_TOP_LEFT; return 0;
    case KEY_WINDOW: return !parse_window(value, g);
    case KEY_RETARGET:
        o->layout.retarget = 1;
        o->has_retarget_seed = true;
        return !parse_uint32(value, &o->layout.seed);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char *option_name(int key)
{
    const struct argp_option *o = mask_arguments;
    while (o->key != key) o++;
    return o->name;
}

static error_t parse_mask(int key, char *value, struct argp_state *state)
{
    mask_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->common; return 0;
    case KEY_SVG: o->svg = value; return 0;
    case KEY_PNG: o->png = value; return 0;
    case ARGP_KEY_ARG: return cli_wrong(&o->common, "'%.80s' is no option: see `tilelamp mask --help`", value);
    default: break;
    }
    char text[80] = "";
    if (value && key >= KEY_LAYOUT) (void)snprintf(text, sizeof text, "%s", value); /* parsing may cut the value */
    const error_t error = parse_map(o, key, value);
    if (error == 0 || error == ARGP_ERR_UNKNOWN) return error;
    return cli_wrong(&o->common, "--%s %s is not understood: see `tilelamp mask --help`", option_name(key), text);
}

static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};
static const struct argp mask_argp = {
    mask_arguments,
    parse_mask,
    NULL,
    "Builds a routing map: which groups of scores are computed in INT8 and which in high precision. Prints it, or "
    "draws it."
    "\vExample:\n"
    "  tilelamp mask --layout band --coverage 0.5 --lq 1024 --block-m 64 --causal\n\n"
    "With --json the map can be saved, edited and used:\n"
    "  tilelamp run ... --policy words:FILE\n",
    children,
    NULL,
    NULL,
};

/* ------------------------------------------------------------------------------------------------ the map */

static int complete(mask_options *o, fault *f)
{
    tlamp_geometry *g = &o->geometry;
    if (o->layout.kind == NO_LAYOUT) return fault_set(f, BAD_INPUT, "no layout: add, say, --layout band");
    if (!o->has_coverage && layout_takes_coverage(o->layout.kind))
        return fault_set(f, BAD_INPUT, "no coverage: add, say, --coverage 0.5");
    if (g->seqlen_q < 0) return fault_set(f, BAD_INPUT, "no length: add, say, --lq 1024");
    if (g->seqlen_k < 0) g->seqlen_k = g->seqlen_q;
    if (!g->block_m) g->block_m = 128;
    if (!g->block_n) g->block_n = 64;
    if (!g->group) g->group = tlamp_auto_group(g->seqlen_k, g->block_n);
    if (o->common.has_seed && !o->has_retarget_seed) o->layout.seed = (uint32_t)o->common.seed;
    return DONE;
}

/* Builds the words into the picture; the caller frees them. */
static int build(const mask_options *o, picture *p, tlamp_layout_report *report, fault *f)
{
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const int64_t known = tlamp_layout_words(&o->geometry), count = known > 0 ? known : 0;
    uint64_t *words = count < (int64_t)1 << 27 ? calloc((size_t)count + 1, sizeof *words) : NULL;
    if (!words)
        return fault_set(f, BAD_INPUT, "the map has %lld words: take larger blocks or groups", (long long)count);
    *report = (tlamp_layout_report){.struct_size = sizeof *report};
    *p = (picture){.geometry = o->geometry, .words = words};
    if (tlamp_layout_build(&o->layout, &o->geometry, words, count, report, &err)) return fault_from_library(f, &err);
    p->rows = report->rows;
    p->groups = report->groups;
    p->words_per_row = report->words_per_row;
    return DONE;
}

static void print_text(const picture *p, const tlamp_layout_report *report)
{
    static const char marks[] = {' ', '#', '.'};
    printf("%s\n", p->title);
    printf("down: %lld rows of %d queries; across: %lld groups of %lld keys; # high, . INT8\n", (long long)p->rows,
           p->geometry.block_m, (long long)p->groups, (long long)p->geometry.group * p->geometry.block_n);
    for (int64_t row = 0; row < p->rows; row++) {
        printf("  ");
        for (int64_t group = 0; group < p->groups; group++) putchar(marks[picture_cell(p, row, group)]);
        putchar('\n');
    }
    printf("INT8 share: groups %.4f, tiles %.4f, cells %.4f\n", report->coverage_group, report->coverage_tile,
           report->coverage_cell);
}

static int print_map_json(const mask_options *o, const picture *p, const tlamp_layout_report *r, fault *f)
{
    const tlamp_geometry *g = &o->geometry;
    json_t *coverage = json_object();
    (void)json_object_set_new(coverage, "group", json_number(r->coverage_group));
    (void)json_object_set_new(coverage, "tile", json_number(r->coverage_tile));
    (void)json_object_set_new(coverage, "cell", json_number(r->coverage_cell));
    json_t *rest = json_pack("{s:i, s:I, s:I, s:o, s:s, s:I, s:I, s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:I}", "group",
                             r->group, "t_m", (json_int_t)r->rows, "t_mask", (json_int_t)r->groups, "coverage",
                             coverage, "layout", tlamp_layout_name(o->layout.kind), "lq", (json_int_t)g->seqlen_q, "lk",
                             (json_int_t)g->seqlen_k, "block_m", g->block_m, "block_n", g->block_n, "mask",
                             g->mask == TLAMP_MASK_NONE     ? "none"
                             : g->mask == TLAMP_MASK_CAUSAL ? "causal"
                                                            : "causal-tl",
                             "window_left", (json_int_t)g->window_left, "window_right", (json_int_t)g->window_right,
                             "seed", (json_int_t)o->layout.seed, "width", (json_int_t)r->width, "width2",
                             (json_int_t)r->width2);
    (void)json_object_set_new(rest, "wanted_coverage", o->has_coverage ? json_number(o->layout.coverage) : json_null());
    (void)json_object_set_new(rest, "alpha", json_number(r->alpha));
    (void)json_object_set_new(rest, "beta", json_number(r->beta));
    return mapfile_print(p->words, p->rows, p->words_per_row, rest, f);
}

static char *make_title(const mask_options *o, const tlamp_layout_report *report)
{
    const tlamp_geometry *g = &o->geometry;
    char *title = NULL;
    const int printed = asprintf(&title, "%s, %.1f %% of the groups INT8, %lld x %lld%s",
                                 tlamp_layout_name(o->layout.kind), 100 * report->coverage_group,
                                 (long long)g->seqlen_q, (long long)g->seqlen_k,
                                 g->mask == TLAMP_MASK_NONE     ? ""
                                 : g->mask == TLAMP_MASK_CAUSAL ? ", causal"
                                                                : ", causal from the first key");
    return printed < 0 ? NULL : title;
}

static int show(const mask_options *o, const picture *p, const tlamp_layout_report *report, fault *f)
{
    int code = o->svg ? picture_write_svg(p, o->svg, f) : DONE;
    if (!code && o->png) code = picture_write_png(p, o->png, f);
    if (code) return code;
    if (o->common.json) return print_map_json(o, p, report, f);
    print_text(p, report);
    return DONE;
}

static int make_map(mask_options *o, fault *f)
{
    int code = complete(o, f);
    if (!code) code = common_apply(&o->common, f);
    if (!code) code = file_check(o->svg, f);
    if (!code) code = file_check(o->png, f);
    if (code) return code;
    picture p = {.words = NULL};
    tlamp_layout_report report;
    code = build(o, &p, &report, f);
    char *title = code ? NULL : make_title(o, &report);
    p.title = title ? title : "";
    if (!code) code = show(o, &p, &report, f);
    free(title);
    free((void *)(uintptr_t)p.words);
    return code;
}

int command_mask(int argc, char **argv, fault *f)
{
    mask_options options = {.svg = NULL};
    tlamp_geometry_init(&options.geometry, sizeof options.geometry);
    options.geometry.seqlen_q = options.geometry.seqlen_k = -1;
    tlamp_layout_init(&options.layout, sizeof options.layout);
    options.layout.kind = NO_LAYOUT;
    const int code = cli_parse(&mask_argp, argc, argv, &options.common);
    if (code) {
        *f = options.common.error;
        return code;
    }
    return make_map(&options, f);
}
