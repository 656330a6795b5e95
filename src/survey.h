/* What must be known of all keys of a sequence before they are quantised: which of them some row sees, and their mean. */
#ifndef TL_SURVEY_H
#define TL_SURVEY_H

#include "kernel.h"

/* Unit `unit` of one KV head: fills seen, unit_sums and unit_counts, where the prepared area has them. scratch: one row of
 * head_dim_qk floats. */
void tl_survey_unit(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                    int64_t unit, float *scratch);

/* After all units: the mean. */
void tl_survey_mean(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared);

#endif
