/* Routing maps written and counted (ALGORITHMS A4, A5, D6), the same on the host and on devices. What a row says by itself is a
 * function of one row, to be called for all of them in any order; what draws from one random stream walks all rows. */
#ifndef TL_CORE_LAYOUT_MAP_H
#define TL_CORE_LAYOUT_MAP_H

#include "layout.h"
#include "random.h"

/* How many of the legal items are INT8. */
typedef struct {
    int64_t int8, legal;
} tl_share;

typedef struct {
    tl_share groups, tiles, cells;
} tl_coverage;

/* A map and what is to be written into it. */
typedef struct {
    tl_grid grid;
    tl_layout layout; /* the rule, with its parameters */
    tlamp_layout_kind kind;
    double coverage;
    uint32_t seed;
    int32_t draws;    /* row_rand and bigbird: the rule says nothing, groups are drawn */
    int32_t retarget; /* shift single groups until the tile-weighted coverage is met */
    uint64_t *words;
    int64_t words_per_row;
    int64_t *scratch; /* for those that draw and those that are retargeted */
} tl_map;

TL_INLINE uint64_t *tl_map_row(const tl_map *map, int64_t m) { return map->words + m * map->words_per_row; }
TL_INLINE void tl_map_flip(uint64_t *row, int64_t g) { row[g >> 6] ^= (uint64_t)1 << (g & 63); }

/* ---- counting (A4) */

/* Sum of clamp(y, 0, top) over y in r. */
TL_INLINE int64_t tl_ramp_sum(tl_range r, int64_t top)
{
    const tl_range slope = tl_range_both(r, (tl_range){0, top - 1}), plateau = {tl_max64(r.first, top), r.last};
    return (slope.first + slope.last) * tl_range_length(slope) / 2 + top * tl_range_length(plateau);
}

/* Legal cells (i, j) of a row's tokens with j < end <= lk. */
TL_INLINE int64_t tl_cells_before(const tl_grid *grid, const tl_grid_row *row, int64_t end)
{
    const tl_mask_geometry *mask = &grid->mask;
    const int64_t tokens = tl_min64(grid->block_m, mask->lq - row->token);
    const tl_range at = {row->token + mask->diagonal, row->token + mask->diagonal + tokens - 1};
    const int64_t hidden = mask->left < 0 ? 0 : tl_ramp_sum(tl_range_shift(at, -mask->left), end);
    const int64_t seen = mask->right < 0 ? tokens * end : tl_ramp_sum(tl_range_shift(at, mask->right + 1), end);
    return seen - hidden;
}

TL_INLINE void tl_share_add(tl_share *share, int int8, int64_t n)
{
    share->legal += n;
    share->int8 += int8 ? n : 0;
}

/* Row m, added to *coverage. Illegal bits are ignored. O(bits), whatever the block sizes. */
TL_SHARED void tl_coverage_add_row(tl_coverage *coverage, const tl_grid *grid, const uint64_t *row_words, int64_t m)
{
    const tl_grid_row row = tl_grid_row_at(grid, m);
    int64_t counted = 0;
    for (int64_t g = row.legal.first; g <= row.legal.last; g++) {
        const int int8 = tl_word_bit(row_words, g) == TL_INT8;
        const int64_t cells = tl_cells_before(grid, &row, tl_group_keys(grid, g).last + 1);
        tl_share_add(&coverage->groups, int8, 1);
        tl_share_add(&coverage->tiles, int8, tl_group_tiles(grid, &row, g));
        tl_share_add(&coverage->cells, int8, cells - counted);
        counted = cells;
    }
}

/* ---- writing (A5) */

/* Nearest integer, ties to even; 0 <= x < 2^63. */
TL_INLINE int64_t tl_round_even(double x)
{
    const int64_t whole = (int64_t)x;
    const double rest = x - (double)whole;
    return whole + (rest > 0.5 || (rest == 0.5 && whole % 2 == 1));
}

/* Row m: INT8 in all legal groups but its HIGH ones. Of a map that draws: 0. */
TL_SHARED void tl_map_write_row(const tl_map *map, int64_t m)
{
    const tl_grid_row row = tl_grid_row_at(&map->grid, m);
    uint64_t *words = tl_map_row(map, m);
    for (int64_t w = 0; w < map->words_per_row; w++) words[w] = 0;
    for (int64_t g = row.legal.first; g <= row.legal.last && !map->draws; g++)
        if (!tl_layout_high(&map->layout, &map->grid, &row, g)) tl_map_flip(words, g);
}

/* Makes g HIGH if it is legal and still INT8; returns how many groups that were. */
TL_INLINE int64_t tl_map_keep_high(uint64_t *words, const tl_grid_row *row, int64_t g)
{
    if (!tl_range_has(row->legal, g) || tl_word_bit(words, g) == TL_HIGH) return 0;
    tl_map_flip(words, g);
    return 1;
}

/* row_rand: round((1 - coverage) n_m) groups of each row HIGH, drawn without replacement. bigbird: the same number, the
 * diagonal and the first group before any drawn one. One random stream, rows ascending (D6). All words are 0 before. */
TL_SHARED void tl_map_draw(const tl_map *map, tl_random *random)
{
    tl_random_seed(random, map->seed);
    for (int64_t m = 0; m < map->grid.rows; m++) {
        const tl_grid_row row = tl_grid_row_at(&map->grid, m);
        uint64_t *words = tl_map_row(map, m);
        int64_t high = tl_round_even((1 - map->coverage) * (double)tl_range_length(row.legal)), n = 0;
        for (int64_t g = row.legal.first; g <= row.legal.last; g++) tl_map_flip(words, g);
        if (map->kind == TLAMP_LAYOUT_BIGBIRD && high > 0) high -= tl_map_keep_high(words, &row, row.diagonal);
        if (map->kind == TLAMP_LAYOUT_BIGBIRD && high > 0) high -= tl_map_keep_high(words, &row, row.legal.first);
        for (int64_t g = row.legal.first; g <= row.legal.last; g++)
            if (tl_word_bit(words, g) == TL_INT8) map->scratch[n++] = g;
        for (int64_t i = 0; i < high; i++) tl_map_flip(words, tl_random_step(random, map->scratch, n, i));
    }
}

TL_INLINE int64_t tl_map_distance(int64_t a, int64_t b) { return a > b ? a - b : b - a; }

/* Lists the legal cells with that bit, row by row, and returns how many. A cell is m * T_mask + g. */
TL_SHARED int64_t tl_map_list_cells(const tl_map *map, int bit)
{
    int64_t n = 0;
    for (int64_t m = 0; m < map->grid.rows; m++) {
        const tl_grid_row row = tl_grid_row_at(&map->grid, m);
        for (int64_t g = row.legal.first; g <= row.legal.last; g++)
            if (tl_word_bit(tl_map_row(map, m), g) == bit) map->scratch[n++] = m * map->grid.groups + g;
    }
    return n;
}

/* Flips single bits in random order, each only where that brings the tile-weighted coverage no further from the wanted
 * one (S2). tiles: those of the map as it is. */
TL_SHARED void tl_map_retarget(const tl_map *map, tl_share tiles, tl_random *random)
{
    const int64_t wanted = tl_round_even(map->coverage * (double)tiles.legal);
    const int add = tiles.int8 < wanted;
    const int64_t n = tiles.int8 == wanted ? 0 : tl_map_list_cells(map, add ? TL_HIGH : TL_INT8);
    tl_random_seed(random, map->seed);
    for (int64_t i = 0, now = tiles.int8; i < n && now != wanted; i++) {
        const int64_t cell = tl_random_step(random, map->scratch, n, i);
        const int64_t m = cell / map->grid.groups, g = cell % map->grid.groups;
        const tl_grid_row row = tl_grid_row_at(&map->grid, m);
        const int64_t weight = tl_group_tiles(&map->grid, &row, g), next = add ? now + weight : now - weight;
        if (tl_map_distance(wanted, next) <= tl_map_distance(wanted, now)) {
            tl_map_flip(tl_map_row(map, m), g);
            now = next;
        }
    }
}

#endif
