/* The counts of tlamp_counters. */
#ifndef TL_COUNTERS_H
#define TL_COUNTERS_H

#include "kernel.h"

/* Adds one sequence's groups, tiles and cells, which follow from geometry and routing words alone. */
void tl_count_sequence(const tl_call *call, const tl_sequence *seq, tlamp_counters *counters);

/* Adds what one worker's kernels counted. */
void tl_count_worker(tlamp_counters *counters, const tl_worker_counters *worker);

/* As much of them as the caller's struct has room for; its struct_size stays. */
void tl_give_counters(tlamp_counters *to, const tlamp_counters *counters);

#endif
