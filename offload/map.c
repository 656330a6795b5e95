/* Routing maps written on a device: the text of core/layout_map.h, for the rows side by side. What draws from the one random
 * stream is one worker's. Only the request goes there and the counts come back. */
#include <omp.h>
#include <stddef.h>

#include "backend.h"
#include "status.h"

typedef enum { TL_MAP_WRITE, TL_MAP_DRAW, TL_MAP_COUNT, TL_MAP_RETARGET, TL_MAP_SUM } tl_map_phase;

/* Lies in device memory, and so does everything it points to. */
typedef struct {
    tl_map map;
    tl_coverage *rows; /* of each row */
    tl_coverage sum;
    tl_random random;
    int64_t workers;
} tl_map_run;

static void sum_rows(tl_map_run *run)
{
    tl_coverage sum = {{0, 0}, {0, 0}, {0, 0}};
    for (int64_t m = 0; m < run->map.grid.rows; m++) {
        const tl_coverage *row = &run->rows[m];
        sum.groups.int8 += row->groups.int8;
        sum.groups.legal += row->groups.legal;
        sum.tiles.int8 += row->tiles.int8;
        sum.tiles.legal += row->tiles.legal;
        sum.cells.int8 += row->cells.int8;
        sum.cells.legal += row->cells.legal;
    }
    run->sum = sum;
}

static void work(tl_map_run *run, int32_t phase, int64_t worker)
{
    const tl_map *map = &run->map;
    switch (phase) {
    case TL_MAP_DRAW: tl_map_draw(map, &run->random); break;
    case TL_MAP_RETARGET:
        sum_rows(run);
        tl_map_retarget(map, run->sum.tiles, &run->random);
        break;
    case TL_MAP_SUM: sum_rows(run); break;
    default:
        for (int64_t m = worker; m < map->grid.rows; m += run->workers) {
            if (phase == TL_MAP_WRITE) {
                tl_map_write_row(map, m);
            } else {
                run->rows[m] = (tl_coverage){{0, 0}, {0, 0}, {0, 0}};
                tl_coverage_add_row(&run->rows[m], &map->grid, tl_map_row(map, m), m);
            }
        }
    }
}

#define TL_RUN tl_map_run
#define TL_LAUNCH launch_map
#include "launch.inc.h"

enum { MOST_WORKERS = 1 << 14 };

/* 0, or 1 where a launch failed. */
static int run_phases(tl_map_run *there, const tl_map *map, int32_t device)
{
    const struct {
        tl_map_phase phase;
        int needed, serial;
    } phases[] = {{TL_MAP_WRITE, 1, 0},
                  {TL_MAP_DRAW, map->draws, 1},
                  {TL_MAP_COUNT, 1, 0},
                  {TL_MAP_RETARGET, map->retarget, 1},
                  {TL_MAP_COUNT, map->retarget, 0},
                  {TL_MAP_SUM, 1, 1}};
    const int64_t workers = tl_clamp64(map->grid.rows, 1, MOST_WORKERS);
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++)
        if (phases[i].needed && launch_map(there, (int32_t)phases[i].phase, phases[i].serial ? 1 : workers, device))
            return 1;
    return 0;
}

tlamp_status tl_device_build_map(const tl_map *map, int64_t scratch, const tlamp_exec *exec, tl_coverage *coverage,
                                 tlamp_error *err)
{
    int32_t device;
    const tlamp_status found = tl_find_device(&device, exec, err);
    if (found) return found;
    const int host = omp_get_initial_device(), from_host = exec->memory == TLAMP_MEMORY_HOST;
    const size_t words = tl_mul_size((size_t)map->grid.rows, (size_t)map->words_per_row * sizeof *map->words);
    tl_arena a = {NULL, 0};
    unsigned char *there = NULL;
    tl_map_run run = {.map = *map, .workers = tl_clamp64(map->grid.rows, 1, MOST_WORKERS)};
    for (int pass = 0; pass < 2; pass++) { /* sizes, then places */
        a = (tl_arena){there, 0};
        (void)tl_take_array(&a, 1, sizeof run);
        run.rows = tl_take_array(&a, map->grid.rows, sizeof *run.rows);
        run.map.scratch = tl_take_array(&a, scratch, sizeof *run.map.scratch);
        if (from_host) run.map.words = tl_take_array(&a, 1, words);
        if (!there && a.used != SIZE_MAX) there = omp_target_alloc(a.used, device);
        if (!there) return tl_fail(err, TLAMP_OUT_OF_MEMORY, "device", "no device memory for %zu bytes", a.used);
    }
    int failed = omp_target_memcpy(there, &run, sizeof run, 0, 0, device, host);
    const int not_launched = !failed && run_phases((tl_map_run *)(void *)there, map, device);
    if (!failed && !not_launched)
        failed = omp_target_memcpy(&run.sum, there, sizeof run.sum, 0, offsetof(tl_map_run, sum), host, device);
    if (!failed && !not_launched && from_host && words)
        failed = omp_target_memcpy(map->words, run.map.words, words, 0, 0, host, device);
    omp_target_free(there, device);
    if (not_launched) return tl_not_launched(err);
    if (failed) return tl_copy_failed(err);
    if (coverage) *coverage = run.sum;
    return TLAMP_OK;
}
