/* The counters of a trial from their definitions in the public header, one (row, key) pair at a time. */
#ifndef TL_TEST_COUNTING_H
#define TL_TEST_COUNTING_H

#include "trial.h"

/* groups, tiles and cells; the rest is 0. */
tlamp_counters count_by_hand(const trial *t);

#endif
