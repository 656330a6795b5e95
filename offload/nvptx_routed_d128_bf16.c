/* bf16, head dimension 128, tiles INT8 or high. */
#define TL_D 128
#define TL_BF16 1
#define TL_ROUTED 1
#define TL_GENERAL 0
#define TL_STATE_F16 0
#define TL_LAUNCH tl_nvptx_routed_d128_bf16
#include "nvptx_kernel.inc.h"
