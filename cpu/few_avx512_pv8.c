/* The tile loop for AVX-512 (F, BW, DQ, VL) where few rows meet each key: K is read in place, V is packed for P V
 * from u8 weights and INT8 values, whose scales are known only once 64 keys are. */
#define TL_SCORE_TAIL (TL_SPAN_KEYS / 2)
#include "simd/avx512.h"

#define TL_ROWS 8
#define TL_ROW_BLOCKS 3
#include "simd/products_rows.inc.h"
#include "simd/products_int8_rows.inc.h"
#include "simd/values_int8.inc.h"

#define TL_SYMBOL tlamp_fwd_few_pv8_dx__avx512
#define TL_SYMBOL_NAME "tlamp_fwd_few_pv8_dx__avx512"
#define TL_ISA "avx512"
#include "simd/packed.inc.h"
