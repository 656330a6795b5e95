#include "peak.h"

#ifdef __AVXVNNI__
#include "simd/avxvnni.h"

enum { INT8_CHAINS = 12 };
#include "peak_codes.inc.h"

const peak_loop peak_int8_avxvnni = {"dpbusd_ymm", "avxvnni", "avx2 avx_vnni", 1000000, INT8_OPERATIONS,
                                     run_int8,     NULL};
#else
const peak_loop peak_int8_avxvnni = {"dpbusd_ymm", "avxvnni", "avx2 avx_vnni", 1, 0, NULL, NULL};
#endif
