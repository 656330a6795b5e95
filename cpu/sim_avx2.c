/* LampAttention in simulated formats for AVX2 and FMA. */
#include "simd/avx2.h"
#define TL_VECTORS
#define TL_SYMBOL tlamp_fwd_sim_dx__avx2
#define TL_SYMBOL_NAME "tlamp_fwd_sim_dx__avx2"
#define TL_ISA "avx2"
#include "sim_kernel.inc.h"
