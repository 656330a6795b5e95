/* bf16, head dimensions up to 256, whatever a problem asks for, with the state in f16. */
#define TL_D 256
#define TL_BF16 1
#define TL_ROUTED 1
#define TL_GENERAL 1
#define TL_STATE_F16 1
#define TL_LAUNCH tl_nvptx_state16_bf16
#include "nvptx_kernel.inc.h"
