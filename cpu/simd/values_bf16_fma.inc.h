/* P V in bf16 where no instruction multiplies bf16: P and V are rounded to it, and multiplied by fma as floats, exactly. */
#define TL_NARROW_VALUES
#include "simd/values_f32.inc.h"
