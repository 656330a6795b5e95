/* Coverage of a routing map (ALGORITHMS A4) and the parameters that bring a layout closest to a wanted one (A5). */
#ifndef TL_POLICY_COVERAGE_H
#define TL_POLICY_COVERAGE_H

#include "core/layout_map.h"

/* The share as a number; 0 where nothing is legal. */
double tl_share_value(tl_share share);

/* Counts a map. Illegal bits are ignored. O(bits), whatever the block sizes. */
tl_coverage tl_coverage_measure(const tl_grid *grid, const uint64_t *words, int64_t words_per_row);

/* The number of legal groups of the whole map. */
int64_t tl_legal_groups(const tl_grid *grid);

/* The layout of this kind whose group coverage is closest to `coverage`. O(T_m log T_mask) for band, global and
 * align_sparse, O(T_m T_mask log T_mask) for sptrans_scaled. Kinds without parameters come back with zeros. */
tl_layout tl_layout_solve(const tl_grid *grid, tlamp_layout_kind kind, double coverage);

#endif
