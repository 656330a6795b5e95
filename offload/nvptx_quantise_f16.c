/* f16. */
#define TL_BF16 0
#define TL_QUANTISE tl_nvptx_quantise_f16
#define TL_MEAN tl_nvptx_mean_f16
#define TL_CODES tl_nvptx_codes_f16
#include "nvptx_quantise.inc.h"
