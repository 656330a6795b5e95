/* Sweeps as tables. */
#ifndef TL_LAMP_REPORT_H
#define TL_LAMP_REPORT_H

#include <jansson.h>

#include "sweep.h"

/* Prints the tables of one sweep, or appends them to `output` where that is not NULL: one for each b_q, and the cost
 * model. */
int report_sweep(const sweep *s, json_t *output, fault *f);

#endif
