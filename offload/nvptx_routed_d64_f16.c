/* f16, head dimension 64, tiles INT8 or high. */
#define TL_D 64
#define TL_BF16 0
#define TL_ROUTED 1
#define TL_GENERAL 0
#define TL_STATE_F16 0
#define TL_LAUNCH tl_nvptx_routed_d64_f16
#include "nvptx_kernel.inc.h"
