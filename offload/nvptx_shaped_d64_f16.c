/* f16, head dimensions up to 64 of aligned rows, windows, sinks. */
#define TL_D 64
#define TL_BF16 0
#define TL_ROUTED 1
#define TL_GENERAL 0
#define TL_SHAPED 1
#define TL_STATE_F16 0
#define TL_LAUNCH tl_nvptx_shaped_d64_f16
#include "nvptx_kernel.inc.h"
