/* The same with P V in bf16. */
#define TL_STATE_F16 0
#define TL_PV_INT8 0
#define TL_PV_BF16 1
#define TL_SYMBOL tlamp_fwd_pv16_dx__scalar
#define TL_SYMBOL_NAME "tlamp_fwd_pv16_dx__scalar"
#define TL_ISA "scalar"
#include "scalar_kernel.inc.h"
