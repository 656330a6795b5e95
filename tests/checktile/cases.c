#define _GNU_SOURCE /* open_memstream */
#include "cases.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/guard.h"

/* ------------------------------------------------------------------------------------------------ axes */

/* What a case is made of: one value of each axis, most of them the text of a token. The first value is the plain one. */
enum {
    LQ,
    LK,
    D,
    DV,
    HEADS,
    MASK,
    WINDOW,
    PATTERN,
    USED,
    SOFTCAP,
    SINKS,
    ALIBI,
    BIAS,
    SCALE,
    BATCH,
    LAYOUT,
    PAD,
    SPLITS,
    DTYPE,
    OUT,
    DATA,
    POLICY,
    TILE,
    MODIFIER,
    VARIANT,
    NUM_AXES
};
enum { MOST_VALUES = 16 };

typedef struct axis {
    int count;
    const char *values[MOST_VALUES];
    bool mostly_plain; /* half of the random cases take the plain value, so that features also run alone */
} axis;

/* In a window, @ is the last key. USED and BATCH choose lengths: see print_lengths. */
static const axis axes[NUM_AXES] = {
    [LQ] = {11, {"65", "0", "1", "2", "3", "5", "8", "33", "64", "129", "200"}, false},
    [LK] = {10, {"65", "0", "1", "2", "31", "32", "33", "129", "257", "700"}, false},
    [D] = {13, {"64", "1", "5", "8", "16", "33", "40", "72", "80", "96", "128", "200", "256"}, false},
    [DV] = {5, {"", " dv1", " dv40", " dv72", " dv128"}, true},
    [HEADS] = {8, {"hq1 hk1", "hq6 hk2", "hq8 hk1", "hq9 hk3", "hq4 hk2", "hq4 hk1", "hq7 hk1", "hq16 hk1"}, false},
    [MASK] = {3, {"", " causal", " causal-tl"}, false},
    [WINDOW] = {7,
                {"", " window:0,0", " window:2,0", " window:9,0", " window:@,0", " window:32,64", " window:-1,3"},
                true},
    [PATTERN] = {5, {"", " mask:random", " mask:rowempty", " mask:padding", " mask:block"}, true},
    [USED] = {3, {"all", "part", "none"}, true},
    [SOFTCAP] = {3, {"", " softcap:50", " softcap:1"}, true},
    [SINKS] = {4, {"", " sinks:0.5", " sinks:100", " sinks:-inf"}, true},
    [ALIBI] = {2, {"", " alibi"}, true},
    [BIAS] = {4, {"", " bias:f32", " bias:f16", " bias:bf16"}, true},
    [SCALE] = {4, {"", " scale:1", " scale:0.03", " scale:3"}, true},
    [BATCH] = {3, {"1", "2", "3"}, true},
    [LAYOUT] = {5, {"bshd", "bhsd", "thd", "fused", "packed fused"}, false},
    [PAD] = {3, {"", " pad:1", " pad:5"}, true},
    [SPLITS] = {5, {"", " splits:2", " splits:3", " splits:7", " splits:auto"}, true},
    [DTYPE] = {5, {" f32", " f16", " bf16", " f16/bf16/f32", " bf16/f32/f16"}, false},
    [OUT] = {4, {"", " out:f32", " out:f16", " out:bf16"}, true},
    [DATA] = {12,
              {"normal", "qknorm", "outlier", "onehot", "ramp", "zeros", "minus5", "pm127", "bigchannel", "spread",
               "subnormal", "nanhidden"},
              true},
    [POLICY] = {15,
                {"high", "int8", "zero", "one", "band:0.5", "global:0.25", "row_rand:0.5", "align_sparse:0.5",
                 "bigbird:0.5", "sptrans:0.25", "sptrans_scaled:0.5", "band:0.5 retarget=3", "row_rand:0.75 g=1",
                 "row_rand:0.5 g=2", "x3"},
                false},
    [TILE] = {6, {"", " tile=64x64", " tile=128x128", " tile=32x32", " tile=16x16", " tile=256x192"}, false},
    [VARIANT] = {6, {"", " quant=fly", " state=fp16", " pv=int8", " pv=bf16", " pv=f32"}, true},
    [MODIFIER] = {8,
                  {"", " scales=token", " scales=f16", " smooth-k", " smooth-k scales=token", " smooth-k scales=f16",
                   " hadamard", " smooth-k scales=token hadamard"},
                  false},
};

typedef struct choice {
    int at[NUM_AXES];
} choice;

static const char *value(const choice *c, int which) { return axes[which].values[c->at[which]]; }
static int number(const choice *c, int which) { return atoi(value(c, which)); }
static bool is(const choice *c, int which, const char *text) { return strcmp(value(c, which), text) == 0; }

/* ------------------------------------------------------------------------------------------------ strings */

static bool is_fused(const choice *c) { return strstr(value(c, LAYOUT), "fused"); }
static bool is_packed(const choice *c) { return is(c, LAYOUT, "thd") || is(c, LAYOUT, "packed fused"); }

/* Lengths of sequence b of a packed batch: different ones, and empty ones among three. */
static int length_q(const choice *c, int b)
{
    const int lq = number(c, LQ);
    if (!is_packed(c)) return lq;
    return b == 0 ? lq : b == 1 && number(c, BATCH) == 3 ? 0 : lq / 2;
}

static int length_k(const choice *c, int b)
{
    const int lk = number(c, LK), batch = number(c, BATCH);
    if (is_fused(c)) return length_q(c, b);
    if (!is_packed(c)) return lk;
    return b == batch - 1 ? lk / 2 + (batch == 1) * (lk - lk / 2) : b == 0 ? lk / 3 : lk;
}

static int used_k(const choice *c, int b)
{
    const int lk = length_k(c, b);
    if (is(c, USED, "part")) return lk - (lk + 2) / 3;
    return b % 2 ? lk : 0;
}

static void print_list(FILE *out, const choice *c, int (*length)(const choice *, int))
{
    for (int b = 0; b < number(c, BATCH); b++) fprintf(out, "%s%d", b ? "," : "", length(c, b));
}

static void print_lengths(FILE *out, const choice *c)
{
    if (is_packed(c)) {
        fprintf(out, " varlen:");
        print_list(out, c, length_q);
        fprintf(out, "/");
        print_list(out, c, length_k);
    } else {
        fprintf(out, " b%d q%d k%d", number(c, BATCH), length_q(c, 0), length_k(c, 0));
    }
    if (is(c, USED, "all")) return;
    fprintf(out, " used:");
    print_list(out, c, used_k);
}

static void print_window(FILE *out, const choice *c)
{
    const char *text = value(c, WINDOW), *last = strchr(text, '@');
    const int lk = number(c, LK);
    if (last)
        fprintf(out, "%.*s%d%s", (int)(last - text), text, lk ? lk - 1 : 0, last + 1);
    else
        fputs(text, out);
}

static char *problem_of(const choice *c, uint64_t seed)
{
    static const int tokens[] = {DTYPE, OUT, MASK, PATTERN, SOFTCAP, SINKS, ALIBI, BIAS, SCALE, PAD, SPLITS};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) abort();
    fputs(value(c, HEADS), out);
    print_lengths(out, c);
    fprintf(out, " d%s%s", value(c, D), value(c, DV));
    print_window(out, c);
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) fputs(value(c, tokens[i]), out);
    fprintf(out, " layout:%s data:%s seed:%llu", is_fused(c) ? "fused" : value(c, LAYOUT), value(c, DATA),
            (unsigned long long)seed);
    if (fclose(out)) abort();
    return text;
}

/* Only where the rotation exists. */
static bool is_power_of_two(int x) { return (x & (x - 1)) == 0; }

static char *policy_of(const choice *c)
{
    const char *modifier = value(c, MODIFIER);
    const int length = (int)strlen(modifier), rotation = (int)strlen(" hadamard");
    const bool rotates = length >= rotation && strcmp(modifier + length - rotation, " hadamard") == 0;
    const int kept = rotates && !is_power_of_two(number(c, D)) ? length - rotation : length;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) abort();
    fprintf(out, "%s%s%.*s%s", value(c, POLICY), value(c, TILE), kept, modifier, value(c, VARIANT));
    if (fclose(out)) abort();
    return text;
}

static void append(case_list *list, char *problem, char *policy)
{
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 256;
        list->cases = realloc(list->cases, list->room * sizeof *list->cases);
        if (!list->cases) abort();
    }
    list->cases[list->count++] = (tile_case){problem, policy};
}

void cases_free(case_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->cases[i].problem);
        free(list->cases[i].policy);
    }
    free(list->cases);
    *list = (case_list){NULL, 0, 0};
}

/* ------------------------------------------------------------------------------------------------ choices */

/* SplitMix64. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int below(uint64_t *state, int n) { return (int)(next_random(state) % (uint64_t)n); }

static double work_of(const choice *c)
{
    static const int heads[] = {1, 6, 8, 9, 4, 4, 7, 16};
    const double rows = (double)number(c, LQ) * number(c, BATCH) * heads[c->at[HEADS]];
    const int dv = *value(c, DV) ? atoi(value(c, DV) + 3) : number(c, D);
    return rows * (is_fused(c) ? number(c, LQ) : number(c, LK)) * (number(c, D) + dv);
}

/* Fused buffers need equal lengths, dimensions and types of q, k and v; large cases lose sequences, heads, columns, rows. */
static void repair(choice *c, double max_work)
{
    static const int order[] = {BATCH, HEADS, DV, D, LQ, LK};
    if (is_fused(c)) {
        c->at[DV] = 0;
        if (c->at[DTYPE] > 2) c->at[DTYPE] = 0;
        for (int i = 0; i < axes[LK].count; i++)
            if (strcmp(axes[LK].values[i], value(c, LQ)) == 0) c->at[LK] = i;
        if (number(c, LK) != number(c, LQ)) c->at[LQ] = c->at[LK] = 0;
    }
    for (int i = 0; i < 6 && work_of(c) > max_work; i++) c->at[order[i]] = 0;
}

static choice random_choice(uint64_t *state, double max_work)
{
    choice c;
    for (int a = 0; a < NUM_AXES; a++)
        c.at[a] = axes[a].mostly_plain && below(state, 2) ? 0 : below(state, axes[a].count);
    repair(&c, max_work);
    return c;
}

/* ------------------------------------------------------------------------------------------------ pairs */

typedef struct coverage {
    bool met[NUM_AXES][NUM_AXES][MOST_VALUES][MOST_VALUES];
} coverage;

static void mark(coverage *seen, const choice *c)
{
    for (int a = 0; a < NUM_AXES; a++)
        for (int b = a + 1; b < NUM_AXES; b++) seen->met[a][b][c->at[a]][c->at[b]] = true;
}

static void add(case_list *list, coverage *seen, const choice *c)
{
    mark(seen, c);
    append(list, problem_of(c, list->count), policy_of(c));
}

/* Adds a case where value x of axis a meets value y of axis b, if repairs allow one. */
static void add_pair(case_list *list, coverage *seen, int a, int x, int b, int y, uint64_t *state, double max_work)
{
    for (int tries = 0; tries < 30 && !seen->met[a][b][x][y]; tries++) {
        choice c = random_choice(state, max_work);
        c.at[a] = x;
        c.at[b] = y;
        repair(&c, max_work);
        if (c.at[a] == x && c.at[b] == y) add(list, seen, &c);
    }
}

static void add_missing_pairs(case_list *list, coverage *seen, uint64_t *state, double max_work)
{
    for (int a = 0; a < NUM_AXES; a++)
        for (int b = a + 1; b < NUM_AXES; b++)
            for (int x = 0; x < axes[a].count; x++)
                for (int y = 0; y < axes[b].count; y++) add_pair(list, seen, a, x, b, y, state, max_work);
}

/* ------------------------------------------------------------------------------------------------ lists */

/* What the axes do not reach: several routing words per row, several scale blocks, many sequences, large groups. */
static const char *const handpicked[][2] = {
    {"q33 k2100 d16", "row_rand:0.5 tile=16x16 g=1"},
    {"hq6 hk2 q40 k1300 d8 causal window:700,0", "row_rand:0.5 tile=16x16 g=1 smooth-k"},
    {"hq2 hk1 varlen:20,33,0/1100,70,1030 d16 f16", "row_rand:0.5 tile=16x16 g=1"},
    {"b2 q20 k1200 d8 used:1200,40 causal", "row_rand:0.5 tile=16x16 g=1"},
    {"q20 k4200 d8", "band:0.5"},
    {"q300 k300 d16 f16 causal", "int8"},
    {"hq2 hk1 q520 k520 d8 causal", "band:0.5"},
    {"hq2 hk1 q520 k520 d8 window:100,50", "bigbird:0.5 tile=256x64"},
    {"q300 k700 d8 causal data:outlier", "int8 smooth-k tile=64x16"},
    {"hq4 hk4 q1 k1000 d64 bf16 causal", "int8"},
    {"hq32 hk8 q1 k513 d64 f16", "global:0.5"},
    {"hq16 hk1 q7 k300 d64 f16 causal", "int8"},
    {"b40 hq2 hk1 q3 k5 d8", "int8"},
    {"varlen:1,2,3,4,5,6,7,8,9,10,64,65/10,9,8,7,6,5,4,3,2,1,65,64 d8 causal", "int8 scales=token"},
    {"q3 k3 d1024 dv3", "int8"},
    {"q20 k70 d512 dv3 data:pm127", "x3"},
    {"q3 k3 d523 dv3 data:pm127", "x3"},
    {"q40 k130 d64 data:bigchannel", "x3 pv=int8"},
    {"hq4 hk2 q1 k513 d128 f16 causal", "x3"},
    {"hq2 hk1 q200 k300 d64 causal data:outlier", "band:0.5 scales=token smooth-k hadamard"},
    {"q3 k70 d3 dv1000", "high"},
    {"hq4 hk2 q257 k600 d128 bf16 causal", "high"},
    {"hq4 hk2 q257 k600 d128 bf16", "int8 pv=bf16"},
    {"q130 k300 d33 dv40 bf16 window:100,20", "high pv=bf16 tile=16x16"},
    /* references that move in later spans */
    {"hq2 hk1 q70 k1400 d64 bf16 scale:3", "high pv=bf16"},
    {"hq2 hk1 q70 k1400 d64 f32 scale:3", "int8 pv=f32"},
    {"hq2 hk1 q70 k1400 d64 f16 scale:3", "band:0.5 pv=bf16"},
    {"hq2 hk1 q70 k130 d64 f16 causal", "lamp:fmt=e4m3/e4m11"},
    {"hq2 hk1 q33 k65 d40 window:20,5 mask:rowempty", "lamp:fmt=e4m3/e4m11,delta=off"},
};

static void add_handpicked(case_list *list)
{
    for (size_t i = 0; i < sizeof handpicked / sizeof handpicked[0]; i++) {
        char *problem = strdup(handpicked[i][0]), *policy = strdup(handpicked[i][1]);
        if (!problem || !policy) abort();
        append(list, problem, policy);
    }
}

void cases_sweep(case_list *list, size_t random, uint64_t seed, double max_work)
{
    coverage *seen = new_zeros(1, sizeof *seen);
    uint64_t state = seed;
    add_handpicked(list);
    for (size_t i = 0; i < random; i++) {
        const choice c = random_choice(&state, max_work);
        add(list, seen, &c);
    }
    add_missing_pairs(list, seen, &state, max_work);
    free(seen);
}

void cases_random(case_list *list, size_t count, uint64_t seed, double max_work)
{
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        const choice c = random_choice(&state, max_work);
        append(list, problem_of(&c, next_random(&state) >> 32), policy_of(&c));
    }
}
