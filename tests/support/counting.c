#include "counting.h"

#include <stdlib.h>
#include <string.h>

/* What one routing row's words say. */
typedef struct routing_row {
    const uint64_t *words; /* NULL: every group as `all` */
    bool all;
    int64_t group_keys;
} routing_row;

static bool is_int8(const routing_row *r, int64_t key)
{
    const int64_t group = key / r->group_keys;
    return r->words ? r->words[group / 64] >> (group % 64) & 1 : r->all;
}

static int64_t group_of(const trial *t, int64_t b)
{
    const int32_t block_n = t->policy.policy.block_n;
    return t->groups ? t->groups[b] : tlamp_auto_group(problem_length_k(&t->in.spec, b), block_n);
}

/* Routing rows of the sequences before b. */
static int64_t rows_before(const trial *t, int64_t b)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < b; i++)
        rows += (problem_length_q(&t->in.spec, i) + t->policy.policy.block_m - 1) / t->policy.policy.block_m;
    return rows;
}

static routing_row routing_row_of(const trial *t, int64_t b, int64_t m)
{
    routing_row r = {NULL, t->policy.policy.kind == TLAMP_POLICY_INT8, group_of(t, b) * t->policy.policy.block_n};
    if (t->words) r.words = t->words + (rows_before(t, b) + m) * t->in.problem.words_per_row;
    return r;
}

/* One query head's part of one routing row: cells, and which keys are seen at all. */
static void count_cells(const trial *t, int64_t b, int64_t m, const routing_row *r, char *seen, tlamp_counters *n)
{
    const int64_t block_m = t->policy.policy.block_m, lq = problem_length_q(&t->in.spec, b);
    for (int64_t i = m * block_m; i < lq && i < (m + 1) * block_m; i++) {
        int64_t begin, end;
        problem_visible_keys(&t->in.spec, b, i, &begin, &end);
        for (int64_t j = begin; j < end; j++) {
            seen[j] = 1;
            n->cells++;
            n->cells_int8 += is_int8(r, j);
        }
    }
}

/* Blocks of `size` keys of which one is seen. */
static void count_blocks(const char *seen, int64_t lk, int64_t size, const routing_row *r, int64_t *all, int64_t *int8)
{
    for (int64_t first = 0; first < lk; first += size) {
        const int64_t length = lk - first < size ? lk - first : size;
        if (!memchr(seen + first, 1, (size_t)length)) continue;
        *all += 1;
        *int8 += is_int8(r, first);
    }
}

static void count_routing_row(const trial *t, int64_t b, int64_t m, tlamp_counters *n)
{
    const problem_spec *s = &t->in.spec;
    const int64_t lk = problem_used_k(s, b);
    const routing_row r = routing_row_of(t, b, m);
    char *seen = new_zeros((size_t)lk, 1);
    tlamp_counters one = {0};
    count_cells(t, b, m, &r, seen, &one);
    count_blocks(seen, lk, t->policy.policy.block_n, &r, &one.tiles, &one.tiles_int8);
    count_blocks(seen, lk, r.group_keys, &r, &one.groups, &one.groups_int8);
    free(seen);
    n->cells += one.cells * s->heads_q;
    n->cells_int8 += one.cells_int8 * s->heads_q;
    n->tiles += one.tiles * s->heads_q;
    n->tiles_int8 += one.tiles_int8 * s->heads_q;
    n->groups += one.groups * s->heads_k;
    n->groups_int8 += one.groups_int8 * s->heads_k;
}

tlamp_counters count_by_hand(const trial *t)
{
    tlamp_counters n = {.struct_size = sizeof n};
    for (int64_t b = 0; b < t->in.spec.batch; b++)
        for (int64_t m = 0; m * t->policy.policy.block_m < problem_length_q(&t->in.spec, b); m++)
            count_routing_row(t, b, m, &n);
    return n;
}
