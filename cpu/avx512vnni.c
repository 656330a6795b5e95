/* The tile loop for AVX-512 with VNNI. */
#include "simd/avx512vnni.h"
#include "simd/packed.inc.h"

extern const tl_kernel tlamp_fwd_pv32_dx__avx512vnni;
const tl_kernel tlamp_fwd_pv32_dx__avx512vnni = {
    .name = "tlamp_fwd_pv32_dx__avx512vnni",
    .isa = "avx512vnni",
    .supports = tl_supports,
    .max_rows = TL_ROWS * TL_ROW_BLOCKS,
    .scratch_bytes = tl_scratch_bytes,
    .packed_bytes = tl_packed_bytes,
    .pack = tl_pack,
    .attend = tl_attend,
};
