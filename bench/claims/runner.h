/* One policy on one problem, ready to be timed in turns with others. */
#ifndef TL_BENCH_RUNNER_H
#define TL_BENCH_RUNNER_H

#include "cli/measure.h"

typedef struct runner {
    char problem[96], policy[80];
    subject subject;
    measurement *result; /* NULL: not open */
    measuring *measuring;
    tlamp_exec exec;
    samples times;
    double flop; /* 2 (d + dv) for each pair that is seen */
    int repeats; /* in a round; 0: not known yet */
} runner;

/* Checks the result. What this library or machine does not do stays without times. */
int runner_open(runner *r, const common_options *options, fault *f);
/* On one thread: by the processor's time. */
int runner_time(runner *r, fault *f);
void runner_close(runner *r);
const char *runner_name(const runner *r, bool by_policy);

#endif
