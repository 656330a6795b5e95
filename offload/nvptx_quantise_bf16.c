/* bf16. */
#define TL_BF16 1
#define TL_QUANTISE tl_nvptx_quantise_bf16
#define TL_MEAN tl_nvptx_mean_bf16
#define TL_NONFINITE tl_nvptx_nonfinite_bf16
#define TL_QUANTISE_PLAIN tl_nvptx_quantise_plain_bf16
#include "nvptx_quantise.inc.h"
