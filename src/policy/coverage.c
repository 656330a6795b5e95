#include "policy/coverage.h"

#include <math.h>

/* ---------------------------------------------------------------------------------------------- measuring (A4) */

double tl_share_value(tl_share share) { return share.legal ? (double)share.int8 / (double)share.legal : 0; }

tl_coverage tl_coverage_measure(const tl_grid *grid, const uint64_t *words, int64_t words_per_row)
{
    tl_coverage coverage = {{0, 0}, {0, 0}, {0, 0}};
    for (int64_t m = 0; m < grid->rows; m++) tl_coverage_add_row(&coverage, grid, words + m * words_per_row, m);
    return coverage;
}

int64_t tl_legal_groups(const tl_grid *grid)
{
    int64_t legal = 0;
    for (int64_t m = 0; m < grid->rows; m++) {
        const tl_grid_row row = tl_grid_row_at(grid, m);
        legal += tl_range_length(row.legal);
    }
    return legal;
}

/* ---------------------------------------------------------------------------------------------- solving (A5) */

/* |F_m| of sptrans_scaled. With groups 0 .. n-1 for the legal ones, first token in group a, last in b: the strides of
 * all tokens together are [a / k * k, b], and each stride before them has its last t groups. */
static int64_t scaled_high_count(const tl_layout *layout, const tl_grid *grid, const tl_grid_row *row)
{
    const int64_t k = layout->stride, t = layout->tail, n = tl_range_length(row->legal);
    const tl_range at = tl_range_shift(tl_range_blocks(row->positions, grid->group_keys), -row->legal.first);
    if (at.last < at.first) return 0;
    const int64_t own = at.first / k * k, end = tl_min64(own, n); /* of the strides before */
    const int64_t tails = end / k * t + tl_max64(0, end % k - (k - t));
    return tails + tl_range_length(tl_range_both((tl_range){own, at.last}, (tl_range){0, n - 1}));
}

/* The number of HIGH groups. O(T_m). Never falls as the layout's parameter rises: what bisection needs. */
static int64_t high_count(const tl_grid *grid, const tl_layout *layout)
{
    int64_t high = 0;
    for (int64_t m = 0; m < grid->rows; m++) {
        const tl_grid_row row = tl_grid_row_at(grid, m);
        high += layout->kind == TLAMP_LAYOUT_SPTRANS_SCALED ? scaled_high_count(layout, grid, &row)
                                                            : tl_range_length(tl_layout_high_range(layout, grid, &row));
    }
    return high;
}

typedef struct {
    const tl_grid *grid;
    int64_t legal;
    double int8; /* wanted number of INT8 groups; a real number, so that ties are exact */
} target;

/* Sets *parameter, a field of *layout, to the least value in [low, high] with at least `wanted` HIGH groups; high where
 * there is none. Returns the count there. */
static int64_t first_with(const target *to, tl_layout *layout, int64_t *parameter, int64_t low, int64_t high,
                          int64_t wanted)
{
    while (low < high) {
        *parameter = low + (high - low) / 2;
        if (high_count(to->grid, layout) >= wanted)
            high = *parameter;
        else
            low = *parameter + 1;
    }
    *parameter = low;
    return high_count(to->grid, layout);
}

static double distance(const target *to, int64_t high) { return fabs((double)(to->legal - high) - to->int8); }

/* Sets *parameter to the value in [low, high] that brings the coverage closest to the wanted one; of two at equal
 * distance to the lower coverage, of equal coverages to the least parameter. Returns the distance in groups. */
static double closest(const target *to, tl_layout *layout, int64_t *parameter, int64_t low, int64_t high)
{
    const int64_t wanted = to->legal - (int64_t)to->int8; /* HIGH groups, rounded up: not above the wanted coverage */
    int64_t best = first_with(to, layout, parameter, low, high, wanted);
    high = *parameter;
    if (high > low) { /* the neighbour on the other side */
        *parameter = high - 1;
        const int64_t fewer = high_count(to->grid, layout);
        if (distance(to, fewer) < distance(to, best)) best = fewer;
    }
    return distance(to, first_with(to, layout, parameter, low, high, best));
}

/* The widest distance of a legal group from the diagonal. T_mask - 1 is enough where the diagonal stays inside the map,
 * as in the paper; it leaves it where Lq > Lk. */
static int64_t widest_band(const tl_grid *grid)
{
    int64_t w = 0;
    for (int64_t m = 0; m < grid->rows; m++) {
        const tl_grid_row row = tl_grid_row_at(grid, m);
        if (tl_range_length(row.legal))
            w = tl_max64(w, tl_max64(row.diagonal - row.legal.first, row.legal.last - row.diagonal));
    }
    return w;
}

static tl_layout solve_align_sparse(const target *to)
{
    tl_layout one = {.kind = TLAMP_LAYOUT_ALIGN_SPARSE, .alpha = 1},
              zero = {.kind = TLAMP_LAYOUT_ALIGN_SPARSE, .alpha = 0};
    const double with_one = closest(to, &one, &one.beta_step, 0, TL_BETA_STEPS);
    const double with_zero = closest(to, &zero, &zero.beta_step, 0, TL_BETA_STEPS);
    return with_zero < with_one ? zero : one;
}

static tl_layout solve_sptrans_scaled(const target *to)
{
    tl_layout best = {.kind = TLAMP_LAYOUT_SPTRANS_SCALED};
    double least = HUGE_VAL;
    for (int64_t k = 2; k <= tl_max64(2, to->grid->groups) && least > 0; k++) {
        tl_layout layout = {.kind = TLAMP_LAYOUT_SPTRANS_SCALED, .stride = k};
        const double d = closest(to, &layout, &layout.tail, 0, k);
        if (d < least) {
            best = layout;
            least = d;
        }
    }
    return best;
}

/* sptrans: the released defaults (S2); retargeting meets the coverage. */
static tl_layout default_sptrans(const tl_grid *grid)
{
    const int64_t s = tl_clamp64(grid->mask.lq / 4, 1, 128);
    return (tl_layout){.kind = TLAMP_LAYOUT_SPTRANS, .stride = s, .tail = tl_min64(32, s / 4)};
}

tl_layout tl_layout_solve(const tl_grid *grid, tlamp_layout_kind kind, double coverage)
{
    const int64_t legal = tl_legal_groups(grid);
    const target to = {grid, legal, coverage * (double)legal};
    tl_layout layout = {.kind = kind};
    switch (kind) {
    case TLAMP_LAYOUT_BAND: closest(&to, &layout, &layout.width, -1, widest_band(grid)); break;
    case TLAMP_LAYOUT_GLOBAL: closest(&to, &layout, &layout.width, 0, grid->groups); break;
    case TLAMP_LAYOUT_ALIGN_SPARSE: layout = solve_align_sparse(&to); break;
    case TLAMP_LAYOUT_SPTRANS: layout = default_sptrans(grid); break;
    case TLAMP_LAYOUT_SPTRANS_SCALED: layout = solve_sptrans_scaled(&to); break;
    default: break;
    }
    return layout;
}
