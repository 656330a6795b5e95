/* The same with P V from u8 weights and INT8 values. */
#define TL_STATE_F16 0
#define TL_PV_INT8 1
#define TL_SYMBOL tlamp_fwd_pv8_dx__scalar
#define TL_SYMBOL_NAME "tlamp_fwd_pv8_dx__scalar"
#define TL_ISA "scalar"
#include "scalar_kernel.inc.h"
