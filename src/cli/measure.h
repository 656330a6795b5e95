/* Runs policies on one input: their errors against the exact result, their bounds, and their times. */
#ifndef TL_CLI_MEASURE_H
#define TL_CLI_MEASURE_H

#include "cli.h"
#include "data.h"
#include "policy.h"
#include "routing.h"

/* An input and its exact result. */
typedef struct subject {
    input in;
    const char *path; /* the file it comes from; NULL: generated */
    char *source;     /* what the file says about itself, or NULL */
    char *problem;    /* the canonical problem string */
    double *o, *lse;  /* exact, as tlamp_reference lays them out */
    double *o_bound, *lse_bound;
} subject;

/* What became of one policy. */
typedef struct measurement {
    policy_spec policy;
    routing routes; /* of policies with words */
    const char *kernel;
    double ms, gflops;
    double max_abs_error, mean_abs_error, rel_l2_error, max_lse_error;
    double max_error_to_bound; /* above 1: a check failed; NaN where nothing was bounded */
    tlamp_counters counters;
    double speedup; /* over HIGH; NaN where that was not measured */
    bool failed;
    char complaint[300]; /* what failed */
} measurement;

/* The input of a problem string, or of a file where path is given; with --seed and --threads applied. */
int subject_create(subject *s, const char *problem, const char *path, const common_options *options, fault *f);
void subject_free(subject *s);
/* Frees the tensors and the exact result, and keeps what a report says about the subject. */
void subject_drop_data(subject *s);

/* Measures policies[0..count): computes the exact result, checks every policy against it and its bounds, then times them
 * in turn. A failed check is in the measurement and no fault. results must be freed with measurements_free in any case. */
int measure(subject *s, const policy_spec *policies, int count, measurement *results, const common_options *options,
            progress *bar, fault *f);
/* Steps that measure() reports to the bar. */
int measure_steps(int count);
void measurements_free(measurement *results, int count);

#endif
