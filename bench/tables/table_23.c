/* Table 23: how much of the attention that matters most is computed in INT8. The heavy hitters of a row are its fewest keys
 * that together have tau of its importance; E is the share of their importance that lies in INT8 groups, over all rows.
 * The paper's importance is |P dL/dP|, L the training loss. There is no loss here: importance is P itself, and P |v|, the
 * length of what the key adds to O. */
#include "tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_TAUS = 4, MAX_POLICIES = 24, ROWS_AT_ONCE = 64 };
typedef enum { OF_P, OF_PV, NUM_IMPORTANCES } importance;
static const double taus[NUM_TAUS] = {.05, .10, .20, .30};
static const char *const layouts[] = {"sptrans", "align_sparse", "band", "global", "row_rand", "bigbird"};
enum { NUM_NAMES = sizeof layouts / sizeof layouts[0] };
static const double paper[3][NUM_TAUS] = {
    /* SpTrans at 25, 50 and 75 % INT8 */
    {.0857, .0863, .0863, .0848},
    {.1919, .1915, .1863, .1776},
    {.2155, .2166, .2160, .2115},
};

/* Sums over the rows so far, under one policy. */
typedef struct exposure {
    double all[NUM_IMPORTANCES][NUM_TAUS], int8[NUM_IMPORTANCES][NUM_TAUS];
} exposure;

/* A policy and its map on the current input. */
typedef struct routed {
    policy_spec spec;
    routing map;
} routed;

typedef struct weighed_key {
    double weight;
    int64_t key;
} weighed_key;

static int heavier_first(const void *a, const void *b)
{
    const weighed_key *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->key < y->key ? -1 : 1;
}

static bool is_int8(const routed *r, int64_t row, int64_t key)
{
    const tlamp_geometry *g = &r->map.geometry;
    const int64_t group = key / ((int64_t)g->group * g->block_n);
    const uint64_t *words = r->map.words + row / g->block_m * r->map.words_per_row;
    return words[group / 64] >> (group % 64) & 1;
}

/* Adds the heavy hitters of one row under one map. keys: sorted; total: the sum of their weights. */
static void add_row(exposure *to, importance kind, const routed *r, int64_t row, const weighed_key *keys, int64_t count,
                    double total)
{
    double sum = 0, int8 = 0;
    int64_t n = 0;
    for (int t = 0; t < NUM_TAUS; t++) {
        for (; n < count && sum < taus[t] * total; n++) {
            sum += keys[n].weight;
            if (is_int8(r, row, keys[n].key)) int8 += keys[n].weight;
        }
        to->all[kind][t] += sum;
        to->int8[kind][t] += int8;
    }
}

/* What is being measured: one input under all maps. */
typedef struct study {
    const experiment *e;
    const routed *maps;
    int num_maps;
    double *lengths;   /* |v| [KV heads][keys] */
    double *weights;   /* of ROWS_AT_ONCE rows */
    weighed_key *keys; /* room for one row */
} study;

static void rank_row(const study *s, exposure *results, importance kind, int64_t row, int64_t seen,
                     const double *weights, const double *lengths)
{
    double total = 0;
    for (int64_t j = 0; j < seen; j++) {
        s->keys[j] = (weighed_key){kind == OF_P ? weights[j] : weights[j] * lengths[j], j};
        total += s->keys[j].weight;
    }
    qsort(s->keys, (size_t)seen, sizeof *s->keys, heavier_first);
    for (int m = 0; m < s->num_maps; m++) add_row(&results[m], kind, &s->maps[m], row, s->keys, seen, total);
}

/* Rows first .. first + count - 1 of every head. */
static int add_rows(const study *s, exposure *results, int64_t first, int64_t count, fault *f)
{
    const problem_spec *p = &s->e->in.spec;
    const int64_t seen = first + count, group = p->heads_q / p->heads_k;
    const double *weights = s->weights;
    const int code = experiment_reference(s->e, first, count, NULL, s->weights, f);
    for (int64_t h = 0; h < p->heads_q && !code; h++)
        for (int64_t i = 0; i < count; i++, weights += seen)
            for (int kind = 0; kind < NUM_IMPORTANCES; kind++)
                rank_row(s, results, (importance)kind, first + i, seen, weights, s->lengths + h / group * p->lk);
    return code;
}

static void measure_values(const study *s)
{
    const problem_spec *p = &s->e->in.spec;
    const tlamp_strides *stride = &s->e->in.problem.v_stride;
    for (int64_t h = 0; h < p->heads_k; h++)
        for (int64_t j = 0; j < p->lk; j++) {
            double squares = 0;
            for (int64_t c = 0; c < p->dv; c++) {
                const double x = tensor_get(s->e->in.tensors.v, p->v_dtype, j * stride->seq + h * stride->head + c);
                squares += x * x;
            }
            s->lengths[h * p->lk + j] = sqrt(squares);
        }
}

static int add_input(exposure *results, const experiment *e, const routed *maps, int num_maps, fault *f)
{
    const problem_spec *p = &e->in.spec;
    study s = {.e = e, .maps = maps, .num_maps = num_maps};
    s.lengths = malloc((size_t)(p->heads_k * p->lk) * sizeof *s.lengths);
    s.weights = malloc((size_t)(p->heads_q * ROWS_AT_ONCE * p->lk) * sizeof *s.weights);
    s.keys = malloc((size_t)p->lk * sizeof *s.keys);
    int code = s.lengths && s.weights && s.keys ? DONE : fault_no_memory(f);
    if (!code) measure_values(&s);
    for (int64_t first = 0; first < p->lq && !code; first += ROWS_AT_ONCE) {
        const int64_t count = p->lq - first < ROWS_AT_ONCE ? p->lq - first : ROWS_AT_ONCE;
        code = add_rows(&s, results, first, count, f);
    }
    free(s.lengths);
    free(s.weights);
    free(s.keys);
    return code;
}

static void policy_text(char text[32], int policy)
{
    (void)snprintf(text, 32, "%s:%.2f", layouts[policy / 3], 0.25 * (policy % 3 + 1));
}

/* Opens one input, builds its maps, and adds it to the results of all policies. */
static int measure(exposure *results, const options *o, int source, int variant, fault *f)
{
    experiment e;
    routed *maps = calloc(MAX_POLICIES, sizeof *maps);
    if (!maps) return fault_no_memory(f);
    int code = tables_open(&e, o, source, tables_random_length(o), variant, f), built = 0;
    for (; built < 3 * NUM_NAMES && !code; built++) {
        char text[32];
        policy_text(text, built);
        code = experiment_map(&e, text, tables_map_seed(text, variant), &maps[built].spec, &maps[built].map, f);
    }
    if (!code) code = add_input(results, &e, maps, built, f);
    for (int m = 0; m < built; m++) routing_free(&maps[m].map);
    if (built > 0) experiment_close(&e);
    free(maps);
    return code;
}

static void fill(grid *g, const exposure *results)
{
    static const char *const names[] = {"paper", "P", "P len(v)"};
    for (int c = 0; c < 3 * NUM_TAUS; c++)
        grid_column(g, GRID_FIXED, "%s %.0f", c % NUM_TAUS ? "" : names[c / NUM_TAUS], 100 * taus[c % NUM_TAUS]);
    for (int p = 0; p < 3 * NUM_NAMES; p++) {
        char text[32];
        policy_text(text, p);
        double *cells = grid_row(g, "%s", text);
        for (int t = 0; t < NUM_TAUS; t++) {
            if (p < 3) cells[t] = 100 * paper[p][t];
            for (int kind = 0; kind < NUM_IMPORTANCES; kind++)
                cells[(1 + kind) * NUM_TAUS + t] = 100 * results[p].int8[kind][t] / results[p].all[kind][t];
        }
    }
}

static int one_source(const options *o, int source, fault *f)
{
    exposure results[3 * NUM_NAMES];
    memset(results, 0, sizeof results);
    int code = DONE;
    for (int variant = 1; variant <= (source == RANDOM ? o->seeds : 1) && !code; variant++)
        code = measure(results, o, source, variant, f);
    if (code) return code;
    grid g;
    grid_init(&g, "policy", "Table 23: share of the heavy hitters in INT8, in %%, %s",
              tables_source_name(o, source).text);
    fill(&g, results);
    grid_note(
        &g,
        "Columns: tau = 5, 10, 20, 30 %%. Importance in the paper is |P dL/dP| of a language model; here there is no "
        "loss, and it is the weight P, or P times the length of the value vector.");
    if (source == RANDOM)
        grid_note(&g, "Random: N(0,1) in f16, one causal head, %lld tokens, d = %d, %d seeds.",
                  (long long)tables_random_length(o), RANDOM_DIM, o->seeds);
    return tables_publish(o, &g, f);
}

int table_23(const options *o, fault *f)
{
    int code = DONE;
    for (int source = 0; source <= o->num_files && !code; source++) code = one_source(o, source, f);
    return code;
}
