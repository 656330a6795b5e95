/* Routing maps (ALGORITHMS A3-A5): checks the request, chooses the layout's parameters, writes the words. */
#include "tilelamp/tilelamp.h"

#include "core/layout_map.h"
#include "device.h"
#include "policy/coverage.h"
#include "status.h"
#include "validate.h"
#include "workspace.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BLOCK_M = 128, DEFAULT_BLOCK_N = 64, MIN_BLOCK = 16, DEFAULT_SEED = 42 };

/* Longer sequences would not fit an int32 group size; more cells than this would not fit the counts. */
#define MAX_LENGTH ((int64_t)1 << 40)
#define MAX_CELLS ((int64_t)1 << 62)

static const char *const layout_names[] = {
    [TLAMP_LAYOUT_ONE] = "one",
    [TLAMP_LAYOUT_ZERO] = "zero",
    [TLAMP_LAYOUT_BAND] = "band",
    [TLAMP_LAYOUT_GLOBAL] = "global",
    [TLAMP_LAYOUT_ROW_RAND] = "row_rand",
    [TLAMP_LAYOUT_ALIGN_SPARSE] = "align_sparse",
    [TLAMP_LAYOUT_BIGBIRD] = "bigbird",
    [TLAMP_LAYOUT_SPTRANS] = "sptrans",
    [TLAMP_LAYOUT_SPTRANS_SCALED] = "sptrans_scaled",
};

const char *tlamp_layout_name(tlamp_layout_kind kind)
{
    const int known = kind >= 0 && (size_t)kind < sizeof layout_names / sizeof layout_names[0];
    return known ? layout_names[kind] : NULL;
}

/* ---------------------------------------------------------------------------------------------- structs */

static tlamp_geometry default_geometry(void)
{
    return (tlamp_geometry){.struct_size = sizeof(tlamp_geometry), .window_left = -1, .window_right = -1};
}

static tlamp_layout default_layout(void)
{
    return (tlamp_layout){.struct_size = sizeof(tlamp_layout), .seed = DEFAULT_SEED};
}

void tlamp_geometry_init(tlamp_geometry *geometry, size_t struct_size)
{
    const tlamp_geometry defaults = default_geometry();
    tl_init_struct(geometry, struct_size, &defaults, sizeof defaults);
}

void tlamp_layout_init(tlamp_layout *layout, size_t struct_size)
{
    const tlamp_layout defaults = default_layout();
    tl_init_struct(layout, struct_size, &defaults, sizeof defaults);
}

/* ---------------------------------------------------------------------------------------------- checks */

static int is_block(int32_t block, int32_t unit)
{
    return block >= MIN_BLOCK && (unit % block == 0 || block % unit == 0);
}

static tlamp_status check_lengths(const tlamp_geometry *g, tlamp_error *err)
{
    if (g->seqlen_q < 0 || g->seqlen_q > MAX_LENGTH)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "seqlen_q", "must be 0 to 2^40, is %lld", (long long)g->seqlen_q);
    if (g->seqlen_k < 0 || g->seqlen_k > MAX_LENGTH)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "seqlen_k", "must be 0 to 2^40, is %lld", (long long)g->seqlen_k);
    if (g->seqlen_k > 0 && g->seqlen_q > MAX_CELLS / g->seqlen_k)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "seqlen_q",
                       "seqlen_q * seqlen_k must be at most 2^62, is %lld * %lld", (long long)g->seqlen_q,
                       (long long)g->seqlen_k);
    return TLAMP_OK;
}

static tlamp_status check_tiles(const tlamp_geometry *g, tlamp_error *err)
{
    if (!is_block(g->block_m, DEFAULT_BLOCK_M))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "block_m",
                       "must divide 128 or be a multiple of it, at least 16; is %d", (int)g->block_m);
    if (!is_block(g->block_n, DEFAULT_BLOCK_N))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "block_n",
                       "must divide 64 or be a multiple of it, at least 16; is %d", (int)g->block_n);
    if (g->group < 0)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "group", "must be positive, or 0 for automatic; is %d",
                       (int)g->group);
    return TLAMP_OK;
}

static tlamp_status check_mask(const tlamp_geometry *g, tlamp_error *err)
{
    if (g->mask < TLAMP_MASK_NONE || g->mask > TLAMP_MASK_CAUSAL_TOP_LEFT)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "mask", "unknown mask kind %d", (int)g->mask);
    if (g->window_left < -1)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "window_left", "must be at least 0, or -1 for unlimited; is %lld",
                       (long long)g->window_left);
    if (g->window_right < -1)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "window_right", "must be at least 0, or -1 for unlimited; is %lld",
                       (long long)g->window_right);
    return TLAMP_OK;
}

static tlamp_status take_geometry(tl_grid *grid, const tlamp_geometry *from, tlamp_error *err)
{
    if (!from) return tl_fail(err, TLAMP_INVALID_ARGUMENT, "geometry", "is NULL");
    tlamp_geometry g = default_geometry();
    tlamp_status status = tl_take_struct(&g, sizeof g, from, "geometry", err);
    if (status) return status;
    g.block_m = g.block_m ? g.block_m : DEFAULT_BLOCK_M;
    g.block_n = g.block_n ? g.block_n : DEFAULT_BLOCK_N;
    if ((status = check_lengths(&g, err)) || (status = check_tiles(&g, err)) || (status = check_mask(&g, err)))
        return status;

    const int32_t group = g.group ? g.group : tl_auto_group(g.seqlen_k, g.block_n);
    *grid = (tl_grid){
        .mask = tl_mask_make(g.seqlen_q, g.seqlen_k, g.mask != TLAMP_MASK_NONE, g.mask == TLAMP_MASK_CAUSAL_TOP_LEFT,
                             g.window_left, g.window_right),
        .block_m = g.block_m,
        .block_n = g.block_n,
        .group_keys = (int64_t)g.block_n * group,
        .rows = tl_ceil_div(g.seqlen_q, g.block_m),
        .groups = tl_num_groups(g.seqlen_k, g.block_n, group),
    };
    return TLAMP_OK;
}

static tlamp_status take_layout(tlamp_layout *layout, const tlamp_layout *from, tlamp_error *err)
{
    if (!from) return tl_fail(err, TLAMP_INVALID_ARGUMENT, "layout", "is NULL");
    *layout = default_layout();
    const tlamp_status status = tl_take_struct(layout, sizeof *layout, from, "layout", err);
    if (status) return status;
    if (!tlamp_layout_name(layout->kind))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "kind", "unknown layout kind %d", (int)layout->kind);
    if (layout->retarget != 0 && layout->retarget != 1)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "retarget", "must be 0 or 1, is %d", (int)layout->retarget);
    const int uses_coverage = layout->kind != TLAMP_LAYOUT_ONE && layout->kind != TLAMP_LAYOUT_ZERO;
    if ((uses_coverage || layout->retarget) && !(layout->coverage >= 0 && layout->coverage <= 1)) /* NaN too */
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "coverage", "must be 0 to 1, is %g", layout->coverage);
    return TLAMP_OK;
}

/* One word at least, so that every row has a place. */
static int64_t words_per_row(const tl_grid *grid) { return tl_max64(1, tl_ceil_div(grid->groups, 64)); }

static tlamp_status check_words(const tl_grid *grid, const uint64_t *words, int64_t count, tlamp_error *err)
{
    const int64_t needed = grid->rows * words_per_row(grid);
    if (count < needed)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "count", "%lld words given, %lld needed", (long long)count,
                       (long long)needed);
    if (!words && needed) return tl_fail(err, TLAMP_INVALID_ARGUMENT, "words", "is NULL");
    return TLAMP_OK;
}

static tlamp_status check_report(const tlamp_layout_report *report, tlamp_error *err)
{
    if (report && report->struct_size < sizeof report->struct_size)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "struct_size", "report.struct_size is %zu: set it to sizeof",
                       report->struct_size);
    return TLAMP_OK;
}

int32_t tlamp_auto_group(int64_t seqlen_k, int32_t block_n)
{
    const int valid = seqlen_k >= 0 && seqlen_k <= MAX_LENGTH && is_block(block_n, DEFAULT_BLOCK_N);
    return valid ? tl_auto_group(seqlen_k, block_n) : -1;
}

int64_t tlamp_layout_words(const tlamp_geometry *geometry)
{
    tl_grid grid;
    return take_geometry(&grid, geometry, NULL) ? -1 : grid.rows * words_per_row(&grid);
}

/* ---------------------------------------------------------------------------------------------- public calls */

static int is_random(tlamp_layout_kind kind) { return kind == TLAMP_LAYOUT_ROW_RAND || kind == TLAMP_LAYOUT_BIGBIRD; }

static int is_retargeted(const tlamp_layout *layout)
{
    return layout->retarget || layout->kind == TLAMP_LAYOUT_SPTRANS;
}

/* Coverage 0 and 1 are exact for every layout. The parameters of these two do not reach so far. */
static tlamp_layout_kind kind_at_ends(const tlamp_layout *layout)
{
    const int falls_short = layout->kind == TLAMP_LAYOUT_ALIGN_SPARSE || layout->kind == TLAMP_LAYOUT_SPTRANS_SCALED;
    if (falls_short && layout->coverage == 0) return TLAMP_LAYOUT_ZERO;
    if (falls_short && layout->coverage == 1) return TLAMP_LAYOUT_ONE;
    return layout->kind;
}

/* Everything but the words and the scratch. */
static tl_map make_map(const tl_grid *grid, const tlamp_layout *wanted)
{
    return (tl_map){.grid = *grid,
                    .layout = tl_layout_solve(grid, kind_at_ends(wanted), wanted->coverage),
                    .kind = wanted->kind,
                    .coverage = wanted->coverage,
                    .seed = wanted->seed,
                    .draws = is_random(wanted->kind),
                    .retarget = is_retargeted(wanted),
                    .words_per_row = words_per_row(grid)};
}

static int64_t scratch_items(const tl_map *map)
{
    const int64_t cells = map->retarget ? tl_legal_groups(&map->grid) : 0;
    return map->draws ? tl_max64(cells, map->grid.groups) : cells;
}

static tlamp_status no_memory(int64_t items, tlamp_error *err)
{
    return tl_fail(err, TLAMP_OUT_OF_MEMORY, "", "no memory to draw from %lld groups", (long long)items);
}

/* coverage: NULL where nobody asks. */
static tlamp_status build_here(tl_map *map, tl_coverage *coverage, tlamp_error *err)
{
    const int64_t items = scratch_items(map);
    tl_random random;
    if (items > 0 && (uint64_t)items <= SIZE_MAX / sizeof(int64_t))
        map->scratch = malloc((size_t)items * sizeof(int64_t));
    if (items > 0 && !map->scratch) return no_memory(items, err);
    for (int64_t m = 0; m < map->grid.rows; m++) tl_map_write_row(map, m);
    if (map->draws) tl_map_draw(map, &random);
    if (map->retarget)
        tl_map_retarget(map, tl_coverage_measure(&map->grid, map->words, map->words_per_row).tiles, &random);
    free(map->scratch);
    if (coverage) *coverage = tl_coverage_measure(&map->grid, map->words, map->words_per_row);
    return TLAMP_OK;
}

/* As far as the caller's struct reaches; its struct_size is kept. */
static void write_report(tlamp_layout_report *report, const tl_grid *grid, const tl_layout *layout,
                         const tl_coverage *coverage)
{
    const int64_t unit = layout->kind == TLAMP_LAYOUT_SPTRANS_SCALED ? grid->group_keys : 1; /* tokens */
    const tlamp_layout_report full = {
        .struct_size = report->struct_size,
        .rows = grid->rows,
        .groups = grid->groups,
        .group = (int32_t)(grid->group_keys / grid->block_n),
        .words_per_row = (int32_t)words_per_row(grid),
        .coverage_group = tl_share_value(coverage->groups),
        .coverage_tile = tl_share_value(coverage->tiles),
        .coverage_cell = tl_share_value(coverage->cells),
        .width = layout->stride ? layout->stride * unit : layout->width,
        .width2 = layout->tail * unit,
        .alpha = (double)layout->alpha,
        .beta = (double)(layout->beta_step * 2 * grid->block_m) / ((double)TL_BETA_STEPS * (double)grid->group_keys),
    };
    memcpy(report, &full, report->struct_size < sizeof full ? report->struct_size : sizeof full);
}

tlamp_status tlamp_layout_build_on(const tlamp_layout *layout, const tlamp_geometry *geometry, const tlamp_exec *exec,
                                   uint64_t *words, int64_t count, tlamp_layout_report *report, tlamp_error *err)
{
    tlamp_layout wanted;
    tl_grid grid;
    tlamp_exec on;
    tlamp_status status;
    if ((status = take_layout(&wanted, layout, err)) || (status = take_geometry(&grid, geometry, err)) ||
        (status = tl_validate_exec(&on, exec, err)) || (status = check_words(&grid, words, count, err)) ||
        (status = check_report(report, err)))
        return status;
    tl_map map = make_map(&grid, &wanted);
    tl_coverage coverage;
    map.words = words;
    status = on.memory == TLAMP_MEMORY_HOST && on.device < 0
                 ? build_here(&map, report ? &coverage : NULL, err)
                 : tl_device_build_map(&map, scratch_items(&map), &on, report ? &coverage : NULL, err);
    if (!status && report) write_report(report, &grid, &map.layout, &coverage);
    return status;
}

tlamp_status tlamp_layout_build(const tlamp_layout *layout, const tlamp_geometry *geometry, uint64_t *words,
                                int64_t count, tlamp_layout_report *report, tlamp_error *err)
{
    return tlamp_layout_build_on(layout, geometry, NULL, words, count, report, err);
}

tlamp_status tlamp_layout_measure(const tlamp_geometry *geometry, const uint64_t *words, int64_t count,
                                  tlamp_layout_report *report, tlamp_error *err)
{
    tl_grid grid;
    tlamp_status status;
    if ((status = take_geometry(&grid, geometry, err)) || (status = check_words(&grid, words, count, err)))
        return status;
    if (!report) return tl_fail(err, TLAMP_INVALID_ARGUMENT, "report", "is NULL");
    if ((status = check_report(report, err))) return status;
    const tl_coverage coverage = tl_coverage_measure(&grid, words, words_per_row(&grid));
    write_report(report, &grid, &(tl_layout){0}, &coverage);
    return TLAMP_OK;
}
