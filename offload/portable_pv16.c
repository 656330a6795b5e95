/* The portable path: P V in bf16. */
#define TL_ROW_BLOCKS 1
#define TL_STATE_F16 0
#define TL_PV_INT8 0
#define TL_PV_BF16 1
#define TL_SYMBOL tlamp_fwd_pv16_dx__portable
#define TL_SYMBOL_NAME "tlamp_fwd_pv16_dx__portable"
#define TL_ISA "portable"
#include "scalar_kernel.inc.h"

#define TL_PORTABLE tl_portable_pv16
#define TL_LAUNCH launch_pv16
#define TL_PACKS 1
#include "portable_kernel.inc.h"
