/* One attention, run in every way that must give the same bits and compared with tlamp_reference within its bounds.
 *
 * A trial is made from a problem string and a policy string (src/cli/problem.h, src/cli/policy.h). Its inputs may be changed
 * until trial_verify; then the library gets copies of them that end at a page it may not touch, and outputs and a workspace
 * with canaries around them. */
#ifndef TL_TEST_TRIAL_H
#define TL_TEST_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/data.h"
#include "cli/policy.h"
#include "guard.h"

enum { TRIAL_COPIES = 10 };

/* What the library wrote, as bits: o [row][query head][column], lse [query head][row]; rows as tlamp_reference counts. */
typedef struct trial_result {
    uint32_t *o, *lse;
} trial_result;

typedef struct trial {
    input in; /* in.problem, in.tensors: what the trial runs; change them as you like */
    policy_spec policy;
    int32_t threads; /* 7: most threads to run with */
    int32_t device;  /* -1: the host. Otherwise tlamp_execute runs there, with both kinds of memory */
    bool exact;      /* the device must give the host's bits: it runs the scalar kernels, and so does the host */
    uint64_t *words; /* as in.tensors.words says */
    int64_t num_words;
    int32_t *groups;
    guarded copies[TRIAL_COPIES], o_memory, lse_memory, workspace;
    tlamp_tensors guarded_tensors;         /* in.tensors, in guarded memory */
    trial_result result;                   /* of the first run */
    double *o, *lse, *o_bound, *lse_bound; /* of the reference */
} trial;

/* How the trial went. */
typedef struct verdict {
    bool passed;
    char why[240];                /* the first failure, one line */
    double o_ratio, lse_ratio;    /* largest error / bound */
    int64_t elements, unpromised; /* of o: all, and those whose bound is infinite */
    const char *kernel;
    bool unsupported; /* the device does not run it, and said so; passed */
} verdict;

/* Ends the program where a string is malformed: that is a mistake of the test. */
void trial_create(trial *t, const char *problem, const char *policy);
void trial_free(trial *t);

/* Everything: the reference, threads 1 (twice), 2, 3, 7 and a parallel_for, counters, canaries. On a device: the reference, host
 * and device memory, a second time, counters, canaries. */
verdict trial_verify(trial *t);

/* One call of tlamp_execute on guarded memory with `threads` threads, into *to (trial_new_result); false with the reason in
 * *v. */
bool trial_run(trial *t, int32_t threads, trial_result *to, verdict *v);

/* Calls tlamp_attention; true if it answers `status` about `field` (NULL: any) and leaves the outputs untouched. */
bool trial_refused(trial *t, tlamp_status status, const char *field, char why[240]);

/* Elements of the inputs. j: key; c: column. */
void trial_set_q(trial *t, int64_t b, int64_t h, int64_t i, int64_t c, double x);
void trial_set_k(trial *t, int64_t b, int64_t h, int64_t j, int64_t c, double x);
void trial_set_v(trial *t, int64_t b, int64_t h, int64_t j, int64_t c, double x);
void trial_set_mask(trial *t, int64_t b, int64_t h, int64_t i, int64_t j, bool visible);
void trial_set_bias(trial *t, int64_t b, int64_t h, int64_t i, int64_t j, double x);

/* Elements of trial_verify's result, and how far they may be from the truth. */
double trial_o(const trial *t, int64_t b, int64_t h, int64_t i, int64_t c);
double trial_lse(const trial *t, int64_t b, int64_t h, int64_t i);
double trial_o_bound(const trial *t, int64_t b, int64_t h, int64_t i, int64_t c);
double trial_lse_bound(const trial *t, int64_t b, int64_t h, int64_t i);

size_t trial_o_count(const trial *t);
size_t trial_lse_count(const trial *t);
bool trial_same_bits(const trial *t, const trial_result *a, const trial_result *b);
trial_result trial_new_result(const trial *t);
void trial_free_result(trial_result *r);

#endif
