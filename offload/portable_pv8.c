/* The portable path: P V from u8 weights and INT8 values. */
#define TL_ROW_BLOCKS 1
#define TL_STATE_F16 0
#define TL_PV_INT8 1
#define TL_SYMBOL tlamp_fwd_pv8_dx__portable
#define TL_SYMBOL_NAME "tlamp_fwd_pv8_dx__portable"
#define TL_ISA "portable"
#include "scalar_kernel.inc.h"

#define TL_PORTABLE tl_portable_pv8
#define TL_LAUNCH launch_pv8
#define TL_PACKS 1
#include "portable_kernel.inc.h"
