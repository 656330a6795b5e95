/* The tile loop for AMX. High products in f32, by bf16 planes; P V in bf16. */
#define TL_P_PLANES 1
#include "simd/amx.h"

#include "simd/products_amx.inc.h"
#include "simd/products_int8_amx.inc.h"
#include "simd/values_amx.inc.h"

#define TL_SYMBOL tlamp_fwd_pv16_dx__amx
#define TL_SYMBOL_NAME "tlamp_fwd_pv16_dx__amx"
#define TL_ISA "amx"
#include "simd/packed.inc.h"
