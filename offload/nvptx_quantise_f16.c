/* f16. */
#define TL_BF16 0
#define TL_QUANTISE tl_nvptx_quantise_f16
#define TL_MEAN tl_nvptx_mean_f16
#define TL_NONFINITE tl_nvptx_nonfinite_f16
#define TL_QUANTISE_PLAIN tl_nvptx_quantise_plain_f16
#include "nvptx_quantise.inc.h"
