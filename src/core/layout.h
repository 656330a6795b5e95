/* Routing layouts (ALGORITHMS A4, A5): which groups of a routing row are legal, and which of those stay HIGH. Pure
 * functions of (parameters, grid, row, group), freestanding, so that host and device can both ask. Layouts that need a
 * random stream (row_rand, bigbird, retarget) and the choice of parameters are the host's: policy/. */
#ifndef TL_CORE_LAYOUT_H
#define TL_CORE_LAYOUT_H

#include "tilelamp/tilelamp.h"
#include "mask.h"
#include "routing.h"

/* ---- intervals of groups, tiles, keys or positions: both ends included, empty where last < first */

typedef struct {
    int64_t first, last;
} tl_range;

TL_INLINE tl_range tl_range_both(tl_range a, tl_range b)
{
    return (tl_range){tl_max64(a.first, b.first), tl_min64(a.last, b.last)};
}

TL_INLINE tl_range tl_range_shift(tl_range r, int64_t by) { return (tl_range){r.first + by, r.last + by}; }
TL_INLINE int64_t tl_range_length(tl_range r) { return tl_max64(0, r.last - r.first + 1); }
TL_INLINE int tl_range_has(tl_range r, int64_t x) { return r.first <= x && x <= r.last; }

TL_INLINE int64_t tl_floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); } /* b > 0 */

/* The blocks of `size` that r touches; an empty range of keys touches none. */
TL_INLINE tl_range tl_range_blocks(tl_range r, int64_t size)
{
    if (r.last < r.first) return (tl_range){0, -1};
    return (tl_range){tl_floor_div(r.first, size), tl_floor_div(r.last, size)};
}

/* ---- the grid of a routing map: query tiles by groups of key tiles */

typedef struct {
    tl_mask_geometry mask;
    int64_t block_m, block_n;
    int64_t group_keys;   /* W */
    int64_t rows, groups; /* T_m, T_mask */
} tl_grid;

/* One routing row m. Positions are places on the key axis, i + diagonal for token i: never before key 0, perhaps behind
 * the last key. The diagonal's group may lie outside the map on either side. */
typedef struct {
    tl_range keys;      /* seen by some token of the row */
    tl_range legal;     /* G_m: the groups that hold such a key */
    tl_range positions; /* of its tokens */
    int64_t token;      /* its first token, m * BLOCK_M */
    int64_t diagonal;   /* gamma(m): the group at its first token's position */
} tl_grid_row;

TL_INLINE tl_grid_row tl_grid_row_at(const tl_grid *grid, int64_t m)
{
    const int64_t first = m * grid->block_m, last = tl_min64(first + grid->block_m, grid->mask.lq) - 1;
    tl_grid_row row;
    /* Each token sees one interval, one step right of the token before it: together they are one interval too. */
    row.keys = (tl_range){tl_key_begin(&grid->mask, first), tl_key_end(&grid->mask, last) - 1};
    row.legal = tl_range_blocks(row.keys, grid->group_keys);
    row.positions = (tl_range){tl_max64(0, first + grid->mask.diagonal), last + grid->mask.diagonal};
    row.token = first;
    row.diagonal = tl_floor_div(first + grid->mask.diagonal, grid->group_keys);
    return row;
}

TL_INLINE tl_range tl_group_keys(const tl_grid *grid, int64_t group)
{
    const int64_t first = group * grid->group_keys;
    return (tl_range){first, tl_min64(first + grid->group_keys, grid->mask.lk) - 1};
}

/* The legal compute tiles that bit (row, group) governs: its weight in the tile-weighted coverage (A4). */
TL_INLINE int64_t tl_group_tiles(const tl_grid *grid, const tl_grid_row *row, int64_t group)
{
    const tl_range keys = tl_range_both(row->keys, tl_group_keys(grid, group));
    return tl_range_length(tl_range_blocks(keys, grid->block_n));
}

/* ---- the layouts */

enum { TL_BETA_STEPS = 1024 };

typedef struct {
    tlamp_layout_kind kind;
    int64_t width;            /* band: w, -1 is nothing; global: n_g */
    int64_t alpha, beta_step; /* align_sparse; beta = beta_step * (2 BLOCK_M / W) / TL_BETA_STEPS */
    int64_t stride, tail;     /* s, c; sptrans: tokens, sptrans_scaled: groups */
} tl_layout;

/* band: abs(g - gamma(m)) <= w */
TL_INLINE tl_range tl_band_high(const tl_grid_row *row, int64_t w)
{
    return (tl_range){row->diagonal - w, row->diagonal + w};
}

/* global: the first n_g groups of the sequence, also under a window */
TL_INLINE tl_range tl_global_high(int64_t n_g) { return (tl_range){0, n_g - 1}; }

/* align_sparse: the last ceil(alpha + beta m) legal groups. beta m = step * token / (512 W), in integers: no rounding,
 * the same everywhere. */
TL_INLINE tl_range tl_align_sparse_high(const tl_grid *grid, const tl_grid_row *row, int64_t alpha, int64_t beta_step)
{
    const int64_t slope = tl_ceil_div(tl_ceil_div(beta_step * row->token, TL_BETA_STEPS / 2), grid->group_keys);
    return (tl_range){row->legal.last - (alpha + slope) + 1, row->legal.last};
}

/* F_m of the layouts whose HIGH groups form an interval; empty for the others. */
TL_INLINE tl_range tl_layout_high_range(const tl_layout *layout, const tl_grid *grid, const tl_grid_row *row)
{
    tl_range high = {0, -1}; /* one */
    switch (layout->kind) {
    case TLAMP_LAYOUT_ZERO: high = row->legal; break;
    case TLAMP_LAYOUT_BAND: high = tl_band_high(row, layout->width); break;
    case TLAMP_LAYOUT_GLOBAL: high = tl_global_high(layout->width); break;
    case TLAMP_LAYOUT_ALIGN_SPARSE: high = tl_align_sparse_high(grid, row, layout->alpha, layout->beta_step); break;
    default: break;
    }
    return tl_range_both(high, row->legal);
}

/* sptrans: a token at position p keeps its own stride up to p, and the last c of every stride before it:
 *   K_p = [u s, p] and [(r + 1) s - c, (r + 1) s - 1] for r < u, u = p / s, 0 <= c <= s.
 * Does a K_p with p in `positions` (p >= 0) meet `keys`? The own strides together reach from that of the first p to the
 * last p; what is left of the others ends before. */
TL_INLINE int tl_strided_meets(tl_range positions, tl_range keys, int64_t s, int64_t c)
{
    if (positions.last < positions.first) return 0;
    const int64_t own = positions.first / s * s;
    if (keys.first <= positions.last && own <= keys.last) return 1;
    const int64_t tail = keys.first + tl_max64(0, s - c - keys.first % s); /* the first in a tail, if c > 0 */
    return c > 0 && tail <= keys.last && tail < own;
}

/* Is group g in F_m? g must be legal. Not for row_rand and bigbird. Under a window the strides begin at the first legal
 * group (A4: a layout takes the legal interval for a prefix). */
TL_INLINE int tl_layout_high(const tl_layout *layout, const tl_grid *grid, const tl_grid_row *row, int64_t g)
{
    const int64_t s = layout->stride, c = layout->tail, origin = row->legal.first;
    tl_range positions = row->positions, keys = {g, g};
    switch (layout->kind) {
    case TLAMP_LAYOUT_SPTRANS:
        keys = tl_range_shift(tl_group_keys(grid, g), -origin * grid->group_keys);
        positions = tl_range_shift(positions, -origin * grid->group_keys);
        return tl_strided_meets(positions, keys, s, c);
    case TLAMP_LAYOUT_SPTRANS_SCALED: /* the same pattern with groups for tokens */
        keys = tl_range_shift(keys, -origin);
        positions = tl_range_shift(tl_range_blocks(positions, grid->group_keys), -origin);
        return tl_strided_meets(positions, keys, s, c);
    default: return tl_range_has(tl_layout_high_range(layout, grid, row), g);
    }
}

/* The routing bit of group g of row m: TL_INT8 or TL_HIGH; illegal groups have 0. */
TL_INLINE int tl_layout_bit(const tl_layout *layout, const tl_grid *grid, int64_t m, int64_t g)
{
    const tl_grid_row row = tl_grid_row_at(grid, m);
    return tl_range_has(row.legal, g) && !tl_layout_high(layout, grid, &row, g) ? TL_INT8 : TL_HIGH;
}

#endif
