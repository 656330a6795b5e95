/* The tile loop for AVX2 with FMA and F16C. */
#include "simd/avx2.h"
#include "simd/packed.inc.h"

extern const tl_kernel tlamp_fwd_pv32_dx__avx2;
const tl_kernel tlamp_fwd_pv32_dx__avx2 = {
    .name = "tlamp_fwd_pv32_dx__avx2",
    .isa = "avx2",
    .supports = tl_supports,
    .max_rows = TL_ROWS * TL_ROW_BLOCKS,
    .scratch_bytes = tl_scratch_bytes,
    .packed_bytes = tl_packed_bytes,
    .pack = tl_pack,
    .attend = tl_attend,
};
