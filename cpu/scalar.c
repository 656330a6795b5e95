/* The tile loop for any processor: plain C, run-time head dimensions. */
#define TL_STATE_F16 0
#define TL_PV_INT8 0
#define TL_SYMBOL tlamp_fwd_dx__scalar
#define TL_SYMBOL_NAME "tlamp_fwd_dx__scalar"
#define TL_ISA "scalar"
#include "scalar_kernel.inc.h"
