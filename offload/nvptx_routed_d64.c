/* Head dimension 64, tiles INT8 or high. */
#define TL_D 64
#define TL_ROUTED 1
#define TL_LAUNCH tl_nvptx_routed_d64
#include "nvptx_kernel.inc.h"
