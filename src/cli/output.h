/* The result of `tilelamp run --out FILE`: a safetensors file with o and lse. */
#ifndef TL_CLI_OUTPUT_H
#define TL_CLI_OUTPUT_H

#include "measure.h"

/* o [B, Lq, Hq, dv], lse [B, Hq, Lq]; packed: o [T, Hq, dv], lse [Hq, T] and cu_seqlens_q, with metadata layout thd. */
int output_write(const char *path, const subject *s, const measurement *m, fault *f);

#endif
