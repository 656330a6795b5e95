#include "tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUM_SHARES = 6, EXACT_BLOCKS = 32 };
static const int shares[NUM_SHARES] = {0, 5, 10, 15, 20, 25}; /* percent INT8 */

static const struct paper_row {
    int64_t length;
    double mae[NUM_SHARES];
} paper[] = {
    {1024, {7.27e-5, 7.47e-4, 1.19e-3, 1.56e-3, 1.67e-3, 2.03e-3}},
    {2048, {5.89e-5, 4.29e-4, 1.16e-3, 1.49e-3, 1.66e-3, 1.84e-3}},
    {4096, {4.87e-5, 6.71e-4, 1.10e-3, 1.41e-3, 1.59e-3, 1.78e-3}},
    {8192, {6.84e-5, 8.34e-4, 6.32e-3, 6.59e-3, 6.71e-3, 6.84e-3}},
};
enum { NUM_LENGTHS = sizeof paper / sizeof paper[0] };

/* What one row of the table sums up. */
typedef struct row {
    difference of_share[NUM_SHARES];
    difference *from_double; /* of HIGH in f32 */
} row;

static int add_share(row *to, const experiment *e, int share, int variant, const float *exact, float *o, fault *f)
{
    char policy[32] = "high";
    if (shares[share]) (void)snprintf(policy, sizeof policy, "row_rand:%.2f", 0.01 * shares[share]);
    const int code = experiment_run(e, policy, tables_map_seed(policy, variant), TLAMP_F16, o, f);
    if (!code) difference_add(&to->of_share[share], o, exact, experiment_elements(e));
    return code;
}

/* Adds the maps first .. last of one input. */
static int add_input(row *to, const experiment *e, int first, int last, fault *f)
{
    const int64_t count = experiment_elements(e);
    float *exact = calloc(2 * (size_t)count, sizeof *exact);
    if (!exact) return fault_no_memory(f);
    int code = experiment_run(e, "high", 0, TLAMP_F32, exact, f);
    if (!code) code = difference_add_exact(to->from_double, e, exact, EXACT_BLOCKS, f);
    for (int variant = first; variant <= last && !code; variant++)
        for (int share = 0; share < NUM_SHARES && !code; share++)
            if (share > 0 || variant == first) code = add_share(to, e, share, variant, exact, exact + count, f);
    free(exact);
    return code;
}

/* Long sequences have many elements and take few seeds: as many tokens each time, or one seed. */
static int add_random(row *to, const options *o, int64_t length, fault *f)
{
    const int64_t fitting = o->seeds * 1024 / length, seeds = fitting > 1 ? fitting : 1;
    int code = DONE;
    for (int seed = 1; seed <= seeds && !code; seed++) {
        experiment e;
        code = tables_open(&e, o, RANDOM, length, seed, f);
        if (code) break;
        code = add_input(to, &e, seed, seed, f);
        experiment_close(&e);
    }
    return code;
}

static int add_file(row *to, const options *o, int source, fault *f)
{
    experiment e;
    int code = tables_open(&e, o, source, 0, 0, f);
    if (code) return code;
    code = add_input(to, &e, 1, o->seeds, f);
    experiment_close(&e);
    return code;
}

static void write_row(grid *g, const row *r, const char *label)
{
    double *cells = grid_row(g, "%s", label);
    for (int share = 0; share < NUM_SHARES; share++) cells[share] = difference_mean(&r->of_share[share]);
}

static int fill(grid *g, const options *o, difference *from_double, fault *f)
{
    const int64_t wanted = o->length ? o->length : o->quick ? 1024 : 8192;
    const int64_t longest = wanted > 1024 ? wanted : 1024;
    for (int i = 0; i < NUM_LENGTHS && paper[i].length <= longest; i++) {
        row r = {.from_double = from_double};
        char label[GRID_LABEL];
        const int code = add_random(&r, o, paper[i].length, f);
        if (code) return code;
        double *cells = grid_row(g, "%lld, paper", (long long)paper[i].length);
        for (int share = 0; share < NUM_SHARES; share++) cells[share] = paper[i].mae[share];
        (void)snprintf(label, sizeof label, "%lld, ours, random", (long long)paper[i].length);
        write_row(g, &r, label);
    }
    for (int source = 1; source <= o->num_files; source++) {
        row r = {.from_double = from_double};
        char label[GRID_LABEL];
        const int code = add_file(&r, o, source, f);
        if (code) return code;
        (void)snprintf(label, sizeof label, "ours, %s", tables_source_name(o, source).text);
        write_row(g, &r, label);
    }
    return DONE;
}

int table_3(const options *o, fault *f)
{
    grid g;
    grid_init(&g, "keys", "Table 3: mean absolute error by share of INT8");
    for (int share = 0; share < NUM_SHARES; share++) grid_column(&g, GRID_ERROR, "%d %%", shares[share]);
    difference from_double = {0, 0, 0};
    const int code = fill(&g, o, &from_double, f);
    if (code) return code;
    grid_note(&g, "Paper: against PyTorch's FP16 attention; layout, inputs and heads are not given.");
    grid_note(&g,
              "Ours: O in f16 under row_rand:SHARE (0 %%: high) against high with O in f32; N(0,1) in f16, one causal "
              "head, d = %d.",
              RANDOM_DIM);
    grid_note(&g, "That high, against tlamp_reference in double in sampled rows: mean %.1e, largest %.1e.",
              difference_mean(&from_double), from_double.max);
    return tables_publish(o, &g, f);
}
