/* LampAttention in simulated formats for AVX-512. */
#include "simd/avx512.h"
#define TL_VECTORS
#define TL_SYMBOL tlamp_fwd_sim_dx__avx512
#define TL_SYMBOL_NAME "tlamp_fwd_sim_dx__avx512"
#define TL_ISA "avx512"
#include "sim_kernel.inc.h"
