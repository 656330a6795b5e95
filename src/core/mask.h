/* Which keys a row sees by causal kind, window and length: always one interval, whose ends never move backwards from one
 * row to the next. Boolean masks and bias are not geometry; a vocabulary applies them to single scores. */
#ifndef TL_CORE_MASK_H
#define TL_CORE_MASK_H

#include "port.h"

/* One sequence. Row i sees the keys j in [0, lk) with -left <= j - (i + diagonal) <= right; a negative limit is none. */
typedef struct {
    int64_t lq, lk;
    int64_t diagonal; /* lk - lq: bottom-right alignment; 0: top-left */
    int64_t left, right;
} tl_mask_geometry;

TL_INLINE tl_mask_geometry tl_mask_make(int64_t lq, int64_t lk, int causal, int top_left, int64_t left, int64_t right)
{
    const int64_t all = lq + lk; /* a wider window is none; and sums below cannot overflow */
    tl_mask_geometry g = {lq, lk, top_left ? 0 : lk - lq, left, right};
    if (causal && (g.right < 0 || g.right > 0)) g.right = 0;
    if (g.left > all) g.left = -1;
    if (g.right > all) g.right = -1;
    return g;
}

TL_INLINE int64_t tl_key_begin(const tl_mask_geometry *g, int64_t row)
{
    return g->left < 0 ? 0 : tl_clamp64(row + g->diagonal - g->left, 0, g->lk);
}

TL_INLINE int64_t tl_key_end(const tl_mask_geometry *g, int64_t row)
{
    return g->right < 0 ? g->lk : tl_clamp64(row + g->diagonal + g->right + 1, 0, g->lk);
}

#endif
