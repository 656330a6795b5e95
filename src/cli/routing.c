#include "routing.h"

#include <stdlib.h>
#include <string.h>

#include "mapfile.h"

/* The grid of sequence b. Groups are counted on its whole key length, tiles on the used one. */
static tlamp_geometry geometry_of(const policy_spec *policy, const input *in, int64_t b)
{
    const problem_spec *s = &in->spec;
    tlamp_geometry g;
    tlamp_geometry_init(&g, sizeof g);
    g.seqlen_q = problem_length_q(s, b);
    g.seqlen_k = problem_used_k(s, b);
    g.block_m = policy->policy.block_m;
    g.block_n = policy->policy.block_n;
    g.group = policy->group ? policy->group : tlamp_auto_group(problem_length_k(s, b), g.block_n);
    g.mask = s->mask;
    g.window_left = s->window_left;
    g.window_right = s->window_right;
    return g;
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static int64_t rows_of(const tlamp_geometry *g) { return ceil_div(g->seqlen_q, g->block_m); }

static int32_t words_per_row_of(const tlamp_geometry *g)
{
    const int64_t words = ceil_div(ceil_div(g->seqlen_k, (int64_t)g->group * g->block_n), 64);
    return words > 1 ? (int32_t)words : 1;
}

/* Copies rows of `from` words each to rows of `to` words. */
static void copy_rows(uint64_t *out, int32_t to, const uint64_t *in, int32_t from, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++) memcpy(out + row * to, in + row * from, (size_t)from * sizeof *in);
}

static int build_layout(const policy_spec *policy, uint32_t seed, const tlamp_geometry *g, uint64_t *out,
                        int32_t words_per_row, tlamp_layout_report *report, fault *f)
{
    tlamp_layout layout;
    tlamp_layout_init(&layout, sizeof layout);
    layout.kind = policy->layout;
    layout.coverage = policy->coverage;
    layout.seed = policy->has_seed ? policy->seed : seed;
    layout.retarget = policy->retarget;
    *report = (tlamp_layout_report){.struct_size = sizeof *report};
    const int64_t known = tlamp_layout_words(g), count = known > 0 ? known : 0;
    uint64_t *words = calloc((size_t)count + 1, sizeof *words);
    if (!words) return fault_no_memory(f);
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    const tlamp_status status = tlamp_layout_build(&layout, g, words, count, report, &err);
    if (!status) copy_rows(out, words_per_row, words, report->words_per_row, report->rows);
    free(words);
    return status ? fault_from_library(f, &err) : DONE;
}

static int copy_map(const routing *r, const char *path, const tlamp_geometry *g, uint64_t *out,
                    tlamp_layout_report *report, fault *f)
{
    const routing_map *map = &r->map;
    const int64_t rows = rows_of(g), groups = ceil_div(g->seqlen_k, (int64_t)g->group * g->block_n);
    if (map->rows != rows || map->groups != groups)
        return fault_set(
            f, BAD_INPUT,
            "%s: a map of %lld x %lld groups, where %lld x %lld are needed: build it with --lq %lld --lk %lld "
            "--block-m %d --block-n %d",
            path, (long long)map->rows, (long long)map->groups, (long long)rows, (long long)groups,
            (long long)g->seqlen_q, (long long)g->seqlen_k, g->block_m, g->block_n);
    copy_rows(out, r->words_per_row, map->words, map->words_per_row, rows);
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    *report = (tlamp_layout_report){.struct_size = sizeof *report};
    if (tlamp_layout_measure(g, map->words, rows * map->words_per_row, report, &err))
        return fault_from_library(f, &err);
    return DONE;
}

static int allocate(routing *r, const policy_spec *policy, const input *in, int64_t distinct, fault *f)
{
    int64_t rows = 0;
    r->words_per_row = 1;
    for (int64_t b = 0; b < distinct; b++) {
        const tlamp_geometry g = geometry_of(policy, in, b);
        if (words_per_row_of(&g) > r->words_per_row) r->words_per_row = words_per_row_of(&g);
        rows += rows_of(&g);
    }
    const int explicit_groups = policy->group > 0;
    r->words = calloc((size_t)(rows * r->words_per_row) + 1, sizeof *r->words);
    r->groups = explicit_groups ? calloc((size_t)in->spec.batch + 1, sizeof *r->groups) : NULL;
    for (int64_t b = 0; r->groups && b < in->spec.batch; b++) r->groups[b] = policy->group;
    if (distinct > 1 && !in->spec.varlen) r->stride_batch = rows / distinct * r->words_per_row;
    return r->words && (r->groups || !explicit_groups) ? DONE : fault_no_memory(f);
}

static int fill(routing *r, const policy_spec *policy, uint32_t seed, const input *in, int64_t distinct, fault *f)
{
    uint64_t *out = r->words;
    for (int64_t b = 0; b < distinct; b++) {
        const tlamp_geometry g = geometry_of(policy, in, b);
        tlamp_layout_report report;
        const int code = r->map.words ? copy_map(r, policy->words_file, &g, out, &report, f)
                                      : build_layout(policy, seed, &g, out, r->words_per_row, &report, f);
        if (code) return code;
        if (b == 0) {
            r->geometry = g;
            r->report = report;
        }
        out += rows_of(&g) * r->words_per_row;
    }
    return DONE;
}

int routing_open(routing *r, policy_spec *policy, fault *f)
{
    *r = (routing){.words = NULL};
    if (!policy->words_file[0]) return DONE;
    const int code = mapfile_read(&r->map, policy->words_file, f);
    if (code) return code;
    policy->group = r->map.group;
    if (!policy->has_tile && r->map.block_m) policy->policy.block_m = r->map.block_m;
    if (!policy->has_tile && r->map.block_n) policy->policy.block_n = r->map.block_n;
    return DONE;
}

int routing_build(routing *r, const policy_spec *policy, const input *in, uint32_t seed, fault *f)
{
    const problem_spec *s = &in->spec;
    const int64_t distinct = s->varlen || s->num_used ? s->batch : s->batch > 0;
    const int code = allocate(r, policy, in, distinct, f);
    return code ? code : fill(r, policy, seed, in, distinct, f);
}

void routing_free(routing *r)
{
    free(r->map.words);
    free(r->words);
    free(r->groups);
    *r = (routing){.words = NULL};
}

void routing_apply(const routing *r, tlamp_tensors *tensors)
{
    tensors->words = r->words;
    tensors->words_stride_batch = r->stride_batch;
    tensors->words_stride_head = 0;
    tensors->words_stride_row = r->words_per_row;
    tensors->groups = r->groups;
}
