/* The tile loop for AVX2 with AVX-VNNI, P V from u8 weights and INT8 values. */
#define TL_SCORE_TAIL (TL_SPAN_KEYS / 4)
#include "simd/avxvnni.h"

#include "simd/products_f32.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_int8.inc.h"

#define TL_SYMBOL tlamp_fwd_pv8_dx__avxvnni
#define TL_SYMBOL_NAME "tlamp_fwd_pv8_dx__avxvnni"
#define TL_ISA "avxvnni"
#include "simd/packed.inc.h"
