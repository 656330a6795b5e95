/* LampAttention on one input: how far its result is from the exact one, and what it recomputed on the way.
 *
 * Problems and policies are those of the command-line tool (src/cli), so that `tilelamp run PROBLEM --policy POLICY` gives
 * every figure again. The library is used through its public header only. */
#ifndef TL_LAMP_TRIAL_H
#define TL_LAMP_TRIAL_H

#include <stdint.h>

#include "tables/experiment.h"

/* An input and its exact result. */
typedef struct lamp_input {
    experiment e;
    double *exact;     /* o of tlamp_reference: [rows][query heads][head_dim_v] */
    double mean_exact; /* of its magnitudes */
} lamp_input;

/* `what`: a safetensors file or a problem string; dense. */
int lamp_input_open(lamp_input *in, const char *what, int32_t threads, fault *f);
void lamp_input_close(lamp_input *in);

/* Keeps the first KV head and its query heads, and the first `length` tokens. Before lamp_input_solve. */
void lamp_input_cut(lamp_input *in, int64_t length);

/* Computes the exact result, in double. */
int lamp_input_solve(lamp_input *in, fault *f);

/* What became of one policy. */
typedef struct trial {
    double rel_mae, max; /* mean |o - exact| / mean |exact|; largest |o - exact| */
    tlamp_counters counters;
} trial;

int lamp_try(trial *t, const lamp_input *in, const char *policy, fault *f);

/* Shares, 0 to 1: of the tiles those with n recomputed sub-blocks (n = 2: two or more); of the legal sub-blocks those that
 * are recomputed at all, by stage one and by stage two. */
double trial_tiles(const trial *t, int n);
double trial_recomputed(const trial *t);
double trial_stage_one(const trial *t);
double trial_stage_two(const trial *t);

#endif
