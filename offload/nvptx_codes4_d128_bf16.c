/* Queries in bf16, INT8 codes in K and V, head dimension 128, few queries: 4 warps a block. */
#define TL_D 128
#define TL_BF16 1
#define TL_ROUTED 0
#define TL_GENERAL 0
#define TL_DECODE 4
#define TL_CODES 1
#define TL_STATE_F16 0
#define TL_LAUNCH tl_nvptx_codes4_d128_bf16
#include "nvptx_kernel.inc.h"
