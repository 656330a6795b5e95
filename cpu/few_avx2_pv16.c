/* The tile loop for AVX2 with FMA and F16C where few rows meet each key: K and V are read in place, P V is in bf16. */
#include "simd/avx2.h"

#define TL_NARROW_VALUES
#define TL_ROWS 8
#define TL_ROW_BLOCKS 5
#include "simd/products_rows.inc.h"
#include "simd/products_int8_rows.inc.h"
#include "simd/values_rows.inc.h"

#define TL_SYMBOL tlamp_fwd_few_pv16_dx__avx2
#define TL_SYMBOL_NAME "tlamp_fwd_few_pv16_dx__avx2"
#define TL_ISA "avx2"
#include "simd/packed.inc.h"
