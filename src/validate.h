/* Checks of what a caller hands in: pure functions, nothing is written but the copy they return. */
#ifndef TL_VALIDATE_H
#define TL_VALIDATE_H

#include "tilelamp/tilelamp.h"

/* Takes the caller's problem and its policy (defaults filled in, sizes made this library's) if they make sense. Whether a
 * kernel runs them is dispatch's business. full->policy points at *policy. */
tlamp_status tl_validate_problem(tlamp_problem *full, tlamp_policy *policy, const tlamp_problem *problem,
                                 tlamp_error *err);

/* Takes the caller's tensors for a checked problem. Everything O(batch) about lengths, and the presence of
 * what is read. */
tlamp_status tl_validate_tensors(tlamp_tensors *full, const tlamp_problem *problem, const tlamp_tensors *tensors,
                                 tlamp_error *err);

tlamp_status tl_validate_exec(tlamp_exec *full, const tlamp_exec *exec, tlamp_error *err);

/* The lengths of sequence b of checked tensors. seqlen_k is the used length. */
typedef struct {
    int64_t q_start, k_start, seqlen_q, seqlen_k;
    int64_t layout_k; /* the key length as laid out: decides the automatic group */
} tl_lengths;
tl_lengths tl_sequence_lengths(const tlamp_problem *problem, const tlamp_tensors *tensors, int64_t b);

#endif
