/* The tile loop for AVX-512 (F, BW, DQ, VL), with the running state in f16 between tiles, as TileMix keeps it (ALGORITHMS A8). */
#define TL_STATE_F16 1
#include "simd/avx512.h"

#include "simd/products_f32.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_f32.inc.h"

#define TL_SYMBOL tlamp_fwd_state16_dx__avx512
#define TL_SYMBOL_NAME "tlamp_fwd_state16_dx__avx512"
#define TL_ISA "avx512"
#include "simd/packed.inc.h"
