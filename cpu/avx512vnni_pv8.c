/* The tile loop for AVX-512 with VNNI, P V from u8 weights and INT8 values. */
#define TL_SCORE_TAIL (TL_SPAN_KEYS / 4)
#include "simd/avx512vnni.h"

#include "simd/products_f32.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_int8.inc.h"

#define TL_SYMBOL tlamp_fwd_pv8_dx__avx512vnni
#define TL_SYMBOL_NAME "tlamp_fwd_pv8_dx__avx512vnni"
#define TL_ISA "avx512vnni"
#include "simd/packed.inc.h"
