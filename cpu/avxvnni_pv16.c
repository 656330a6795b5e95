/* The tile loop for AVX2 with AVX-VNNI, P V in bf16. */
#include "simd/avxvnni.h"

#include "simd/products_f32.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_bf16_fma.inc.h"

#define TL_SYMBOL tlamp_fwd_pv16_dx__avxvnni
#define TL_SYMBOL_NAME "tlamp_fwd_pv16_dx__avxvnni"
#define TL_ISA "avxvnni"
#include "simd/packed.inc.h"
