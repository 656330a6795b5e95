/* An execution as kernels see it, made from the plan and the call's tensors. */
#ifndef TL_SCHEDULE_H
#define TL_SCHEDULE_H

#include "plan.h"
#include "work.h"

tl_call tl_make_call(const tlamp_plan *plan, const tlamp_tensors *tensors);

/* Fills sequences [batch]; the prepared areas and the numbers of their work come with the waves. */
void tl_make_sequences(tl_sequence *sequences, const tlamp_plan *plan, const tlamp_tensors *tensors);

/* The wave that starts at sequence `first`: as many as fit into `prepared`, where the keys of one longest sequence fit. Returns
 * the sequence after its last. */
int64_t tl_make_wave(tl_wave *wave, const tlamp_plan *plan, const tl_call *call, tl_sequence *sequences, int64_t first,
                     unsigned char *prepared);

#endif
