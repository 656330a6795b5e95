/* The one place that decides which kernel runs. */
#ifndef TL_DISPATCH_H
#define TL_DISPATCH_H

#include "kernel.h"

/* The best available kernel for a checked problem, or NULL. */
const tl_kernel *tl_find_kernel(const tlamp_problem *problem);

/* The same, or why there is none. Ends tlamp_set_max_isa's time. */
tlamp_status tl_choose_kernel(const tl_kernel **kernel, const tlamp_problem *problem, tlamp_error *err);

/* TLAMP_MAX_ISA or tlamp_set_max_isa allows plain C alone: on a device the portable path. */
int tl_is_scalar_only(void);

#endif
