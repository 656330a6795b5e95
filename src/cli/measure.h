/* Runs policies on one input: their errors against the exact result, their bounds, and their times. */
#ifndef TL_CLI_MEASURE_H
#define TL_CLI_MEASURE_H

#include "cli.h"
#include "data.h"
#include "policy.h"
#include "routing.h"
#include "samples.h"

/* An input and its exact result. */
typedef struct subject {
    input in;
    const char *path; /* the file it comes from; NULL: generated */
    char *source;     /* what the file says about itself, or NULL */
    char *problem;    /* the canonical problem string */
    double *o, *lse;  /* exact, as tlamp_reference lays them out */
    double *o_bound, *lse_bound;
    int64_t row_step; /* of the exact result and of the check (tlamp_reference_outputs); 0: every row */
} subject;

/* What became of one policy. */
typedef struct measurement {
    policy_spec policy;
    routing routes; /* of policies with words */
    const char *kernel;
    tlamp_pv pv; /* of the kernel */
    samples times;
    double ms, gflops; /* at the median */
    double max_abs_error, mean_abs_error, rel_l2_error, max_lse_error;
    double max_error_to_bound; /* above 1: a check failed; NaN where nothing was bounded */
    tlamp_counters counters;
    double speedup; /* over HIGH; NaN where that was not measured */
    bool failed;
    bool unavailable;    /* this library or this machine does not do it: nothing else is known */
    bool invalid;        /* nor does any: it is no policy, or none for this problem */
    char complaint[300]; /* what failed, or what is not there */
} measurement;

/* The input of a problem string, or of a file where path is given; with --seed and --threads applied. */
int subject_create(subject *s, const char *problem, const char *path, const common_options *options, fault *f);
void subject_free(subject *s);
/* Is that row of that head in the exact result? */
bool subject_has_row(const subject *s, int64_t row, int64_t head);
/* Frees the tensors and the exact result, and keeps what a report says about the subject. */
void subject_drop_data(subject *s);

/* Measures policies[0..count): computes the exact result, checks every policy against it and its bounds, then times them
 * in turn. A failed check is in the measurement and no fault. results must be freed with measurements_free in any case. */
int measure(subject *s, const policy_spec *policies, int count, measurement *results, const common_options *options,
            progress *bar, fault *f);
/* Steps that measure() reports to the bar. */
int measure_steps(int count);

/* The same in steps, for those who time other things in between. results stay the caller's. */
typedef struct measuring measuring;
/* Plans every policy. skip_unavailable: what this library or this machine does not do, or is wrong, is marked so and left
 * out; otherwise it is a fault. On failure nothing is left to close. */
int measuring_open(measuring **m, subject *s, const policy_spec *policies, int count, measurement *results,
                   const common_options *options, bool skip_unavailable, progress *bar, fault *f);
/* Computes the exact result and checks every policy; reports one step for each policy that runs. */
int measuring_check(measuring *m, fault *f);
/* Times every policy once. */
int measuring_round(measuring *m, fault *f);
/* Executes one policy once, timed by nobody here; on as many threads as the others. */
int measuring_call(measuring *m, const measurement *which, const tlamp_exec *exec, fault *f);
/* Fills in what follows from the times. NULL is fine. */
void measuring_close(measuring *m);

void measurements_free(measurement *results, int count);

#endif
