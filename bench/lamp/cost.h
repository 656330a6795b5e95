/* What the counters would mean on the hardware that the paper has in mind: a model, nothing measured.
 *
 * Registers (ALGORITHMS B5). A warp of WARP_THREADS threads holds the b_q x b_k N_k scores of a tile:
 *   f32      one value in a 32-bit register
 *   safe     two: every sub-block has room for 16 bits
 *   compact  four, and beside them room for one sub-block at 16 bits. A tile with two or more risky sub-blocks is done
 *            again at 16 bits throughout, in turns, in the same registers
 *
 * Exponentials, per exponential that a legal sub-block needs once:
 *   low   looked up for every sub-block that is neither forced nor recomputed by stage one
 *   high  computed for every recomputed sub-block; compact: and for every sub-block of a tile that is done again
 * Assumptions, ours:
 *   - a lookup costs as much as a high exponential but works on a whole register, which holds four 8-bit codes: low = 1/4
 *     in units of a high one (EXP_LOW);
 *   - compact notices too late to save any exponential of the first attempt;
 *   - nothing else is counted: no products, no branches, no decisions. */
#ifndef TL_LAMP_COST_H
#define TL_LAMP_COST_H

#include <stdint.h>

#include "tilelamp/tilelamp.h"

enum { WARP_THREADS = 32 };
#define EXP_LOW 0.25

typedef enum { REGISTERS_F32, REGISTERS_SAFE, REGISTERS_COMPACT } register_layout;

/* Registers for scores, per thread. */
int32_t cost_registers(register_layout layout, int32_t b_q, int32_t b_k, int32_t n_k);

typedef struct exp_cost {
    double low, high; /* exponentials, per legal one */
    double cycles;    /* low * EXP_LOW + high */
    double even; /* a lookup may cost this much of a high exponential before computing each of them high, once, is as
                       * cheap; NaN where it always is, or where there are no lookups */
} exp_cost;

/* counters: of a run with that layout (f32 as safe). */
exp_cost cost_exp(const tlamp_counters *c, register_layout layout);

#endif
