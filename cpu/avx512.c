/* The tile loop for AVX-512 (F, BW, DQ, VL). */
#include "simd/avx512.h"
#include "simd/packed.inc.h"

extern const tl_kernel tlamp_fwd_pv32_dx__avx512;
const tl_kernel tlamp_fwd_pv32_dx__avx512 = {
    .name = "tlamp_fwd_pv32_dx__avx512",
    .isa = "avx512",
    .supports = tl_supports,
    .max_rows = TL_ROWS * TL_ROW_BLOCKS,
    .scratch_bytes = tl_scratch_bytes,
    .packed_bytes = tl_packed_bytes,
    .pack = tl_pack,
    .attend = tl_attend,
};
