/* How fast a machine could be at an attention: what a measured time is a fraction of. */
#ifndef TL_CLI_ROOFLINE_H
#define TL_CLI_ROOFLINE_H

#include "bench.h"
#include "measure.h"

/* Seconds of the three phases one after another, each at this machine's measured peak: Q K^T in the arithmetic of the policy,
 * the softmax, P V. Whatever arithmetic is the fastest that is exact enough counts: products of bf16 at the rate of f32 where
 * that is higher, for example, and f32 by products of bf16 planes where those are so fast (AMX). NaN for policies whose work depends on the data (LAMP, TOLERANCE). */
double roofline_prefill(const bench_peaks *peaks, const problem_spec *spec, const measurement *m);

/* Bytes of K and V that some row sees: a decode reads them once. */
double roofline_bytes(const problem_spec *spec);

#endif
