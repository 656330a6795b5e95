/* The portable path: LampAttention in simulated formats. */
#define TL_ROW_BLOCKS 1
#define TL_SYMBOL tlamp_fwd_sim_dx__portable
#define TL_SYMBOL_NAME "tlamp_fwd_sim_dx__portable"
#define TL_ISA "portable"
#include "sim_kernel.inc.h"

#define TL_PORTABLE tl_portable_sim
#define TL_LAUNCH launch_sim
#define TL_PACKS 0
#include "portable_kernel.inc.h"
