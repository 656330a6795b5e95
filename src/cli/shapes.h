/* Files of shapes to measure. A line that begins in the first column is a problem string; indented lines are policy strings, for
 * the problems that stand together above them; # begins a comment. */
#ifndef TL_CLI_SHAPES_H
#define TL_CLI_SHAPES_H

#include "fault.h"
#include "policy.h"

typedef struct shape {
    char *problem;
    int line;                       /* where it stands */
    int first_policy, num_policies; /* of shapes.policies */
} shape;

typedef struct shapes {
    const char *name; /* the file's, or what is built in: stays the caller's */
    int line;         /* while it is read */
    int count, num_policies;
    shape *list;
    policy_spec *policies; /* `wrong` says why one is none: it is left out */
} shapes;

/* The text is checked: an error is one line "NAME:LINE: ..."; a file without any right policy is one. free is due in any case. */
int shapes_parse(shapes *s, const char *name, const char *text, fault *f);
int shapes_read(shapes *s, const char *path, fault *f);
void shapes_free(shapes *s);

/* Puts "NAME:LINE: " before what is wrong with a shape; keeps the code. */
int shapes_fault(const shapes *s, const shape *which, fault *f);

/* What is built in: the files of bench/shapes. */
extern const char shapes_prefill[], shapes_prefill_quick[], shapes_decode[], shapes_decode_quick[], shapes_quant[],
    shapes_quant_quick[];

#endif
