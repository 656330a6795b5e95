/* The tile loop for AVX-512 with VNNI, P V in bf16. */
#include "simd/avx512vnni.h"

#include "simd/products_f32.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_bf16_fma.inc.h"

#define TL_SYMBOL tlamp_fwd_pv16_dx__avx512vnni
#define TL_SYMBOL_NAME "tlamp_fwd_pv16_dx__avx512vnni"
#define TL_ISA "avx512vnni"
#include "simd/packed.inc.h"
