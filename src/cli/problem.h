/* The problem string: one token per fact, in any order, e.g. "b1 hq9 hk3 q1024 d64 f16 causal seed:7 data:normal".
 *
 * No part of this file or of data.h depends on the command line, so that tests can use them too. */
#ifndef TL_CLI_PROBLEM_H
#define TL_CLI_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "tilelamp/tilelamp.h"

enum { PROBLEM_MAX_LIST = 1024 }; /* most entries of used:, varlen: and sinks: */

typedef enum { LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD, LAYOUT_FUSED, NUM_LAYOUTS } problem_layout;

/* Boolean masks. Each is the same for every head. */
typedef enum {
    PATTERN_NONE,
    PATTERN_RANDOM,   /* every key visible with probability 3/4 */
    PATTERN_ROWEMPTY, /* random, and the first, middle and last row see nothing */
    PATTERN_PADDING,  /* keys padded on the right: sequence b sees the first (1 - (b % 4 + 1) / 8) of them */
    PATTERN_BLOCK,    /* four documents side by side; a row sees the keys of its own */
    NUM_PATTERNS
} problem_pattern;

typedef enum { CACHE_NONE, CACHE_INT8, CACHE_F16, NUM_CACHES } problem_cache;

/* What the tensors hold (n is N(0,1), independent in every element; v is n unless said otherwise). */
typedef enum {
    DATA_NORMAL,     /* q, k: n */
    DATA_QKNORM,     /* q, k: n, each row scaled to RMS 1, then a fixed gain per channel (log-normal, sigma 1/2) */
    DATA_OUTLIER,    /* q, k: n, and every 32nd channel 10 times as large */
    DATA_ONEHOT,     /* q = e, k[j] = j e with e the last unit vector */
    DATA_RAMP,       /* q = k = 0, v[j] = j */
    DATA_ZEROS,      /* everything 0 */
    DATA_MINUS5,     /* every logit is -5, v[j] = j */
    DATA_PM127,      /* q, k: -127 or 127 */
    DATA_BIGCHANNEL, /* q, k: n, and 1000 added to one channel of k */
    DATA_SPREAD,     /* the middle key's logit is 1e30, all others -1e30 (f16: as far as it reaches) */
    DATA_SUBNORMAL,  /* q, k, v: n times a subnormal number of the dtype */
    DATA_NANHIDDEN,  /* n, and NaN in the keys and values that no row of their sequence sees */
    NUM_DATA,
    DATA_FILE = NUM_DATA /* read from a file: no token says so */
} problem_data;

/* A problem string, parsed. Counts that the string leaves out are filled in. */
typedef struct problem_spec {
    int64_t batch, heads_q, heads_k, lq, lk, d, dv; /* with varlen, lq and lk are the maxima */
    tlamp_dtype q_dtype, k_dtype, v_dtype, o_dtype;
    tlamp_mask_kind mask;
    int64_t window_left, window_right;
    problem_pattern pattern;
    bool has_bias, has_alibi;
    tlamp_dtype bias_dtype;
    float softcap, scale; /* 0: off, 1 / sqrt(d) */
    int num_sinks;        /* 0, 1 for all heads, or heads_q */
    float sinks[PROBLEM_MAX_LIST];
    int64_t num_used; /* 0, or batch */
    int64_t used[PROBLEM_MAX_LIST];
    bool varlen;
    int64_t num_lengths; /* varlen: batch */
    int64_t lengths_q[PROBLEM_MAX_LIST], lengths_k[PROBLEM_MAX_LIST];
    problem_layout layout;
    int64_t pad;     /* elements between the rows of a tensor, NaN in inputs */
    int32_t splits;  /* 0: not given; SPLITS_AUTO */
    int64_t threads; /* 0: not given */
    problem_cache cache;
    problem_data data;
    uint64_t seed;
} problem_spec;

/* Fills *spec; DONE, or BAD_INPUT with one line in *f. */
int problem_parse(problem_spec *spec, const char *text, fault *f);

/* The canonical string, which problem_parse turns back into the same spec. From malloc; NULL where memory is out. */
char *problem_print(const problem_spec *spec);

/* Lengths of sequence b: queries, keys, and keys used. */
int64_t problem_length_q(const problem_spec *spec, int64_t b);
int64_t problem_length_k(const problem_spec *spec, int64_t b);
int64_t problem_used_k(const problem_spec *spec, int64_t b);

/* Keys that row i of sequence b sees by causal kind, window and lengths: *begin <= j < *end. */
void problem_visible_keys(const problem_spec *spec, int64_t b, int64_t i, int64_t *begin, int64_t *end);

/* Number of (query head, row, visible key) triples. */
double problem_visible_cells(const problem_spec *spec);

/* The tokens and what they mean, for --help. */
extern const char problem_help[];

#endif
