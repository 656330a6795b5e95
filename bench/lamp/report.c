#include "report.h"

#include <math.h>

#include "cost.h"
#include "tables/grid.h"

static int publish(const grid *g, json_t *output, fault *f)
{
    if (!output) {
        grid_print(g);
        return DONE;
    }
    return json_array_append_new(output, grid_json(g)) ? fault_no_memory(f) : DONE;
}

/* ------------------------------------------------------------------------------------------------ errors and shares */

static void put_errors(double *cells, const trial *t)
{
    cells[0] = t->rel_mae;
    cells[1] = t->max;
}

static void put_trial(double *cells, const trial *t)
{
    put_errors(cells, t);
    cells[2] = 100 * trial_recomputed(t);
    cells[3] = 100 * trial_stage_one(t);
    cells[4] = 100 * trial_stage_two(t);
    for (int n = 0; n < 3; n++) cells[5 + n] = 100 * trial_tiles(t, n);
}

static void put_columns(grid *g)
{
    static const char *const shares[] = {"again %", "stage 1", "stage 2", "tiles: 0", "1", "2+ %"};
    grid_column(g, GRID_ERROR, "relMAE");
    grid_column(g, GRID_ERROR, "max");
    for (int i = 0; i < 6; i++) grid_column(g, GRID_FIXED, "%s", shares[i]);
}

static int report_rows(const sweep *s, int rows, json_t *output, fault *f)
{
    grid g;
    grid_init(&g, "policy", "%s, b_q = %d", s->name, sweep_rows[rows]);
    put_columns(&g);
    put_errors(grid_row(&g, "8 bits"), &s->low);
    for (int delta = 0; delta < NUM_DELTAS; delta++)
        for (int tau = 0; tau < NUM_TAUS; tau++)
            put_trial(grid_row(&g, "delta %s, tau %s", sweep_deltas[delta], sweep_taus[tau]),
                      &s->lamp[delta][rows][tau]);
    put_errors(grid_row(&g, "16 bits"), &s->mid);
    put_errors(grid_row(&g, "32 bits"), &s->f32);
    put_trial(grid_row(&g, "hw, delta 2^-8, tau 2^-1"), &s->hw[rows]);
    put_trial(grid_row(&g, "compact, the same"), &s->compact[rows]);
    const tlamp_counters *c = &s->lamp[HEADLINE_DELTA][rows][HEADLINE_TAU].counters;
    grid_note(&g, "relMAE: mean |o - exact| / mean |exact|; exact is tlamp_reference in double, all rows and heads.");
    grid_note(&g, "%lld legal sub-blocks of 16 keys in %lld tiles of %d queries by 64 keys; largest logit %.2f.",
              (long long)c->sub_blocks,
              (long long)(c->tiles_recomputed[0] + c->tiles_recomputed[1] + c->tiles_recomputed[2]), sweep_rows[rows],
              (double)c->largest_logit);
    grid_note(&g, "hw: %lld saturated logits.", (long long)s->hw[rows].counters.saturated_logits);
    return publish(&g, output, f);
}

/* ------------------------------------------------------------------------------------------------ cost model */

static void put_cost(double *cells, const trial *t, register_layout layout, int rows)
{
    const exp_cost cost = cost_exp(&t->counters, layout);
    cells[0] = cost_registers(layout, sweep_rows[rows], 16, 4);
    cells[1] = cost.low;
    cells[2] = cost.high;
    cells[3] = cost.cycles;
    cells[4] = cost.even;
    cells[5] = t->rel_mae;
}

static int report_costs(const sweep *s, json_t *output, fault *f)
{
    static const char *const columns[] = {"registers", "exp low", "exp high", "cycles", "even at"};
    grid g;
    grid_init(&g, "layout", "%s, cost model (a projection, nothing measured)", s->name);
    for (int i = 0; i < 5; i++) grid_column(&g, GRID_FIXED, "%s", columns[i]);
    grid_column(&g, GRID_ERROR, "relMAE");
    for (int rows = 0; rows < NUM_ROWS; rows++) {
        const int32_t b_q = sweep_rows[rows];
        grid_row(&g, "b_q = %d, f32", b_q)[0] = cost_registers(REGISTERS_F32, b_q, 16, 4);
        put_cost(grid_row(&g, "b_q = %d, safe", b_q), &s->lamp[HEADLINE_DELTA][rows][HEADLINE_TAU], REGISTERS_SAFE,
                 rows);
        put_cost(grid_row(&g, "b_q = %d, compact", b_q), &s->compact[rows], REGISTERS_COMPACT, rows);
    }
    grid_note(&g, "delta = 2^-8, tau = 2^-1. Registers: 32 bits, for scores, per thread of a warp of %d.",
              WARP_THREADS);
    grid_note(&g, "exp: exponentials per legal one; cycles: theirs alone, in units of a high one.");
    grid_note(&g, "Assumed: a lookup costs %.2f of a high exponential, as four codes share a register.", EXP_LOW);
    grid_note(&g, "Assumed: compact saves no exponential of the first attempt where a tile is done again.");
    grid_note(&g,
              "even at: a lookup may cost that much of a high exponential before all high is as cheap; empty: never "
              "cheaper.");
    return publish(&g, output, f);
}

int report_sweep(const sweep *s, json_t *output, fault *f)
{
    int code = DONE;
    for (int rows = 0; rows < NUM_ROWS && !code; rows++) code = report_rows(s, rows, output, f);
    return code ? code : report_costs(s, output, f);
}
