/* How measurements look: JSON objects and a table. */
#ifndef TL_CLI_RESULT_H
#define TL_CLI_RESULT_H

#include <jansson.h>

#include "measure.h"

/* The object of `tilelamp run --json`. */
json_t *result_json(const subject *s, const measurement *m);

/* The table of `tilelamp compare`, with a title. */
void result_print_table(const subject *s, const measurement *results, int count);

/* What the input is, in one line; from malloc. */
char *subject_title(const subject *s);

/* Shares of INT8, 0 to 1; NaN where there is nothing to share. */
typedef struct shares {
    double group, tile, cell;
} shares;
shares result_shares(const measurement *m);

/* The largest error over its bound; "none" where nothing was bounded. */
const char *result_ratio(const measurement *m, char text[16]);

/* CHECK_FAILED with one line where a check failed, else DONE. */
int result_verdict(const subject *s, const measurement *results, int count, fault *f);

#endif
