#include "peak.h"

#define FLAGS "avx512f avx512bw avx512dq avx512vl avx512_vnni"

#ifdef __AVX512VNNI__
#include "simd/avx512vnni.h"

enum { INT8_CHAINS = 24 };
#include "peak_codes.inc.h"

const peak_loop peak_int8_avx512vnni = {"dpbusd_zmm", "avx512vnni", FLAGS, 1000000, INT8_OPERATIONS, run_int8, NULL};
#else
const peak_loop peak_int8_avx512vnni = {"dpbusd_zmm", "avx512vnni", FLAGS, 1, 0, NULL, NULL};
#endif
