/* Claims about the library's own speed, as ratios of times. */
#ifndef TL_BENCH_CLAIMS_H
#define TL_BENCH_CLAIMS_H

#include "runner.h"

/* Rate of runner a over that of runner b: by the time of the same work, or of as many pairs as each sees. */
typedef struct ratio {
    int a, b;
    bool at_least;    /* value >= target, or <= */
    bool by_policy;   /* how a table tells them apart: by policy, or by problem */
    bool by_time;     /* value is a's time over b's; else a's rate over b's */
    double target;    /* what is claimed */
    double tolerance; /* --check fails beyond it */
    double value;     /* NaN: one of them does not run */
} ratio;

void ratio_compute(ratio *r, const runner *runners);
bool ratio_is_missed(const ratio *r);
bool ratio_is_beyond(const ratio *r);

enum { MOST_RUNNERS = 24, MOST_RATIOS = 24 };

typedef struct claim {
    char title[120];
    int num_runners, num_ratios;
    runner *runners;
    ratio *ratios;
} claim;

/* The index-th of its kind, valid until the next; 0 where there are no more. */
int claim_routed(claim *c, int index, bool quick);
int claim_cliff(claim *c, int index, bool quick);
int claim_causal(claim *c, int index, bool quick);

#endif
