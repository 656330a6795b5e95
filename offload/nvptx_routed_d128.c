/* Head dimension 128, tiles INT8 or high. */
#define TL_D 128
#define TL_ROUTED 1
#define TL_LAUNCH tl_nvptx_routed_d128
#include "nvptx_kernel.inc.h"
