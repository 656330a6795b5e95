/* Head dimension 128, every tile high. */
#define TL_D 128
#define TL_ROUTED 0
#define TL_LAUNCH tl_nvptx_high_d128
#include "nvptx_kernel.inc.h"
