/* The tile loop for AVX2 with FMA and F16C, P V from u8 weights and INT8 values. */
#define TL_SCORE_TAIL (TL_SPAN_KEYS / 2)
#include "simd/avx2.h"

#include "simd/products_f32.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_int8.inc.h"

#define TL_SYMBOL tlamp_fwd_pv8_dx__avx2
#define TL_SYMBOL_NAME "tlamp_fwd_pv8_dx__avx2"
#define TL_ISA "avx2"
#include "simd/packed.inc.h"
