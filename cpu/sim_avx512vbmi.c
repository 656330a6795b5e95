/* LampAttention in simulated formats for AVX-512 with VBMI: low exponentials from a table in registers. */
#include "simd/avx512.h"
#include "simd/exp_table_vbmi.h"
#define TL_VECTORS
#define TL_TABLE_IN_REGISTERS
#define TL_SYMBOL tlamp_fwd_sim_dx__avx512vbmi
#define TL_SYMBOL_NAME "tlamp_fwd_sim_dx__avx512vbmi"
#define TL_ISA "avx512"
#include "sim_kernel.inc.h"
