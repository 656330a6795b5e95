/* `tilelamp compare --report`: one self-contained HTML page. */
#ifndef TL_CLI_REPORT_H
#define TL_CLI_REPORT_H

#include "measure.h"

enum { REPORT_MAX_DOTS = 200 };

/* One input under all policies; at most REPORT_MAX_DOTS of them are drawn. */
typedef struct comparison {
    subject subject;
    measurement *results;
    int count;
} comparison;

int report_write(const char *path, const comparison *comparisons, int count, const char *command, fault *f);

#endif
