/* Routing layouts (ALGORITHMS A3-A5). What the library computes in closed form is here counted cell by cell, with a
 * mask written from the header's text and not from core/mask.h. */
#include "core/layout.h"
#include "core/random.h"
#include "policy/coverage.h"
#include "support/geometry.h"
#include "tilelamp/tilelamp.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined __SANITIZE_ADDRESS__ || defined __clang__
/* So that malloc fails under the address sanitizer as it does without. */
const char *__asan_default_options(void);
__attribute__((used, visibility("default"))) const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#endif

enum { NUM_LAYOUTS = TLAMP_LAYOUT_SPTRANS_SCALED + 1, MAX_ROWS = 16, MAX_GROUPS = 256, MAX_WORDS = MAX_GROUPS / 64 };

/* ---------------------------------------------------------------------------------------------- building */

static tlamp_geometry causal(int64_t length, int32_t block_m)
{
    return geometry(length, length, block_m, 64, 0, TLAMP_MASK_CAUSAL);
}

static tlamp_layout layout(tlamp_layout_kind kind, double coverage)
{
    tlamp_layout l;
    tlamp_layout_init(&l, sizeof l);
    l.kind = kind;
    l.coverage = coverage;
    return l;
}

typedef struct {
    tlamp_layout_report report;
    uint64_t *words; /* report.rows * report.words_per_row, then one canary */
} built;

static const uint64_t canary = 0x5ca1ab1ec0ffee00u;

static built build_layout(tlamp_layout l, const tlamp_geometry *g)
{
    built b = {.report = {.struct_size = sizeof b.report}};
    tlamp_error err = {.struct_size = sizeof err};
    const int64_t count = tlamp_layout_words(g);
    cr_assert(count >= 0);
    b.words = malloc(((size_t)count + 1) * sizeof *b.words);
    cr_assert(b.words);
    memset(b.words, 0xa5, (size_t)count * sizeof *b.words);
    b.words[count] = canary;
    const tlamp_status status = tlamp_layout_build(&l, g, b.words, count, &b.report, &err);
    cr_assert(status == TLAMP_OK, "%s %s: %s", tlamp_layout_name(l.kind), err.field, err.text);
    cr_assert(b.report.rows * b.report.words_per_row == count);
    cr_assert(b.words[count] == canary, "wrote behind the map");
    return b;
}

static built build(tlamp_layout_kind kind, double coverage, const tlamp_geometry *g)
{
    return build_layout(layout(kind, coverage), g);
}

static int bit(const built *b, int64_t m, int64_t g)
{
    return (int)(b->words[m * b->report.words_per_row + g / 64] >> (g % 64) & 1);
}

static int64_t num_words(const built *b) { return b->report.rows * b->report.words_per_row; }

static int same_words(const built *a, const built *b)
{
    return num_words(a) == num_words(b) &&
           (num_words(a) == 0 || memcmp(a->words, b->words, (size_t)num_words(a) * sizeof *a->words) == 0);
}

/* ---------------------------------------------------------------------------------------------- random cases */

static uint32_t lcg = 1;

static int64_t pick(int64_t n) /* 0 .. n-1 */
{
    lcg = lcg * 1664525u + 1013904223u;
    return (int64_t)(lcg >> 8) % n;
}

static tlamp_geometry random_geometry(void)
{
    static const int32_t blocks_m[] = {16, 32, 64, 128}, blocks_n[] = {16, 32, 64};
    static const int64_t windows[] = {-1, -1, -1, 0, 3, 17, 40, 100};
    tlamp_geometry g = geometry(pick(221), pick(221), blocks_m[pick(4)], blocks_n[pick(3)], (int32_t)pick(4),
                                (tlamp_mask_kind)pick(3));
    if (pick(3) == 0) g.seqlen_k = g.seqlen_q;
    g.window_left = windows[pick(8)];
    g.window_right = windows[pick(8)];
    return g;
}

static const char *show(const tlamp_geometry *g)
{
    static char text[160];
    (void)snprintf(text, sizeof text, "lq %lld lk %lld tile %dx%d group %d mask %d window %lld,%lld",
                   (long long)g->seqlen_q, (long long)g->seqlen_k, (int)g->block_m, (int)g->block_n, (int)g->group,
                   (int)g->mask, (long long)g->window_left, (long long)g->window_right);
    return text;
}

/* ---------------------------------------------------------------------------------------------- counting by hand */

static int64_t diagonal(const tlamp_geometry *g)
{
    return g->mask == TLAMP_MASK_CAUSAL_TOP_LEFT ? 0 : g->seqlen_k - g->seqlen_q;
}

static int visible(const tlamp_geometry *g, int64_t i, int64_t j)
{
    const int64_t d = diagonal(g);
    if (g->mask == TLAMP_MASK_CAUSAL && j > i + g->seqlen_k - g->seqlen_q) return 0;
    if (g->mask == TLAMP_MASK_CAUSAL_TOP_LEFT && j > i) return 0;
    if (g->window_left >= 0 && j < i + d - g->window_left) return 0;
    if (g->window_right >= 0 && j > i + d + g->window_right) return 0;
    return 1;
}

/* A geometry, cell by cell. */
typedef struct {
    int64_t rows, groups, keys_per_group, group;
    int64_t cells[MAX_ROWS][MAX_GROUPS], tiles[MAX_ROWS][MAX_GROUPS]; /* legal ones; a group is legal if cells > 0 */
    int64_t first[MAX_ROWS], n[MAX_ROWS];                             /* of the legal groups */
    int64_t legal;                                                    /* groups of the whole map */
} census;

static census count_cells(const tlamp_geometry *g, int64_t group)
{
    census c = {.group = group, .keys_per_group = group * g->block_n};
    c.rows = (g->seqlen_q + g->block_m - 1) / g->block_m;
    c.groups = (g->seqlen_k + c.keys_per_group - 1) / c.keys_per_group;
    cr_assert(c.rows <= MAX_ROWS && c.groups <= MAX_GROUPS);
    for (int64_t m = 0; m < c.rows; m++) {
        for (int64_t tile = 0; tile * g->block_n < g->seqlen_k; tile++) {
            int64_t cells = 0;
            for (int64_t i = m * g->block_m; i < (m + 1) * g->block_m && i < g->seqlen_q; i++)
                for (int64_t j = tile * g->block_n; j < (tile + 1) * g->block_n && j < g->seqlen_k; j++)
                    cells += visible(g, i, j);
            c.cells[m][tile / group] += cells;
            c.tiles[m][tile / group] += cells > 0;
        }
        for (int64_t j = c.groups - 1; j >= 0; j--)
            if (c.cells[m][j]) {
                c.n[m]++;
                c.first[m] = j;
            }
        c.legal += c.n[m];
    }
    return c;
}

/* Parameters of a layout, in the units of the report. */
typedef struct {
    int64_t width, width2; /* w; n_g; s and c in tokens */
    int64_t alpha, beta_step;
} parameters;

static int64_t floor_div(int64_t a, int64_t b) { return (int64_t)floor((double)a / (double)b); }

/* Is token x in K_p (A5)? */
static int in_pattern(int64_t p, int64_t x, int64_t s, int64_t c)
{
    if (p < 0) return 0;
    const int64_t u = p / s;
    if (u * s <= x && x <= p) return 1;
    for (int64_t r = 0; r < u; r++) {
        const int64_t begin = r * s > (r + 1) * s - c ? r * s : (r + 1) * s - c;
        if (begin <= x && x <= (r + 1) * s - 1) return 1;
    }
    return 0;
}

static int pattern_meets(const tlamp_geometry *g, const census *c, int64_t m, int64_t j, parameters p)
{
    const int64_t origin = c->first[m] * c->keys_per_group; /* the legal groups are taken for a prefix */
    for (int64_t i = m * g->block_m; i < (m + 1) * g->block_m && i < g->seqlen_q; i++)
        for (int64_t x = j * c->keys_per_group; x < (j + 1) * c->keys_per_group && x < g->seqlen_k; x++)
            if (i + diagonal(g) >= 0 && in_pattern(i + diagonal(g) - origin, x - origin, p.width, p.width2)) return 1;
    return 0;
}

/* Is legal group j of row m in F_m, from the table of A5? */
static int is_high(tlamp_layout_kind kind, const tlamp_geometry *g, const census *c, int64_t m, int64_t j, parameters p)
{
    const int64_t gamma = floor_div(m * g->block_m + diagonal(g), c->keys_per_group);
    int64_t a = p.alpha;
    switch (kind) {
    case TLAMP_LAYOUT_ONE: return 0;
    case TLAMP_LAYOUT_ZERO: return 1;
    case TLAMP_LAYOUT_BAND: return llabs(j - gamma) <= p.width;
    case TLAMP_LAYOUT_GLOBAL: return j < p.width;
    case TLAMP_LAYOUT_ALIGN_SPARSE: /* the least a >= alpha + beta m, beta = step * 2 BLOCK_M / (1024 W) */
        while ((a - p.alpha) * 1024 * c->keys_per_group < p.beta_step * 2 * g->block_m * m) a++;
        return j - c->first[m] >= c->n[m] - a;
    case TLAMP_LAYOUT_SPTRANS:
    case TLAMP_LAYOUT_SPTRANS_SCALED: return pattern_meets(g, c, m, j, p);
    default: cr_assert_fail("no rule"); return 0;
    }
}

static int64_t count_high(tlamp_layout_kind kind, const tlamp_geometry *g, const census *c, parameters p)
{
    int64_t high = 0;
    for (int64_t m = 0; m < c->rows; m++)
        for (int64_t j = 0; j < c->groups; j++) high += c->cells[m][j] > 0 && is_high(kind, g, c, m, j, p);
    return high;
}

static void check_map(const built *b, tlamp_layout_kind kind, const tlamp_geometry *g, const census *c, parameters p)
{
    for (int64_t m = 0; m < c->rows; m++)
        for (int64_t j = 0; j < b->report.words_per_row * 64; j++) {
            const int expected = j < c->groups && c->cells[m][j] > 0 && !is_high(kind, g, c, m, j, p);
            cr_assert(bit(b, m, j) == expected, "%s: row %lld group %lld of %s", tlamp_layout_name(kind), (long long)m,
                      (long long)j, show(g));
        }
}

static double share(int64_t part, int64_t all) { return all ? (double)part / (double)all : 0; }

static void check_coverages(const uint64_t *words, const tlamp_layout_report *r, const census *c,
                            const tlamp_geometry *g)
{
    int64_t groups = 0, tiles = 0, cells = 0, all_tiles = 0, all_cells = 0;
    for (int64_t m = 0; m < c->rows; m++)
        for (int64_t j = 0; j < c->groups; j++) {
            const int int8 = words[m * r->words_per_row + j / 64] >> (j % 64) & 1 && c->cells[m][j] > 0;
            groups += int8;
            tiles += int8 ? c->tiles[m][j] : 0;
            cells += int8 ? c->cells[m][j] : 0;
            all_tiles += c->tiles[m][j];
            all_cells += c->cells[m][j];
        }
    cr_assert(r->rows == c->rows && r->groups == c->groups && r->group == c->group, "%s", show(g));
    cr_assert(r->coverage_group == share(groups, c->legal), "group coverage of %s", show(g));
    cr_assert(r->coverage_tile == share(tiles, all_tiles), "tile coverage of %s", show(g));
    cr_assert(r->coverage_cell == share(cells, all_cells), "cell coverage of %s", show(g));
}

/* ---------------------------------------------------------------------------------------------- names and groups */

Test(layout, names)
{
    static const char *const names[] = {"one",          "zero",    "band",    "global",        "row_rand",
                                        "align_sparse", "bigbird", "sptrans", "sptrans_scaled"};
    for (int kind = 0; kind < NUM_LAYOUTS; kind++) cr_assert_str_eq(tlamp_layout_name(kind), names[kind]);
    cr_assert_null(tlamp_layout_name(-1));
    cr_assert_null(tlamp_layout_name(NUM_LAYOUTS));
}

Test(layout, automatic_group_examples)
{
    static const struct {
        int64_t length;
        int32_t group;
        int64_t groups;
    } examples[] = {{0, 1, 0}, {1, 1, 1}, {4096, 1, 64}, {4097, 2, 33}, {8192, 2, 64}, {65536, 16, 64}};
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        cr_assert(tlamp_auto_group(examples[i].length, 64) == examples[i].group, "%lld", (long long)examples[i].length);
        const tlamp_geometry g = causal(examples[i].length, 128);
        built b = build(TLAMP_LAYOUT_ONE, 1, &g);
        cr_assert(b.report.group == examples[i].group && b.report.groups == examples[i].groups);
        cr_assert(b.report.words_per_row == 1);
        free(b.words);
    }
    cr_assert(tlamp_auto_group((int64_t)1 << 40, 16) == 1 << 30);
    cr_assert(tlamp_auto_group(-1, 64) == -1);
    cr_assert(tlamp_auto_group(64, 0) == -1 && tlamp_auto_group(64, 48) == -1);
    cr_assert(tlamp_auto_group(((int64_t)1 << 40) + 1, 64) == -1);
}

Test(layout, automatic_group_is_the_least_multiple_of_block_n)
{
    for (int64_t length = 0; length < 20000; length += 37)
        for (int32_t block_n = 16; block_n <= 256; block_n *= 2) {
            int64_t width = block_n; /* A3: the least multiple of block_n that is at least ceil(length / 64) */
            while (width * 64 < length) width += block_n;
            cr_assert(tlamp_auto_group(length, block_n) == width / block_n);
        }
}

Test(layout, default_blocks)
{
    const tlamp_geometry zeros = geometry(1000, 5000, 0, 0, 0, TLAMP_MASK_CAUSAL);
    const tlamp_geometry named = geometry(1000, 5000, 128, 64, 2, TLAMP_MASK_CAUSAL);
    cr_assert(tlamp_layout_words(&zeros) == 8);
    built a = build(TLAMP_LAYOUT_BAND, .3, &zeros), b = build(TLAMP_LAYOUT_BAND, .3, &named);
    cr_assert(same_words(&a, &b));
    free(a.words);
    free(b.words);
}

/* ---------------------------------------------------------------------------------------------- random streams */

Test(random, mt19937_known_value)
{
    tl_random random;
    tl_random_seed(&random, 5489);
    uint32_t last = 0;
    for (int i = 0; i < 10000; i++) last = tl_random_next(&random);
    cr_assert(last == 4123659995u); /* the value the C++ standard states for mt19937 */
}

Test(random, permutation_check_value)
{
    static const int64_t expected[10] = {2, 6, 1, 8, 4, 5, 0, 9, 3, 7};
    int64_t items[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    tl_random random;
    tl_random_seed(&random, 42);
    for (int64_t i = 0; i < 10; i++) cr_assert(tl_random_step(&random, items, 10, i) == expected[i]);
    cr_assert(memcmp(items, expected, sizeof items) == 0);
}

Test(random, last_item_needs_no_draw)
{
    int64_t items[3] = {0, 1, 2};
    tl_random a, b;
    tl_random_seed(&a, 7);
    tl_random_seed(&b, 7);
    for (int64_t i = 0; i < 3; i++) (void)tl_random_step(&a, items, 3, i);
    (void)tl_random_next(&b);
    (void)tl_random_next(&b);
    cr_assert(tl_random_next(&a) == tl_random_next(&b));
}

/* ---------------------------------------------------------------------------------------------- published numbers */

Test(layout, sptrans_test_vector)
{
    static const struct {
        double coverage;
        uint64_t words[4];
        double tile, cell;
    } vectors[] = {
        {.25, {0x0, 0x2, 0x0, 0x1}, .20, .1877},
        {.50, {0x0, 0x3, 0x2, 0x5}, .50, .5613},
        {.75, {0x1, 0x3, 0x6, 0xd}, .80, .7510},
        {1.0, {0x1, 0x3, 0x7, 0xf}, 1.0, 1.0},
    };
    const tlamp_geometry g = causal(256, 64);
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        built b = build(TLAMP_LAYOUT_SPTRANS, vectors[i].coverage, &g);
        cr_assert(num_words(&b) == 4);
        for (int m = 0; m < 4; m++)
            cr_assert(b.words[m] == vectors[i].words[m], "coverage %g row %d: %llx", vectors[i].coverage, m,
                      (unsigned long long)b.words[m]);
        cr_assert(b.report.width == 64 && b.report.width2 == 16);
        cr_assert(fabs(b.report.coverage_tile - vectors[i].tile) < 1e-12);
        cr_assert(fabs(b.report.coverage_cell - vectors[i].cell) < 5e-5, "%g", b.report.coverage_cell);
        free(b.words);
    }
}

/* The table "Solved parameters". */
static const struct {
    int32_t block_m;
    int64_t length;
    double coverage;
    int64_t band, global;
    double band_coverage;
    double alpha, beta, align_coverage;
} solved[] = {
    {64, 1024, .25, 7, 8, .2647, 0, .7871, .2500},     {64, 1024, .50, 4, 5, .4853, 1, .3652, .5000},
    {64, 1024, .75, 1, 2, .7721, 1, .0781, .7500},     {128, 4096, .25, 31, 33, .2424, 0, 1.5664, .2500},
    {128, 4096, .50, 17, 19, .5009, 1, .9688, .5000},  {128, 4096, .75, 7, 9, .7424, 1, .4375, .7500},
    {128, 16384, .25, 31, 32, .2538, 0, .3760, .2502}, {128, 16384, .50, 18, 19, .4976, 1, .2324, .5000},
    {128, 16384, .75, 8, 9, .7404, 1, .1045, .7498},
};
enum { NUM_SOLVED = sizeof solved / sizeof solved[0] };

Test(layout, solved_parameters)
{
    for (int i = 0; i < NUM_SOLVED; i++) {
        const tlamp_geometry g = causal(solved[i].length, solved[i].block_m);
        built band = build(TLAMP_LAYOUT_BAND, solved[i].coverage, &g);
        cr_assert(band.report.width == solved[i].band);
        cr_assert(fabs(band.report.coverage_group - solved[i].band_coverage) <= 5.1e-5);
        built global = build(TLAMP_LAYOUT_GLOBAL, solved[i].coverage, &g);
        cr_assert(global.report.width == solved[i].global);
        cr_assert(fabs(global.report.coverage_group - solved[i].band_coverage) <= 5.1e-5);
        built align = build(TLAMP_LAYOUT_ALIGN_SPARSE, solved[i].coverage, &g);
        cr_assert(align.report.alpha == solved[i].alpha);
        cr_assert(fabs(align.report.beta - solved[i].beta) <= 5.1e-5, "%g", align.report.beta);
        cr_assert(fabs(align.report.coverage_group - solved[i].align_coverage) <= 5.1e-5);
        free(band.words);
        free(global.words);
        free(align.words);
    }
}

Test(layout, seeded_layouts_meet_the_coverage)
{
    static const tlamp_layout_kind kinds[] = {TLAMP_LAYOUT_ROW_RAND, TLAMP_LAYOUT_BIGBIRD, TLAMP_LAYOUT_SPTRANS};
    for (int i = 0; i < NUM_SOLVED; i++)
        for (int k = 0; k < 3; k++) {
            const tlamp_geometry g = causal(solved[i].length, solved[i].block_m);
            built b = build(kinds[k], solved[i].coverage, &g);
            cr_assert(fabs(b.report.coverage_group - solved[i].coverage) <= 5e-4, "%s %g: %g",
                      tlamp_layout_name(kinds[k]), solved[i].coverage, b.report.coverage_group);
            free(b.words);
        }
}

/* ---------------------------------------------------------------------------------------------- against counting */

Test(layout, legal_groups_and_coverages)
{
    for (int trial = 0; trial < 600; trial++) {
        const tlamp_geometry g = random_geometry();
        built one = build(TLAMP_LAYOUT_ONE, 1, &g), zero = build(TLAMP_LAYOUT_ZERO, 0, &g);
        const census c = count_cells(&g, one.report.group);
        check_map(&one, TLAMP_LAYOUT_ONE, &g, &c, (parameters){0});
        check_map(&zero, TLAMP_LAYOUT_ZERO, &g, &c, (parameters){0});
        check_coverages(one.words, &one.report, &c, &g);
        check_coverages(zero.words, &zero.report, &c, &g);

        /* any words, also in bits that are not legal */
        uint64_t words[MAX_ROWS];
        for (int m = 0; m < MAX_ROWS; m++)
            words[m] = (uint64_t)pick(1 << 24) << 40 ^ (uint64_t)pick(1 << 24) << 20 ^ (uint64_t)pick(1 << 24);
        tlamp_layout_report report = {.struct_size = sizeof report};
        cr_assert(tlamp_layout_measure(&g, words, MAX_ROWS, &report, NULL) == TLAMP_OK);
        check_coverages(words, &report, &c, &g);
        free(one.words);
        free(zero.words);
    }
}

Test(layout, paper_legal_prefix)
{
    for (int trial = 0; trial < 200; trial++) {
        tlamp_geometry g = random_geometry();
        g.mask = TLAMP_MASK_CAUSAL;
        g.window_left = g.window_right = -1;
        built b = build(TLAMP_LAYOUT_ONE, 1, &g);
        const int64_t W = (int64_t)b.report.group * g.block_n, lq = g.seqlen_q, lk = g.seqlen_k;
        for (int64_t m = 0; m < b.report.rows; m++) { /* n_m of A4 */
            const int64_t i_max = ((m + 1) * g.block_m < lq ? (m + 1) * g.block_m : lq) - 1, seen = i_max + lk - lq;
            const int64_t n = seen < 0 || lk == 0 ? 0 : (lk - 1 < seen ? lk - 1 : seen) / W + 1;
            cr_assert(b.words[m] == (n == 0 ? 0 : ~UINT64_C(0) >> (64 - n)), "row %lld of %s", (long long)m, show(&g));
        }
        free(b.words);
    }
}

/* Is a closer to the wanted coverage, sixteenths / 16, than b, or as close and lower? Counts of HIGH groups. */
static int better(const census *c, int64_t a, int64_t b, int64_t sixteenths)
{
    const int64_t da = llabs(16 * (c->legal - a) - sixteenths * c->legal);
    const int64_t db = llabs(16 * (c->legal - b) - sixteenths * c->legal);
    return da < db || (da == db && a > b);
}

static parameters search(tlamp_layout_kind kind, const tlamp_geometry *g, const census *c, int64_t sixteenths)
{
    parameters best = {0}, p = {0};
    int64_t least = -1;
    const int64_t low = kind == TLAMP_LAYOUT_BAND ? -1 : 0;
    for (int64_t w = low; w <= c->groups + 20; w++) { /* 220 rows beyond the keys are 14 groups of 16 */
        p.width = w;
        const int64_t high = count_high(kind, g, c, p);
        if (w == low || better(c, high, least, sixteenths)) {
            best = p;
            least = high;
        }
    }
    return best;
}

Test(layout, band_and_global_are_the_closest)
{
    for (int trial = 0; trial < 200; trial++) {
        const tlamp_geometry g = random_geometry();
        for (int64_t sixteenths = 0; sixteenths <= 16; sixteenths += 1 + pick(4))
            for (tlamp_layout_kind kind = TLAMP_LAYOUT_BAND; kind <= TLAMP_LAYOUT_GLOBAL; kind++) {
                built b = build(kind, (double)sixteenths / 16, &g);
                const census c = count_cells(&g, b.report.group);
                const parameters p = search(kind, &g, &c, sixteenths);
                cr_assert(b.report.width == p.width, "%s %lld/16: %lld, not %lld, of %s", tlamp_layout_name(kind),
                          (long long)sixteenths, (long long)b.report.width, (long long)p.width, show(&g));
                check_map(&b, kind, &g, &c, p);
                check_coverages(b.words, &b.report, &c, &g);
                free(b.words);
            }
    }
}

Test(layout, align_sparse_is_the_closest)
{
    for (int trial = 0; trial < 40; trial++) {
        const tlamp_geometry g = random_geometry();
        const int64_t sixteenths = 1 + pick(15);
        built b = build(TLAMP_LAYOUT_ALIGN_SPARSE, (double)sixteenths / 16, &g);
        const census c = count_cells(&g, b.report.group);
        parameters best = {0};
        int64_t least = -1, distance = INT64_MAX;
        for (int64_t alpha = 1; alpha >= 0; alpha--) {
            parameters own = {0};
            int64_t own_least = -1;
            for (int64_t step = 0; step <= 1024; step++) {
                const parameters p = {.alpha = alpha, .beta_step = step};
                const int64_t high = count_high(TLAMP_LAYOUT_ALIGN_SPARSE, &g, &c, p);
                if (step == 0 || better(&c, high, own_least, sixteenths)) {
                    own = p;
                    own_least = high;
                }
            }
            const int64_t d = llabs(16 * (c.legal - own_least) - sixteenths * c.legal);
            if (d < distance) { /* a tie stays with alpha 1 */
                best = own;
                least = own_least;
                distance = d;
            }
        }
        cr_assert(b.report.alpha == (double)best.alpha, "%s", show(&g));
        cr_assert(b.report.beta == (double)best.beta_step * 2 * g.block_m / (1024 * (double)c.keys_per_group));
        cr_assert(b.report.coverage_group == share(c.legal - least, c.legal));
        check_map(&b, TLAMP_LAYOUT_ALIGN_SPARSE, &g, &c, best);
        free(b.words);
    }
}

Test(layout, sptrans_scaled_is_the_closest)
{
    for (int trial = 0; trial < 150; trial++) {
        const tlamp_geometry g = random_geometry();
        const int64_t sixteenths = 1 + pick(15);
        built b = build(TLAMP_LAYOUT_SPTRANS_SCALED, (double)sixteenths / 16, &g);
        const census c = count_cells(&g, b.report.group);
        parameters best = {0};
        int64_t least = -1;
        for (int64_t k = 2; k <= (c.groups > 2 ? c.groups : 2); k++)
            for (int64_t t = 0; t <= k; t++) {
                const parameters p = {.width = k * c.keys_per_group, .width2 = t * c.keys_per_group};
                const int64_t high = count_high(TLAMP_LAYOUT_SPTRANS_SCALED, &g, &c, p);
                if (least < 0 || better(&c, high, least, sixteenths)) {
                    best = p;
                    least = high;
                }
            }
        cr_assert(b.report.coverage_group == share(c.legal - least, c.legal), "%g, not %g, of %s",
                  b.report.coverage_group, share(c.legal - least, c.legal), show(&g));
        cr_assert(b.report.width == best.width && b.report.width2 == best.width2, "%s", show(&g));
        check_map(&b, TLAMP_LAYOUT_SPTRANS_SCALED, &g, &c, best);
        free(b.words);
    }
}

/* The template before it is retargeted, with any stride and tail. */
Test(layout, sptrans_template)
{
    for (int trial = 0; trial < 400; trial++) {
        const tlamp_geometry g = random_geometry();
        built one = build(TLAMP_LAYOUT_ONE, 1, &g);
        const census c = count_cells(&g, one.report.group);
        const tl_grid grid = {
            .mask = tl_mask_make(g.seqlen_q, g.seqlen_k, g.mask != TLAMP_MASK_NONE,
                                 g.mask == TLAMP_MASK_CAUSAL_TOP_LEFT, g.window_left, g.window_right),
            .block_m = g.block_m,
            .block_n = g.block_n,
            .group_keys = c.keys_per_group,
            .rows = c.rows,
            .groups = c.groups,
        };
        const int64_t s = 1 + pick(90), tail = pick(s + 1);
        const tl_layout l = {.kind = TLAMP_LAYOUT_SPTRANS, .stride = s, .tail = tail};
        const parameters p = {.width = s, .width2 = tail};
        for (int64_t m = 0; m < c.rows; m++)
            for (int64_t j = 0; j < c.groups; j++)
                cr_assert(tl_layout_bit(&l, &grid, m, j) ==
                              (c.cells[m][j] > 0 && !is_high(TLAMP_LAYOUT_SPTRANS, &g, &c, m, j, p)),
                          "s %lld c %lld row %lld group %lld of %s", (long long)s, (long long)tail, (long long)m,
                          (long long)j, show(&g));
        free(one.words);
    }
}

Test(layout, sptrans_defaults)
{
    static const int64_t expected[][3] = {{1, 1, 0},     {7, 1, 0},      {16, 4, 1},
                                          {256, 64, 16}, {512, 128, 32}, {9999, 128, 32}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const tlamp_geometry g = geometry(expected[i][0], 20000, 128, 64, 0, TLAMP_MASK_CAUSAL);
        built b = build(TLAMP_LAYOUT_SPTRANS, .5, &g);
        cr_assert(b.report.width == expected[i][1] && b.report.width2 == expected[i][2]);
        free(b.words);
    }
}

/* A5: above 4096 keys the released template is HIGH everywhere, so what remains is the random order alone. */
Test(layout, sptrans_degenerates)
{
    const tlamp_geometry wide = causal(8192, 128);
    tlamp_layout zero = layout(TLAMP_LAYOUT_ZERO, .5);
    zero.retarget = 1;
    built sptrans = build(TLAMP_LAYOUT_SPTRANS, .5, &wide), random = build_layout(zero, &wide);
    cr_assert(same_words(&sptrans, &random));
    free(sptrans.words);
    free(random.words);

    const tlamp_geometry narrow = causal(4096, 128);
    sptrans = build(TLAMP_LAYOUT_SPTRANS, .5, &narrow);
    random = build_layout(zero, &narrow);
    cr_assert_not(same_words(&sptrans, &random));
    free(sptrans.words);
    free(random.words);
}

/* ---------------------------------------------------------------------------------------------- retarget */

/* A5's text, with the whole permutation made first. */
static void retarget_by_hand(built *b, const census *c, double coverage, uint32_t seed)
{
    static int64_t cells[MAX_ROWS * MAX_GROUPS], order[MAX_ROWS * MAX_GROUPS];
    int64_t all = 0, now = 0, n = 0;
    for (int64_t m = 0; m < c->rows; m++)
        for (int64_t j = 0; j < c->groups; j++) {
            all += c->tiles[m][j];
            now += bit(b, m, j) ? c->tiles[m][j] : 0;
        }
    const int64_t wanted = (int64_t)nearbyint(coverage * (double)all);
    if (now == wanted) return;
    const int add = now < wanted;
    for (int64_t m = 0; m < c->rows; m++)
        for (int64_t j = 0; j < c->groups; j++)
            if (c->tiles[m][j] > 0 && bit(b, m, j) != add) {
                order[n] = n;
                cells[n++] = m * c->groups + j;
            }
    tl_random random;
    tl_random_seed(&random, seed);
    for (int64_t i = 0; i < n - 1; i++) {
        const int64_t z = (int64_t)tl_random_next(&random) % (n - i), kept = order[i];
        order[i] = order[i + z];
        order[i + z] = kept;
    }
    for (int64_t i = 0; i < n && now != wanted; i++) {
        const int64_t m = cells[order[i]] / c->groups, j = cells[order[i]] % c->groups;
        const int64_t next = add ? now + c->tiles[m][j] : now - c->tiles[m][j];
        if (llabs(wanted - next) > llabs(wanted - now)) continue;
        b->words[m * b->report.words_per_row + j / 64] ^= UINT64_C(1) << (j % 64);
        now = next;
    }
}

/* sptrans before its own retargeting, with the released defaults */
static built sptrans_template(const tlamp_geometry *g, const census *c)
{
    built b = build(TLAMP_LAYOUT_ONE, 1, g);
    const int64_t quarter = g->seqlen_q / 4, s = quarter < 1 ? 1 : quarter > 128 ? 128 : quarter;
    const parameters p = {.width = s, .width2 = s / 4 < 32 ? s / 4 : 32};
    for (int64_t m = 0; m < c->rows; m++)
        for (int64_t j = 0; j < c->groups; j++)
            if (bit(&b, m, j) && is_high(TLAMP_LAYOUT_SPTRANS, g, c, m, j, p))
                b.words[m * b.report.words_per_row + j / 64] ^= UINT64_C(1) << (j % 64);
    return b;
}

Test(layout, retarget_any_layout)
{
    for (int trial = 0; trial < 300; trial++) {
        const tlamp_geometry g = random_geometry();
        tlamp_layout l = layout((tlamp_layout_kind)pick(NUM_LAYOUTS), (double)pick(101) / 100);
        l.seed = (uint32_t)pick(1000);
        l.retarget = 1;
        built moved = build_layout(l, &g);
        const census c = count_cells(&g, moved.report.group);
        l.retarget = 0;
        built plain = l.kind == TLAMP_LAYOUT_SPTRANS ? sptrans_template(&g, &c) : build_layout(l, &g);
        retarget_by_hand(&plain, &c, l.coverage, l.seed);
        cr_assert(same_words(&plain, &moved), "%s %g of %s", tlamp_layout_name(l.kind), l.coverage, show(&g));
        check_coverages(moved.words, &moved.report, &c, &g);
        free(plain.words);
        free(moved.words);
    }
}

Test(layout, retarget_meets_the_tile_coverage)
{
    const tlamp_geometry g = causal(16384, 128); /* weights 1 to 4 */
    for (int kind = 0; kind < NUM_LAYOUTS; kind++) {
        tlamp_layout l = layout(kind, .6);
        l.retarget = 1;
        built b = build_layout(l, &g);
        cr_assert(fabs(b.report.coverage_tile - .6) < 1e-4, "%s: %g", tlamp_layout_name(kind), b.report.coverage_tile);
        free(b.words);
    }
}

/* ---------------------------------------------------------------------------------------------- random layouts */

static int64_t row_high(const built *b, const census *c, int64_t m)
{
    int64_t high = 0;
    for (int64_t j = 0; j < c->groups; j++) high += c->cells[m][j] > 0 && !bit(b, m, j);
    return high;
}

Test(layout, row_rand_and_bigbird_counts)
{
    for (int trial = 0; trial < 300; trial++) {
        const tlamp_geometry g = random_geometry();
        const double coverage = (double)pick(33) / 32;
        built rand = build(TLAMP_LAYOUT_ROW_RAND, coverage, &g), bird = build(TLAMP_LAYOUT_BIGBIRD, coverage, &g);
        const census c = count_cells(&g, rand.report.group);
        check_coverages(rand.words, &rand.report, &c, &g);
        check_coverages(bird.words, &bird.report, &c, &g);
        for (int64_t m = 0; m < c.rows; m++) {
            const int64_t k = (int64_t)nearbyint((1 - coverage) * (double)c.n[m]);
            cr_assert(row_high(&rand, &c, m) == k, "row %lld of %s", (long long)m, show(&g));
            cr_assert(row_high(&bird, &c, m) == k, "row %lld of %s", (long long)m, show(&g));
            for (int64_t j = 0; j < 64; j++)
                if (j >= c.groups || c.cells[m][j] == 0)
                    cr_assert(!bit(&rand, m, j) && !bit(&bird, m, j), "illegal bit");
            const int64_t gamma = floor_div(m * g.block_m + diagonal(&g), c.keys_per_group);
            const int on_map = gamma >= 0 && gamma < c.groups && c.cells[m][gamma] > 0;
            if (on_map && k >= 1) cr_assert(!bit(&bird, m, gamma));
            if (c.n[m] && k >= 1 + on_map) cr_assert(!bit(&bird, m, c.first[m]));
        }
        free(rand.words);
        free(bird.words);
    }
}

Test(layout, row_rand_rounds_to_even)
{
    static const int64_t half[4] = {0, 1, 2, 2}, quarter[4] = {1, 2, 2, 3}; /* of 1, 2, 3, 4 groups */
    const tlamp_geometry g = causal(256, 64);
    built b = build(TLAMP_LAYOUT_ROW_RAND, .5, &g), q = build(TLAMP_LAYOUT_ROW_RAND, .25, &g);
    const census c = count_cells(&g, 1);
    for (int64_t m = 0; m < 4; m++) cr_assert(row_high(&b, &c, m) == half[m] && row_high(&q, &c, m) == quarter[m]);
    free(b.words);
    free(q.words);
}

/* One stream, rows ascending, each row a draw from its own groups in order (D6). */
Test(layout, row_rand_stream)
{
    const tlamp_geometry g = geometry(200, 3000, 16, 16, 1, TLAMP_MASK_CAUSAL);
    tlamp_layout l = layout(TLAMP_LAYOUT_ROW_RAND, .7);
    l.seed = 123;
    built b = build_layout(l, &g);
    const census c = count_cells(&g, 1);
    tl_random random;
    tl_random_seed(&random, 123);
    for (int64_t m = 0; m < c.rows; m++) {
        int64_t items[MAX_GROUPS];
        uint64_t expected[MAX_WORDS] = {0};
        for (int64_t j = 0; j < c.n[m]; j++) {
            items[j] = j;
            expected[j / 64] |= UINT64_C(1) << (j % 64);
        }
        for (int64_t i = 0, k = (int64_t)nearbyint((1 - .7) * (double)c.n[m]); i < k; i++) {
            const int64_t z = (int64_t)tl_random_next(&random) % (c.n[m] - i), drawn = items[i + z];
            items[i + z] = items[i];
            expected[drawn / 64] ^= UINT64_C(1) << (drawn % 64);
        }
        cr_assert(b.report.words_per_row == 3 && memcmp(b.words + m * 3, expected, 3 * sizeof expected[0]) == 0);
    }
    free(b.words);
}

/* Every group of a long row is drawn about equally often. */
Test(layout, row_rand_is_uniform)
{
    const tlamp_geometry g = geometry(64, 1024, 64, 64, 1, TLAMP_MASK_NONE);
    int high[16] = {0};
    for (uint32_t seed = 0; seed < 4000; seed++) {
        tlamp_layout l = layout(TLAMP_LAYOUT_ROW_RAND, .75);
        l.seed = seed;
        uint64_t word;
        cr_assert(tlamp_layout_build(&l, &g, &word, 1, NULL, NULL) == TLAMP_OK);
        for (int j = 0; j < 16; j++) high[j] += !(word >> j & 1);
    }
    for (int j = 0; j < 16; j++) /* 1000 expected, sigma 27 */
        cr_assert(high[j] > 850 && high[j] < 1150, "group %d: %d of 4000", j, high[j]);
}

Test(layout, deterministic_and_seeded)
{
    const tlamp_geometry g = causal(4096, 128);
    for (int kind = 0; kind < NUM_LAYOUTS; kind++) {
        tlamp_layout l = layout(kind, .5);
        built a = build_layout(l, &g), b = build_layout(l, &g);
        cr_assert(same_words(&a, &b) && memcmp(&a.report, &b.report, sizeof a.report) == 0);
        l.seed = 43;
        built other = build_layout(l, &g);
        const int uses_seed = kind == TLAMP_LAYOUT_ROW_RAND || kind == TLAMP_LAYOUT_BIGBIRD ||
                              kind == TLAMP_LAYOUT_SPTRANS;
        cr_assert(same_words(&a, &other) == !uses_seed, "%s", tlamp_layout_name(kind));
        free(a.words);
        free(b.words);
        free(other.words);
    }
}

/* ---------------------------------------------------------------------------------------------- ends, sizes */

static void check_ends(const tlamp_geometry *g)
{
    built zero = build(TLAMP_LAYOUT_ZERO, .5, g), one = build(TLAMP_LAYOUT_ONE, .5, g);
    for (int64_t i = 0; i < num_words(&zero); i++) cr_assert(zero.words[i] == 0);
    for (int kind = TLAMP_LAYOUT_BAND; kind < NUM_LAYOUTS; kind++)
        for (int32_t retarget = 0; retarget < 2; retarget++) {
            tlamp_layout l = layout(kind, 0);
            l.retarget = retarget;
            built none = build_layout(l, g);
            l.coverage = 1;
            built all = build_layout(l, g);
            cr_assert(same_words(&none, &zero), "%s 0 of %s", tlamp_layout_name(kind), show(g));
            cr_assert(same_words(&all, &one), "%s 1 of %s", tlamp_layout_name(kind), show(g));
            free(none.words);
            free(all.words);
        }
    free(zero.words);
    free(one.words);
}

Test(layout, coverage_0_and_1_are_exact)
{
    for (int trial = 0; trial < 300; trial++) {
        const tlamp_geometry g = random_geometry();
        check_ends(&g);
    }
    const tlamp_geometry decode = geometry(1, 100000, 128, 64, 0, TLAMP_MASK_CAUSAL);
    const tlamp_geometry fine = geometry(300, 5000, 128, 16, 1, TLAMP_MASK_CAUSAL);
    const tlamp_geometry late = geometry(5000, 300, 128, 16, 1, TLAMP_MASK_CAUSAL_TOP_LEFT);
    const tlamp_geometry empty = geometry(300, 0, 128, 64, 0, TLAMP_MASK_CAUSAL);
    check_ends(&decode);
    check_ends(&fine);
    check_ends(&late);
    check_ends(&empty);
}

Test(layout, empty_lengths)
{
    for (int kind = 0; kind < NUM_LAYOUTS; kind++) {
        const tlamp_geometry no_keys = geometry(300, 0, 128, 64, 0, TLAMP_MASK_CAUSAL);
        built b = build(kind, .5, &no_keys);
        cr_assert(b.report.rows == 3 && b.report.groups == 0 && b.report.words_per_row == 1);
        cr_assert(b.words[0] == 0 && b.words[1] == 0 && b.words[2] == 0);
        cr_assert(b.report.coverage_group == 0 && b.report.coverage_tile == 0 && b.report.coverage_cell == 0);
        free(b.words);
        const tlamp_geometry no_rows = geometry(0, 300, 128, 64, 0, TLAMP_MASK_CAUSAL);
        const tlamp_layout l = layout(kind, .5);
        cr_assert(tlamp_layout_words(&no_rows) == 0);
        cr_assert(tlamp_layout_build(&l, &no_rows, NULL, 0, NULL, NULL) == TLAMP_OK);
    }
}

/* Several words per row: every group where its own rule puts it. */
Test(layout, more_than_64_groups)
{
    tlamp_geometry g = geometry(200, 3000, 16, 16, 1, TLAMP_MASK_CAUSAL);
    for (int windowed = 0; windowed < 2; windowed++) {
        g.window_left = windowed ? 1500 : -1;
        const census c = count_cells(&g, 1);
        cr_assert(c.groups == 188);
        for (int kind = 0; kind < NUM_LAYOUTS; kind++) {
            built b = build(kind, .375, &g);
            cr_assert(b.report.words_per_row == 3);
            check_coverages(b.words, &b.report, &c, &g);
            if (kind != TLAMP_LAYOUT_ROW_RAND && kind != TLAMP_LAYOUT_BIGBIRD && kind != TLAMP_LAYOUT_SPTRANS) {
                const double beta_unit = 2.0 * g.block_m / (1024.0 * (double)c.keys_per_group);
                check_map(&b, kind, &g, &c,
                          (parameters){.width = b.report.width,
                                       .width2 = b.report.width2,
                                       .alpha = (int64_t)b.report.alpha,
                                       .beta_step = (int64_t)lround(b.report.beta / beta_unit)});
            }
            free(b.words);
        }
        built moved = build(TLAMP_LAYOUT_SPTRANS, .375, &g);
        cr_assert(fabs(moved.report.coverage_tile - .375) < 1e-3);
        free(moved.words);
    }
}

/* The same map in one word and in several: a coarse group's legal bit joins those of its parts, and where a rule has
 * the same parameters its bits are the same. */
Test(layout, one_word_and_several_agree)
{
    const tlamp_geometry coarse = geometry(3000, 8192, 128, 64, 2, TLAMP_MASK_CAUSAL);
    tlamp_geometry fine = coarse;
    fine.group = 1;
    built a = build(TLAMP_LAYOUT_ONE, 1, &coarse), b = build(TLAMP_LAYOUT_ONE, 1, &fine);
    cr_assert(a.report.words_per_row == 1 && b.report.words_per_row == 2);
    for (int64_t m = 0; m < a.report.rows; m++)
        for (int64_t j = 0; j < 64; j++) cr_assert(bit(&a, m, j) == (bit(&b, m, 2 * j) | bit(&b, m, 2 * j + 1)));
    free(a.words);
    free(b.words);

    /* the first 4096 keys of a causal square, alone (64 groups) and inside a longer one (128 groups) */
    const tlamp_geometry small = causal(4096, 128);
    tlamp_geometry large = causal(8192, 128);
    large.group = 1;
    tlamp_layout l = layout(TLAMP_LAYOUT_ROW_RAND, .5);
    a = build_layout(l, &small);
    b = build_layout(l, &large);
    for (int64_t m = 0; m < a.report.rows; m++) cr_assert(b.words[2 * m] == a.words[m] && b.words[2 * m + 1] == 0);
    free(a.words);
    free(b.words);
}

Test(layout, huge_lengths)
{
    const int64_t big = (int64_t)1 << 40;
    const tlamp_geometry decode = geometry(1, big, 128, 64, 0, TLAMP_MASK_CAUSAL);
    const tlamp_geometry top_left = geometry(100, big, 16, 16, 0, TLAMP_MASK_CAUSAL_TOP_LEFT);
    tlamp_geometry window = geometry(1000, big, 128, 64, 0, TLAMP_MASK_CAUSAL);
    window.window_left = big - 5;
    tlamp_geometry endless = geometry(1 << 21, big, 128, 64, 0, TLAMP_MASK_NONE);
    endless.window_left = endless.window_right = INT64_MAX;
    const tlamp_geometry wide_group = geometry(500, big, 128, 1 << 30, INT32_MAX, TLAMP_MASK_CAUSAL);
    const tlamp_geometry *const all[] = {&decode, &top_left, &window, &endless, &wide_group};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int kind = 0; kind < NUM_LAYOUTS; kind++) {
            built b = build(kind, .5, all[i]);
            cr_assert(b.report.coverage_cell >= 0 && b.report.coverage_cell <= 1);
            if (kind == TLAMP_LAYOUT_ONE)
                cr_assert(b.report.coverage_group == 1 && b.report.coverage_tile == 1 && b.report.coverage_cell == 1);
            if (kind == TLAMP_LAYOUT_GLOBAL && all[i]->mask == TLAMP_MASK_NONE)
                cr_assert(fabs(b.report.coverage_cell - .5) < 1e-9);
            free(b.words);
        }

    const tlamp_geometry tall = geometry(big, 1, 128, 64, 0, TLAMP_MASK_CAUSAL);
    cr_assert(tlamp_layout_words(&tall) == big / 128);
    const tlamp_geometry fine = geometry(1 << 20, big, 128, 16, 1, TLAMP_MASK_CAUSAL);
    cr_assert(tlamp_layout_words(&fine) == ((int64_t)1 << 13) * ((int64_t)1 << 30));
}

Test(layout, long_maps_are_fast)
{
    const tlamp_geometry g = geometry(131072, 131072, 128, 64, 1, TLAMP_MASK_CAUSAL); /* 1024 rows, 2048 groups */
    for (int kind = TLAMP_LAYOUT_BAND; kind <= TLAMP_LAYOUT_SPTRANS; kind++) {
        const clock_t start = clock();
        built b = build(kind, .5, &g);
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        cr_assert(fabs(b.report.coverage_group - .5) < 1e-3);
        cr_assert(seconds < 2, "%s took %g s", tlamp_layout_name(kind), seconds); /* 0.06 s without sanitizers */
        free(b.words);
    }
}

/* ---------------------------------------------------------------------------------------------- wrong input */

/* Expects a refusal that names `field` and leaves words and report alone. */
static void check_refused(const tlamp_layout *l, const tlamp_geometry *g, int64_t count, const char *field)
{
    enum { ENOUGH = 64 };
    uint64_t words[ENOUGH];
    for (int i = 0; i < ENOUGH; i++) words[i] = canary;
    tlamp_layout_report report, before;
    memset(&report, 0x5a, sizeof report);
    report.struct_size = sizeof report;
    before = report;
    tlamp_error err = {.struct_size = sizeof err};
    cr_assert(tlamp_layout_build(l, g, words, count, &report, &err) == TLAMP_INVALID_ARGUMENT, "%s accepted", field);
    cr_assert(err.status == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, field);
    cr_assert(err.text[0] && !strchr(err.text, '\n'));
    cr_assert(memcmp(&report, &before, sizeof report) == 0);
    for (int i = 0; i < ENOUGH; i++) cr_assert(words[i] == canary);
    cr_assert(tlamp_layout_build(l, g, words, count, &report, NULL) == TLAMP_INVALID_ARGUMENT);
}

Test(layout, bad_geometry)
{
    const tlamp_layout l = layout(TLAMP_LAYOUT_BAND, .5);
    const tlamp_geometry good = causal(256, 128);
    static const int64_t bad_lengths[] = {-1, INT64_MIN, ((int64_t)1 << 40) + 1, INT64_MAX};
    static const int32_t bad_m[] = {-128, 8, 1, 24, 48, 96, 192, 200, INT32_MAX, INT32_MIN};
    static const int32_t bad_n[] = {-64, 8, 1, 24, 48, 96, 100, INT32_MAX, INT32_MIN};
    static const int32_t good_m[] = {16, 32, 64, 128, 256, 384}, good_n[] = {16, 32, 64, 128, 192};
    tlamp_geometry g = good;
#define REFUSED(field, value)                                                                                          \
    do {                                                                                                               \
        g = good;                                                                                                      \
        g.field = (value);                                                                                             \
        check_refused(&l, &g, 64, #field);                                                                             \
        cr_assert(tlamp_layout_words(&g) == -1);                                                                       \
        uint64_t word[64] = {0};                                                                                       \
        tlamp_layout_report report = {.struct_size = sizeof report};                                                   \
        cr_assert(tlamp_layout_measure(&g, word, 64, &report, NULL) == TLAMP_INVALID_ARGUMENT);                        \
    } while (0)
    for (size_t i = 0; i < sizeof bad_lengths / sizeof bad_lengths[0]; i++) {
        REFUSED(seqlen_q, bad_lengths[i]);
        REFUSED(seqlen_k, bad_lengths[i]);
    }
    for (size_t i = 0; i < sizeof bad_m / sizeof bad_m[0]; i++) REFUSED(block_m, bad_m[i]);
    for (size_t i = 0; i < sizeof bad_n / sizeof bad_n[0]; i++) REFUSED(block_n, bad_n[i]);
    REFUSED(group, -1);
    REFUSED(group, INT32_MIN);
    REFUSED(mask, -1);
    REFUSED(mask, 3);
    REFUSED(window_left, -2);
    REFUSED(window_left, INT64_MIN);
    REFUSED(window_right, -2);
#undef REFUSED
    for (size_t i = 0; i < sizeof good_m / sizeof good_m[0]; i++) {
        g = good;
        g.block_m = good_m[i];
        cr_assert(tlamp_layout_words(&g) == (256 + good_m[i] - 1) / good_m[i]);
    }
    for (size_t i = 0; i < sizeof good_n / sizeof good_n[0]; i++) {
        g = good;
        g.block_n = good_n[i];
        cr_assert(tlamp_layout_words(&g) == 2);
    }
    g = geometry((int64_t)1 << 40, (int64_t)1 << 40, 128, 64, 0, TLAMP_MASK_CAUSAL);
    check_refused(&l, &g, 64, "seqlen_q");
    check_refused(&l, NULL, 64, "geometry");
    cr_assert(tlamp_layout_words(NULL) == -1);
}

Test(layout, bad_layout)
{
    const tlamp_geometry g = causal(256, 128);
    static const double bad[] = {-1e-9, 1.0000001, -1, 2, (double)INFINITY, -(double)INFINITY, (double)NAN};
    for (int kind = 0; kind < NUM_LAYOUTS; kind++)
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            tlamp_layout l = layout(kind, bad[i]);
            if (kind == TLAMP_LAYOUT_ONE || kind == TLAMP_LAYOUT_ZERO) { /* do not look at it, unless to retarget */
                uint64_t words[2];
                cr_assert(tlamp_layout_build(&l, &g, words, 2, NULL, NULL) == TLAMP_OK);
                l.retarget = 1;
            }
            check_refused(&l, &g, 64, "coverage");
        }
    tlamp_layout l = layout(NUM_LAYOUTS, .5);
    check_refused(&l, &g, 64, "kind");
    l.kind = -1;
    check_refused(&l, &g, 64, "kind");
    l = layout(TLAMP_LAYOUT_BAND, .5);
    l.retarget = 2;
    check_refused(&l, &g, 64, "retarget");
    check_refused(NULL, &g, 64, "layout");
}

Test(layout, bad_words_and_report)
{
    const tlamp_geometry g = causal(256, 128);
    const tlamp_layout l = layout(TLAMP_LAYOUT_BAND, .5);
    uint64_t words[2] = {canary, canary};
    check_refused(&l, &g, 1, "count");
    check_refused(&l, &g, 0, "count");
    check_refused(&l, &g, -1, "count");

    tlamp_error err = {.struct_size = sizeof err};
    cr_assert(tlamp_layout_build(&l, &g, NULL, 2, NULL, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, "words");
    tlamp_layout_report report = {.struct_size = 0};
    cr_assert(tlamp_layout_build(&l, &g, words, 2, &report, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, "struct_size");
    cr_assert(words[0] == canary && words[1] == canary);

    cr_assert(tlamp_layout_measure(&g, words, 1, &report, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, "count");
    cr_assert(tlamp_layout_measure(&g, NULL, 2, &report, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, "words");
    cr_assert(tlamp_layout_measure(&g, words, 2, NULL, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, "report");
    cr_assert(tlamp_layout_measure(&g, words, 2, &report, &err) == TLAMP_INVALID_ARGUMENT);
    cr_assert_str_eq(err.field, "struct_size");
}

Test(layout, out_of_memory)
{
    /* 2^47 legal groups to draw from: more than any machine's memory. No word is written, so two will do. */
    const tlamp_geometry g = geometry((int64_t)1 << 20, (int64_t)1 << 40, 128, 64, 1, TLAMP_MASK_CAUSAL);
    const tlamp_layout l = layout(TLAMP_LAYOUT_SPTRANS, .5);
    uint64_t words[2] = {canary, canary};
    tlamp_error err = {.struct_size = sizeof err};
    cr_assert(tlamp_layout_build(&l, &g, words, INT64_MAX, NULL, &err) == TLAMP_OUT_OF_MEMORY);
    cr_assert(err.status == TLAMP_OUT_OF_MEMORY && err.text[0]);
    cr_assert(words[0] == canary && words[1] == canary);
}

Test(layout, struct_sizes)
{
    /* older: as far as the kind and the tiles, the rest takes its defaults */
    tlamp_geometry g = causal(256, 128);
    g.window_left = g.window_right = -77; /* not there */
    g.struct_size = offsetof(tlamp_geometry, window_left);
    cr_assert(tlamp_layout_words(&g) == 2);
    tlamp_layout l = layout(TLAMP_LAYOUT_BIGBIRD, .5);
    l.seed = 1;
    l.struct_size = offsetof(tlamp_layout, seed);
    struct {
        tlamp_layout_report report;
        uint64_t after;
    } old = {.report = {.struct_size = offsetof(tlamp_layout_report, coverage_group), .coverage_group = -1},
             .after = canary};
    uint64_t words[2], expected[2];
    cr_assert(tlamp_layout_build(&l, &g, words, 2, &old.report, NULL) == TLAMP_OK);
    cr_assert(old.report.rows == 2 && old.report.words_per_row == 1 && old.report.coverage_group == -1);
    cr_assert(old.report.struct_size == offsetof(tlamp_layout_report, coverage_group));
    const tlamp_geometry same = causal(256, 128);
    const tlamp_layout usual = layout(TLAMP_LAYOUT_BIGBIRD, .5);
    cr_assert(tlamp_layout_build(&usual, &same, expected, 2, NULL, NULL) == TLAMP_OK);
    cr_assert(memcmp(words, expected, sizeof words) == 0);

    /* newer: a tail of zeros is fine, anything else is not understood */
    struct {
        tlamp_geometry geometry;
        uint64_t tail;
    } newer = {same, 0};
    newer.geometry.struct_size = sizeof newer;
    cr_assert(tlamp_layout_words(&newer.geometry) == 2);
    newer.tail = 1;
    tlamp_error err = {.struct_size = sizeof err};
    cr_assert(tlamp_layout_build(&usual, &newer.geometry, words, 2, NULL, &err) == TLAMP_UNSUPPORTED);
    cr_assert_str_eq(err.field, "struct_size");

    /* never initialised */
    tlamp_layout blank = {0};
    cr_assert(tlamp_layout_build(&blank, &same, words, 2, NULL, &err) == TLAMP_INVALID_ARGUMENT);

    tlamp_geometry init;
    memset(&init, 0x5a, sizeof init);
    tlamp_geometry_init(&init, sizeof init);
    cr_assert(init.struct_size == sizeof init && init.window_left == -1 && init.window_right == -1);
    cr_assert(init.seqlen_q == 0 && init.group == 0 && init.mask == TLAMP_MASK_NONE);
    tlamp_layout layout_init;
    memset(&layout_init, 0x5a, sizeof layout_init);
    tlamp_layout_init(&layout_init, sizeof layout_init);
    cr_assert(layout_init.seed == 42 && layout_init.retarget == 0 && layout_init.kind == TLAMP_LAYOUT_ONE);
    tlamp_layout_init(NULL, sizeof layout_init);
}
