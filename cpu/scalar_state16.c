/* The same with the running state in f16 between tiles, as TileMix keeps it (ALGORITHMS A8). */
#define TL_STATE_F16 1
#define TL_PV_INT8 0
#define TL_SYMBOL tlamp_fwd_state16_dx__scalar
#define TL_SYMBOL_NAME "tlamp_fwd_state16_dx__scalar"
#define TL_ISA "scalar"
#include "scalar_kernel.inc.h"
