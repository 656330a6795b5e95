/* What went wrong, as the user reads it: one line "what is wrong: what to do", and the exit code it deserves. */
#ifndef TL_CLI_FAULT_H
#define TL_CLI_FAULT_H

#include "tilelamp/tilelamp.h"

/* Exit codes of the command; functions that can fail return one of them and describe the failure in a fault. */
enum {
    DONE = 0,
    CHECK_FAILED = 1, /* a result is worse than its bound */
    BAD_INPUT = 2,    /* usage, files, problem and policy strings */
    UNAVAILABLE = 3   /* not in this version, or not on this machine */
};

typedef struct fault {
    int code;
    char text[1200];
} fault;

/* Both fill *f and return its code. */
#if defined __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
int fault_set(fault *f, int code, const char *format, ...);
int fault_from_library(fault *f, const tlamp_error *err);
int fault_no_memory(fault *f);

/* Puts a context before the text, e.g. the name of the file that was read; keeps the code. */
int fault_prefix(fault *f, const char *context);

#endif
