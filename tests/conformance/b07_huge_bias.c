/* B07: an additive mask of -FLT_MAX is a number: rows of nothing else are uniform, and no row becomes NaN. Only -Inf hides. */
#include <float.h>
#include <math.h>

#include "support/conform.h"

enum { KEYS = 70, SPECIAL = 40 };

/* Row 0: all lowest. Row 1: lowest except one 0. Row 2: lowest, and its scores are -1e32: the sum of the two
 * is no f32, whatever the row then is, it is not NaN. Row 3: all -Inf. */
static void lowest_bias(const setting *s, const char *dtype, double lowest)
{
    trial t;
    conform_begin(&t, s, "q4 k%d d1 scale:1 bias:%s data:ramp", (int)KEYS, dtype);
    trial_set_q(&t, 0, 0, 2, 0, -1e32);
    for (int64_t j = 0; j < KEYS; j++) {
        trial_set_k(&t, 0, 0, j, 0, 1);
        trial_set_bias(&t, 0, 0, 0, j, lowest);
        trial_set_bias(&t, 0, 0, 1, j, j == SPECIAL ? 0 : lowest);
        trial_set_bias(&t, 0, 0, 2, j, lowest);
        trial_set_bias(&t, 0, 0, 3, j, -(double)INFINITY);
    }
    conform_verify(&t);
    expect_o(&t, 0, 0, 0, 0, (KEYS - 1) / 2., 0);
    expect_o(&t, 0, 0, 1, 0, SPECIAL, 0);
    if (!has_int8_values(s))
        (void)expect(trial_o(&t, 0, 0, 1, 0) == (double)SPECIAL, "the row with one key is %.9g",
                     trial_o(&t, 0, 0, 1, 0));
    (void)expect(isfinite(trial_lse(&t, 0, 0, 0)), "lse of the uniform row is %g", trial_lse(&t, 0, 0, 0));
    (void)expect(!isnan(trial_lse(&t, 0, 0, 2)) && !isnan(trial_o(&t, 0, 0, 2, 0)), "-1e32 and the lowest: %g, %g",
                 trial_lse(&t, 0, 0, 2), trial_o(&t, 0, 0, 2, 0));
    expect_empty(&t, 0, 0, 3);
    conform_end(&t);
}

static void body(const setting *s)
{
    lowest_bias(s, "f32", -(double)FLT_MAX);
    lowest_bias(s, "f16", -65504);
    lowest_bias(s, "bf16", -0x1.fep127);
}

int main(void) { return conform(body); }
