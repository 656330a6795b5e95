/* One input, attended to under any precision policy: what the tables and the tests of their orderings have in common.
 *
 * Problems, data and policies are those of the command-line tool (src/cli), so that `tilelamp run PROBLEM --policy POLICY`
 * gives every figure again. The library is used through its public header only. */
#ifndef TL_TABLES_EXPERIMENT_H
#define TL_TABLES_EXPERIMENT_H

#include <stdint.h>

#include "cli/data.h"
#include "cli/fault.h"
#include "cli/routing.h"

/* One sequence, causal, as many queries as keys. */
typedef struct experiment {
    input in;
    char name[64];   /* the problem string, or the file's name without folders and ending */
    int32_t threads; /* 0: OpenMP's default */
} experiment;

/* N(0,1) in f16, one head. */
int experiment_random(experiment *e, int64_t length, int64_t dim, uint64_t seed, fault *f);
/* The q, k and v of a safetensors file. */
int experiment_file(experiment *e, const char *path, fault *f);
void experiment_close(experiment *e);

/* Keeps one KV head and its query heads. */
void experiment_keep_head(experiment *e, int32_t kv_head);
/* Keeps the first `length` tokens, whose outputs stay what they were, since the mask is causal. */
void experiment_keep_tokens(experiment *e, int64_t length);

/* Elements of O: rows x query heads x head_dim_v, in that order. */
int64_t experiment_elements(const experiment *e);

/* O under a policy string, rounded to o_dtype and widened to float. seed: of random layouts, as `tilelamp run --seed`. */
int experiment_run(const experiment *e, const char *policy, uint32_t seed, tlamp_dtype o_dtype, float *o, fault *f);

/* The routing map of such a run; routing_free is due in any case. */
int experiment_map(const experiment *e, const char *policy, uint32_t seed, policy_spec *spec, routing *map, fault *f);

/* tlamp_reference on rows first .. first + count - 1, which see the keys before first + count: o [count][query heads]
 * [head_dim_v] and weights [query heads][count][first + count]. Either may be NULL. */
int experiment_reference(const experiment *e, int64_t first, int64_t count, double *o, double *weights, fault *f);

/* Absolute differences between outputs. */
typedef struct difference {
    double max, sum;
    int64_t count;
} difference;
void difference_add(difference *d, const float *a, const float *b, int64_t count);
double difference_mean(const difference *d);

/* Of o from tlamp_reference, in `blocks` blocks of 8 rows that are spread over the sequence; 0: in every row. */
int difference_add_exact(difference *d, const experiment *e, const float *o, int64_t blocks, fault *f);

#endif
