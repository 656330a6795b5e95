#define _GNU_SOURCE /* asprintf */
#include "result.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static double share(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : (double)NAN; }

shares result_shares(const measurement *m)
{
    const tlamp_counters *c = &m->counters;
    return (shares){share(c->groups_int8, c->groups), share(c->tiles_int8, c->tiles), share(c->cells_int8, c->cells)};
}

/* ------------------------------------------------------------------------------------------------ JSON */

static void put(json_t *object, const char *name, json_t *value) { (void)json_object_set_new(object, name, value); }

static json_t *counters_json(const tlamp_counters *c)
{
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {
        {"groups", c->groups},
        {"groups_int8", c->groups_int8},
        {"tiles", c->tiles},
        {"tiles_int8", c->tiles_int8},
        {"cells", c->cells},
        {"cells_int8", c->cells_int8},
        {"sub_blocks", c->sub_blocks},
        {"sub_blocks_recomputed", c->sub_blocks_recomputed},
        {"tiles_recomputed_0", c->tiles_recomputed[0]},
        {"tiles_recomputed_1", c->tiles_recomputed[1]},
        {"tiles_recomputed_2", c->tiles_recomputed[2]},
        {"sub_blocks_executed", c->sub_blocks_executed},
        {"stage_one", c->stage_one},
        {"stage_two", c->stage_two},
        {"forced", c->forced},
        {"saturated_logits", c->saturated_logits},
        {"nonfinite_tokens", c->nonfinite_tokens},
    };
    json_t *object = json_object(), *histogram = json_array();
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        put(object, fields[i].name, json_integer(fields[i].value));
    for (size_t i = 0; i < sizeof c->histogram / sizeof c->histogram[0]; i++)
        (void)json_array_append_new(histogram, json_integer(c->histogram[i]));
    put(object, "histogram", histogram);
    put(object, "largest_logit", json_number((double)c->largest_logit));
    return object;
}

static json_t *shares_json(const measurement *m)
{
    const shares s = result_shares(m);
    json_t *object = json_object();
    put(object, "group", json_number(s.group));
    put(object, "tile", json_number(s.tile));
    put(object, "cell", json_number(s.cell));
    return object;
}

/* Scores by how they were computed: in cells, or in sub-blocks where those decide. */
static json_t *levels_json(const measurement *m)
{
    const tlamp_counters *c = &m->counters;
    const double low = c->sub_blocks ? 1 - share(c->sub_blocks_executed, c->sub_blocks) : result_shares(m).cell;
    json_t *object = json_object();
    put(object, "low", json_number(low));
    put(object, "x3", json_number(isnan(low) ? low : 0));
    put(object, "high", json_number(1 - low));
    return object;
}

json_t *result_json(const subject *s, const measurement *m)
{
    json_t *object = json_object();
    put(object, "problem", json_text(s->problem));
    put(object, "file", json_text(s->path));
    put(object, "policy", json_text(m->policy.text));
    put(object, "kernel", json_text(m->kernel));
    put(object, "pv", json_text(policy_pv_name(m->pv)));
    put(object, "ms", json_number(m->ms));
    put(object, "gflops", json_number(m->gflops));
    put(object, "max_abs_error", json_number(m->max_abs_error));
    put(object, "mean_abs_error", json_number(m->mean_abs_error));
    put(object, "rel_l2_error", json_number(m->rel_l2_error));
    put(object, "max_lse_error", json_number(m->max_lse_error));
    put(object, "max_error_to_bound", json_number(m->max_error_to_bound));
    put(object, "max_weight_l1_error", json_null());
    put(object, "max_certificate", json_null());
    put(object, "certificate_provider", json_null());
    put(object, "eps_high", json_null());
    put(object, "int8_share", shares_json(m));
    put(object, "level_share", levels_json(m));
    put(object, "recomputed_share", json_number(share(m->counters.sub_blocks_recomputed, m->counters.sub_blocks)));
    put(object, "counters", counters_json(&m->counters));
    put(object, "passed", json_boolean(!m->failed));
    return object;
}

/* ------------------------------------------------------------------------------------------------ table */

char *subject_title(const subject *s)
{
    char *title = NULL;
    const int printed = s->path ? asprintf(&title, "%s: %s", s->path, s->problem) : asprintf(&title, "%s", s->problem);
    return printed < 0 ? NULL : title;
}

/* "25.0", or "-" for no share at all. */
static const char *percent(double x, char text[16])
{
    (void)snprintf(text, 16, isnan(x) ? "-" : "%.1f", 100 * x);
    return text;
}

const char *result_ratio(const measurement *m, char text[16])
{
    (void)snprintf(text, 16, isnan(m->max_error_to_bound) ? "none" : "%.2g", m->max_error_to_bound);
    return text;
}

/* A column only where some policy recomputes. */
static bool some_recompute(const measurement *results, int count)
{
    for (int i = 0; i < count; i++)
        if (results[i].counters.sub_blocks) return true;
    return false;
}

static void print_row(const measurement *m, int width, bool recomputes)
{
    const shares s = result_shares(m);
    char group[16], tile[16], cell[16], ratio[16], again[16];
    printf("%-*s %6s %6s %6s", width, m->policy.text, percent(s.group, group), percent(s.tile, tile),
           percent(s.cell, cell));
    if (recomputes) printf(" %10s", percent(share(m->counters.sub_blocks_recomputed, m->counters.sub_blocks), again));
    printf("  %9.2e %9.2e %9.2e %9.3f %9.2f %8.2f  %8s  %s%s\n", m->max_abs_error, m->mean_abs_error, m->max_lse_error,
           m->ms, m->gflops, m->speedup, result_ratio(m, ratio), m->kernel, m->failed ? "  FAILED" : "");
}

void result_print_table(const subject *s, const measurement *results, int count)
{
    char *title = subject_title(s);
    int width = 6;
    for (int i = 0; i < count; i++)
        if ((int)strlen(results[i].policy.text) > width) width = (int)strlen(results[i].policy.text);
    printf("%s\n", title ? title : "");
    free(title);
    if (s->source) printf("source: %s\n", s->source);
    const bool recomputes = some_recompute(results, count);
    const char *const re = recomputes ? " recomputed" : "", *const unit = recomputes ? "          %" : "";
    printf("\n%-*s %20s%s  %9s %9s %9s %9s %9s %8s  %8s\n", width, "", "INT8 share, %", re, "max", "mean", "LSE", "",
           "", "speed,", "error/");
    printf("%-*s %6s %6s %6s%s  %9s %9s %9s %9s %9s %8s  %8s  %s\n", width, "policy", "group", "tile", "cell", unit,
           "error", "error", "error", "ms", "GFLOP/s", "x high", "bound", "kernel");
    for (int i = 0; i < count; i++) print_row(&results[i], width, recomputes);
}

/* ------------------------------------------------------------------------------------------------ verdict */

int result_verdict(const subject *s, const measurement *results, int count, fault *f)
{
    for (int i = 0; i < count; i++) {
        const measurement *m = &results[i];
        if (!m->failed) continue;
        return fault_set(f, CHECK_FAILED, "%s: %s: report it with: tilelamp run %s%s%s --policy \"%s\"", m->policy.text,
                         m->complaint, s->path ? "--qkv " : "\"", s->path ? s->path : s->problem, s->path ? "" : "\"",
                         m->policy.text);
    }
    return DONE;
}
