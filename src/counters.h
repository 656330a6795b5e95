/* The counts of tlamp_counters that follow from geometry and routing words alone. */
#ifndef TL_COUNTERS_H
#define TL_COUNTERS_H

#include "kernel.h"

/* Adds one sequence's groups, tiles and cells. */
void tl_count_sequence(const tl_call *call, const tl_sequence *seq, tlamp_counters *counters);

#endif
