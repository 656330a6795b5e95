/* Q, K and V from a safetensors file: q [B, Lq, Hq, d], k [B, Lk, Hk, d], v [B, Lk, Hk, dv]. Metadata layout may say bhsd, or
 * thd with int32 tensors cu_seqlens_q and cu_seqlens_k; causal, softmax_scale and source may say what they say. */
#ifndef TL_CLI_QKV_H
#define TL_CLI_QKV_H

#include "data.h"

/* Reads the file into an input; *source is a copy of that metadata, from malloc, or NULL. */
int qkv_load(input *in, const char *path, char **source, fault *f);

#endif
