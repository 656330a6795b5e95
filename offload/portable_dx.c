/* The portable path: state and P V in f32. */
#define TL_ROW_BLOCKS 1
#define TL_STATE_F16 0
#define TL_PV_INT8 0
#define TL_SYMBOL tlamp_fwd_dx__portable
#define TL_SYMBOL_NAME "tlamp_fwd_dx__portable"
#define TL_ISA "portable"
#include "scalar_kernel.inc.h"

#define TL_PORTABLE tl_portable_dx
#define TL_LAUNCH launch_dx
#define TL_PACKS 1
#include "portable_kernel.inc.h"
