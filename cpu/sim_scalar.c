/* LampAttention in simulated formats for any processor. */
#define TL_SYMBOL tlamp_fwd_sim_dx__scalar
#define TL_SYMBOL_NAME "tlamp_fwd_sim_dx__scalar"
#define TL_ISA "scalar"
#include "sim_kernel.inc.h"
