/* Routing words for an input: built from a layout for each sequence, or read from a file. */
#ifndef TL_CLI_ROUTING_H
#define TL_CLI_ROUTING_H

#include "data.h"
#include "mapfile.h"
#include "policy.h"

typedef struct routing {
    routing_map map; /* of words:FILE */
    uint64_t *words; /* [rows of all sequences][words_per_row] */
    int32_t words_per_row;
    int64_t stride_batch;       /* in words; 0: all sequences share one map */
    int32_t *groups;            /* per sequence; NULL: automatic */
    tlamp_geometry geometry;    /* of the first sequence */
    tlamp_layout_report report; /* of the first sequence */
} routing;

/* Reads the policy's map file, where it has one, and takes tile and group sizes from it. On failure nothing is left to
 * free. */
int routing_open(routing *r, policy_spec *policy, fault *f);

/* Makes the words, for a policy and an input that the library accepts. seed: of random layouts whose policy names none.
 * After a failure routing_free is still due. */
int routing_build(routing *r, const policy_spec *policy, const input *in, uint32_t seed, fault *f);
void routing_free(routing *r);

/* Points the tensors at the words. */
void routing_apply(const routing *r, tlamp_tensors *tensors);

#endif
