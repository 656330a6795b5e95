/* Head dimension 64, every tile high. */
#define TL_D 64
#define TL_ROUTED 0
#define TL_LAUNCH tl_nvptx_high_d64
#include "nvptx_kernel.inc.h"
