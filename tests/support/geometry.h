/* The grid of a routing map in one expression. */
#ifndef TL_TEST_GEOMETRY_H
#define TL_TEST_GEOMETRY_H

#include "tilelamp/tilelamp.h"

static inline tlamp_geometry geometry(int64_t lq, int64_t lk, int32_t block_m, int32_t block_n, int32_t group,
                                      tlamp_mask_kind mask)
{
    tlamp_geometry g;
    tlamp_geometry_init(&g, sizeof g);
    g.seqlen_q = lq;
    g.seqlen_k = lk;
    g.block_m = block_m;
    g.block_n = block_n;
    g.group = group;
    g.mask = mask;
    return g;
}

#endif
