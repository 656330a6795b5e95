/* The paper's tables, computed again: https://arxiv.org/abs/2608.17336. Each function computes one and hands its grids to
 * tables_publish; exit codes are those of the command-line tool. */
#ifndef TL_TABLES_TABLES_H
#define TL_TABLES_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "experiment.h"
#include "grid.h"

typedef struct options {
    int seeds;
    int64_t length; /* of random input; 0: as the table says */
    int32_t threads;
    bool quick;
    char *const *files; /* captured q, k and v */
    int num_files;
    json_t *output; /* an array that collects the grids; NULL: print them */
} options;

int table_3(const options *o, fault *f);  /* error by share of INT8 and length */
int table_5(const options *o, fault *f);  /* bytes */
int table_19(const options *o, fault *f); /* error of every layout */
int table_20(const options *o, fault *f); /* effect of a running state in f16 */
int table_23(const options *o, fault *f); /* heavy hitters in INT8 */

int tables_publish(const options *o, const grid *g, fault *f);

/* Input number `source`: 0 is random, 1 .. num_files are the files. variant: the seed of random data, from 1 on. Under
 * --quick a file gives its first KV head. */
int tables_open(experiment *e, const options *o, int source, int64_t length, int variant, fault *f);
enum { RANDOM = 0, RANDOM_DIM = 128, RANDOM_LENGTH = 1024, RANDOM_LENGTH_QUICK = 512 };
int64_t tables_random_length(const options *o);

/* "random", or the last part of the file's name: "layer02" of smollm2-135m-kjv-layer02.safetensors. */
typedef struct short_name {
    char text[24];
} short_name;
short_name tables_source_name(const options *o, int source);

/* Are the policy's maps drawn by their seed? Others are always built with the published seed, 42. */
bool tables_is_drawn(const char *policy);
uint32_t tables_map_seed(const char *policy, int variant);

#endif
