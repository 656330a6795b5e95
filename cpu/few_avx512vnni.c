/* The tile loop for AVX-512 with VNNI where few rows meet each key: K and V are read in place. */
#include "simd/avx512vnni.h"

#define TL_ROWS 8
#define TL_ROW_BLOCKS 3
#include "simd/products_rows.inc.h"
#include "simd/products_int8_rows.inc.h"
#include "simd/values_rows.inc.h"

#define TL_SYMBOL tlamp_fwd_few_dx__avx512vnni
#define TL_SYMBOL_NAME "tlamp_fwd_few_dx__avx512vnni"
#define TL_ISA "avx512vnni"
#include "simd/packed.inc.h"
