/* The tile loop for AMX. High products and P V in f32, by bf16 planes. */
#define TL_P_PLANES 3
#define TL_SCORE_TAIL (TL_P_PLANES * TL_SPAN_KEYS / 2)
#include "simd/amx.h"

#include "simd/products_amx.inc.h"
#include "simd/products_int8_amx.inc.h"
#include "simd/values_amx.inc.h"

#define TL_SYMBOL tlamp_fwd_pv32_dx__amx
#define TL_SYMBOL_NAME "tlamp_fwd_pv32_dx__amx"
#define TL_ISA "amx"
#include "simd/packed.inc.h"
