/* The policy string: a base, then modifiers separated by spaces, e.g. "band:0.5 smooth-k tile=64x64". */
#ifndef TL_CLI_POLICY_H
#define TL_CLI_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "tilelamp/tilelamp.h"

enum { NO_LAYOUT = -1, POLICY_MAX_TEXT = 512 };

typedef struct policy_spec {
    char text[POLICY_MAX_TEXT]; /* the string with single spaces */
    char wrong[300];            /* why it is no policy, where that is kept (shapes.h); else "" */
    tlamp_policy policy;
    bool hadamard_if_possible; /* rotate where the head dimension is a power of two */
    bool has_tile;             /* tile= was given */

    /* Where routing words come from: ROUTED, and LAMP with gate= */
    tlamp_layout_kind layout; /* NO_LAYOUT: words_file, if any */
    double coverage;
    bool retarget, has_seed;
    uint32_t seed; /* of retarget= */
    int32_t group; /* key tiles per group; 0: automatic */
    char words_file[POLICY_MAX_TEXT];

    int32_t splits; /* 0: as the problem says; SPLITS_AUTO */
} policy_spec;

/* Fills *spec; DONE, BAD_INPUT for what is no policy, UNAVAILABLE for what this version cannot even say. */
int policy_parse(policy_spec *spec, const char *text, fault *f);

bool policy_has_words(const policy_spec *spec);

/* "f32", ... */
const char *policy_pv_name(tlamp_pv pv);

/* "band", 0.25 -> "band:0.25". */
int policy_of_layout(policy_spec *spec, tlamp_layout_kind layout, double coverage, fault *f);

/* The layout of that name; NO_LAYOUT where there is none. */
tlamp_layout_kind layout_of_name(const char *name);
bool layout_takes_coverage(tlamp_layout_kind layout);

/* The bases and modifiers and what they mean, for --help. */
extern const char policy_help[];

#endif
