/* The tile loop for AVX2 with AVX-VNNI, P V in f32. */
#include "simd/avxvnni.h"

#include "simd/products_f32.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_f32.inc.h"

#define TL_SYMBOL tlamp_fwd_pv32_dx__avxvnni
#define TL_SYMBOL_NAME "tlamp_fwd_pv32_dx__avxvnni"
#define TL_ISA "avxvnni"
#include "simd/packed.inc.h"
