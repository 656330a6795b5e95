/* bf16, 192 channels of queries and keys and up to 128 of values (or fewer) of aligned rows, windows, sinks. */
#define TL_D 192
#define TL_DV 128
#define TL_BF16 1
#define TL_ROUTED 1
#define TL_GENERAL 0
#define TL_SHAPED 1
#define TL_STATE_F16 0
#define TL_LAUNCH tl_nvptx_shaped_d192_bf16
#include "nvptx_kernel.inc.h"
