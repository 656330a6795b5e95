/* The running state of a row (ALGORITHMS A1, in log2 units): a reference m, the sum l of 2^(s - m), and O scaled alike.
 * m is at most the running maximum and at least the maximum minus TL_LAZY, so that 2^(s - m) <= 2^TL_LAZY. */
#ifndef TL_CORE_ONLINE_SOFTMAX_H
#define TL_CORE_ONLINE_SOFTMAX_H

#include "exp2.h"

#define TL_NEVER (-TL_INF) /* the reference of a row that has seen nothing */

/* What is subtracted from the scores of a row: 0 while nothing was seen, since -Inf - -Inf is NaN. */
TL_INLINE float tl_reference(float m) { return m == TL_NEVER ? 0.f : m; }

/* Does this row's reference move to top? Never for a row with no legal score (top = -Inf). */
TL_INLINE int tl_moves(float m, float top, float lazy) { return top > m + lazy; }

/* Logits in log2 units would overflow where |s| is above FLT_MAX / log2(e): a finite score stays finite there (an additive
 * mask of -FLT_MAX is a number, CASES B07). Inf and NaN are kept. */
TL_INLINE float tl_limit_logit(float s)
{
    const float limit = 2.35e38f, limited = s > limit ? limit : s < -limit ? -limit : s;
    return tl_is_finite(s) ? limited : s;
}

TL_INLINE float tl_log2_logit(float s) { return tl_limit_logit(s) * TL_LOG2E; }

#endif
