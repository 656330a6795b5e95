/* The tile loop for AVX-512 with VNNI and BF16: QK and P V in bf16. */
#include "simd/avx512bf16.h"

#include "simd/products_bf16.inc.h"
#include "simd/products_int8.inc.h"
#include "simd/values_bf16.inc.h"

#define TL_SYMBOL tlamp_fwd_qk16_pv16_dx__avx512bf16
#define TL_SYMBOL_NAME "tlamp_fwd_qk16_pv16_dx__avx512bf16"
#define TL_ISA "avx512bf16"
#include "simd/packed.inc.h"
