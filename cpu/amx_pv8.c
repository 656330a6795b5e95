/* The tile loop for AMX. High products in f32, by bf16 planes; P V from u8 weights and INT8 values. */
#define TL_SCORE_TAIL (TL_SPAN_KEYS / 4)
#include "simd/amx.h"

#include "simd/products_amx.inc.h"
#include "simd/products_int8_amx.inc.h"
#include "simd/values_int8_amx.inc.h"

#define TL_SYMBOL tlamp_fwd_pv8_dx__amx
#define TL_SYMBOL_NAME "tlamp_fwd_pv8_dx__amx"
#define TL_ISA "amx"
#include "simd/packed.inc.h"
