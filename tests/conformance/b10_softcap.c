/* B10: softcap comes after the scale and before the mask, does not overflow, and is not dropped. */
#include <math.h>
#include <string.h>

#include "support/conform.h"

static void after_the_scale(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q1 k1 d1 scale:0.5 softcap:2 data:zeros");
    trial_set_q(&t, 0, 0, 0, 0, 2);
    trial_set_k(&t, 0, 0, 0, 0, 4);
    conform_verify(&t);
    expect_lse(&t, 0, 0, 0, 1.928055, 5e-7);
    conform_end(&t);
}

static void before_the_mask(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q1 k2 d1 softcap:1 mask:random data:ramp");
    trial_set_mask(&t, 0, 0, 0, 0, true);
    trial_set_mask(&t, 0, 0, 0, 1, false);
    conform_verify(&t);
    (void)expect(trial_o(&t, 0, 0, 0, 0) == 0, "the masked key leaks: %g", trial_o(&t, 0, 0, 0, 0));
    conform_end(&t);
}

/* Logits of +-1e4 become +-50. */
static void large_logits(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q2 k1 d1 scale:1 softcap:50 data:zeros");
    trial_set_k(&t, 0, 0, 0, 0, 100);
    trial_set_q(&t, 0, 0, 0, 0, 100);
    trial_set_q(&t, 0, 0, 1, 0, -100);
    conform_verify(&t);
    expect_lse(&t, 0, 0, 0, 50, 0);
    expect_lse(&t, 0, 0, 1, -50, 0);
    conform_end(&t);
}

static void off_and_on(const setting *s)
{
    trial off, zero, five;
    conform_begin(&off, s, "q33 k65 d8 scale:3 causal");
    conform_begin(&zero, s, "q33 k65 d8 scale:3 causal softcap:0");
    conform_begin(&five, s, "q33 k65 d8 scale:3 causal softcap:5");
    conform_verify(&off);
    conform_verify(&zero);
    conform_verify(&five);
    expect_same(&off, &zero, "softcap 0 and none");
    (void)expect(!trial_same_bits(&off, &off.result, &five.result), "softcap 5 changes nothing");
    conform_end(&off);
    conform_end(&zero);
    conform_end(&five);
}

static void invalid(const setting *s)
{
    static const float caps[] = {-1, NAN, INFINITY, -INFINITY};
    trial t;
    conform_begin(&t, s, "q2 k2 d2");
    for (int i = 0; i < 4; i++) {
        t.in.problem.softcap = caps[i];
        expect_refused(&t, TLAMP_INVALID_ARGUMENT, "softcap");
    }
    conform_end(&t);
}

static void body(const setting *s)
{
    after_the_scale(s);
    before_the_mask(s);
    large_logits(s);
    off_and_on(s);
    invalid(s);
}

int main(void) { return conform(body); }
