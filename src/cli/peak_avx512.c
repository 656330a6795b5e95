#include "peak.h"

#define FLAGS "avx512f avx512bw avx512dq avx512vl"

#ifdef __AVX512F__
#include "simd/avx512.h"

enum { CHAINS = 24 };

static tl_v exponential(tl_v x)
{
    const __m512 floor = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), f = tl_v_sub(x, floor);
    tl_v p = tl_v_fma(tl_v_set(.0770672235f), f, tl_v_set(.227644674f));
    p = tl_v_fma(p, f, tl_v_set(.695116919f));
    return _mm512_scalef_ps(tl_v_fma(p, f, tl_v_set(1)), floor);
}

#include "peak_floats.inc.h"

const peak_loop peak_fma_avx512 = {"fma_zmm", "avx512", FLAGS, 1000000, 2 * CHAINS *TL_LANES, run_fma, NULL};
const peak_loop peak_softmax_avx512 = {"softmax_zmm", "avx512", FLAGS, 40000, ROW, run_softmax, NULL};
#else
const peak_loop peak_fma_avx512 = {"fma_zmm", "avx512", FLAGS, 1, 0, NULL, NULL};
const peak_loop peak_softmax_avx512 = {"softmax_zmm", "avx512", FLAGS, 1, 0, NULL, NULL};
#endif
