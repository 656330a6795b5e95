#include "peak.h"

#ifdef __AVX2__
#include "simd/avx2.h"

enum { CHAINS = 12, INT8_CHAINS = 8 };

static tl_v exponential(tl_v x)
{
    const __m256 whole = _mm256_floor_ps(tl_v_max(x, tl_v_set(-126))), f = tl_v_sub(x, whole);
    tl_v p = tl_v_fma(tl_v_set(.0770672235f), f, tl_v_set(.227644674f));
    p = tl_v_fma(p, f, tl_v_set(.695116919f));
    p = tl_v_fma(p, f, tl_v_set(1));
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23)));
}

#include "peak_codes.inc.h" /* without VNNI: codes widened to int16, pairs multiplied and added by vpmaddwd, then a sum */
#include "peak_floats.inc.h"

const peak_loop peak_fma_avx2 = {"fma_ymm", "avx2", "avx2 fma f16c", 2000000, 2 * CHAINS *TL_LANES, run_fma, NULL};
const peak_loop peak_int8_avx2 = {"maddwd_ymm", "avx2", "avx2 fma f16c", 1000000, INT8_OPERATIONS, run_int8, NULL};
const peak_loop peak_softmax_avx2 = {"softmax_ymm", "avx2", "avx2 fma f16c", 20000, ROW, run_softmax, NULL};
#else
const peak_loop peak_fma_avx2 = {"fma_ymm", "avx2", "avx2 fma f16c", 1, 0, NULL, NULL};
const peak_loop peak_int8_avx2 = {"maddwd_ymm", "avx2", "avx2 fma f16c", 1, 0, NULL, NULL};
const peak_loop peak_softmax_avx2 = {"softmax_ymm", "avx2", "avx2 fma f16c", 1, 0, NULL, NULL};
#endif
