/* The one place that decides which kernel runs. */
#ifndef TL_DISPATCH_H
#define TL_DISPATCH_H

#include "kernel.h"

/* What a machine can run, and how high up the ladder of instruction sets it may. */
typedef struct {
    uint32_t features; /* TL_CPU_... */
    int rung;          /* kernels of this very instruction set may be slow ones: it was named */
} tl_machine;

/* This one, as TLAMP_MAX_ISA and tlamp_set_max_isa have it. */
tl_machine tl_this_machine(void);
/* Another; isa NULL: any. For tests. */
tl_machine tl_machine_of(uint32_t features, const char *isa);

/* The machine's best kernel for a checked problem, or NULL, and the arithmetic of P V that it uses: what the policy says, AUTO
 * resolved. */
const tl_kernel *tl_find_kernel(tlamp_pv *pv, const tl_machine *machine, const tlamp_problem *problem);

/* The same on this machine, or why there is none. Ends tlamp_set_max_isa's time. */
tlamp_status tl_choose_kernel(const tl_kernel **kernel, tlamp_pv *pv, const tlamp_problem *problem, tlamp_error *err);

/* TLAMP_MAX_ISA or tlamp_set_max_isa allows plain C alone: on a device the portable path. */
int tl_is_scalar_only(void);

#endif
