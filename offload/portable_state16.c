/* The portable path: the running state in f16 between tiles (ALGORITHMS A8). */
#define TL_ROW_BLOCKS 1
#define TL_STATE_F16 1
#define TL_PV_INT8 0
#define TL_SYMBOL tlamp_fwd_state16_dx__portable
#define TL_SYMBOL_NAME "tlamp_fwd_state16_dx__portable"
#define TL_ISA "portable"
#include "scalar_kernel.inc.h"

#define TL_PORTABLE tl_portable_state16
#define TL_LAUNCH launch_state16
#define TL_PACKS 1
#include "portable_kernel.inc.h"
