/* B11: a sink counts once, in the maximum and in LSE, by its own head, after the softcap. */
#include <math.h>

#include "support/conform.h"

/* Three keys with logit 0 and v = 1. */
static void three_keys(const setting *s, const char *sink, double o, double lse, double printed)
{
    trial t;
    conform_begin(&t, s, "q1 k3 d2 sinks:%s data:zeros", sink);
    for (int64_t j = 0; j < 3; j++)
        for (int64_t c = 0; c < 2; c++) trial_set_v(&t, 0, 0, j, c, 1);
    conform_verify(&t);
    expect_o(&t, 0, 0, 0, 1, o, printed);
    expect_lse(&t, 0, 0, 0, lse, printed);
    conform_end(&t);
}

static void sink_alone(const setting *s, const char *problem)
{
    trial t;
    conform_begin(&t, s, "%s", problem);
    for (int64_t j = 0; t.in.spec.pattern && j < t.in.spec.lk; j++) trial_set_mask(&t, 0, 0, 0, j, false);
    conform_verify(&t);
    const double sink = (double)t.in.spec.sinks[0];
    (void)expect(trial_o(&t, 0, 0, 0, 0) == 0, "o of a sink alone is %g", trial_o(&t, 0, 0, 0, 0));
    expect_lse(&t, 0, 0, 0, sink, 0);
    conform_end(&t);
}

/* Once, however many parts the keys have: a logit of 0 for each key, in several tiles. */
static void once_in_all_parts(const setting *s, int splits)
{
    trial t;
    conform_begin(&t, s, "hq4 hk2 q2 k200 d2 sinks:2 data:zeros splits:%d", splits);
    conform_verify(&t);
    for (int64_t h = 0; h < 4; h++) expect_lse(&t, 0, h, 1, log(200 + exp(2)), 0);
    conform_end(&t);
    conform_begin(&t, s, "q2 k200 used:0 d2 sinks:2 data:zeros splits:%d", splits); /* parts without keys */
    conform_verify(&t);
    expect_lse(&t, 0, 0, 1, 2, 0);
    conform_end(&t);
}

static void each_head_its_own(const setting *s)
{
    trial t;
    conform_begin(&t, s, "hq4 hk2 q3 k2 d1 sinks:0.5,1,-2,3 data:zeros");
    conform_verify(&t);
    for (int64_t h = 0; h < 4; h++)
        for (int64_t i = 0; i < 3; i++) expect_lse(&t, 0, h, i, log(2 + exp((double)t.in.spec.sinks[h])), 0);
    conform_end(&t);
}

static void not_capped(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q1 k1 d1 sinks:30 softcap:2 data:zeros");
    conform_verify(&t);
    expect_lse(&t, 0, 0, 0, 30, 0);
    conform_end(&t);
}

static void minus_infinity_is_none(const setting *s)
{
    trial none, minus;
    conform_begin(&none, s, "hq6 hk2 q33 k65 d8 causal");
    conform_begin(&minus, s, "hq6 hk2 q33 k65 d8 causal sinks:-inf");
    conform_verify(&none);
    conform_verify(&minus);
    expect_same(&none, &minus, "a sink of -Inf and none");
    conform_end(&none);
    conform_end(&minus);
}

/* As a logit of +Inf does. */
static void plus_infinity_is_nan(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q3 k5 d2 causal sinks:inf");
    conform_verify(&t);
    (void)expect(isnan(trial_o(&t, 0, 0, 1, 1)) && isnan(trial_lse(&t, 0, 0, 1)), "a sink of +Inf gives %g and %g",
                 trial_o(&t, 0, 0, 1, 1), trial_lse(&t, 0, 0, 1));
    conform_end(&t);
}

/* The reference of a row in f16 is rounded: the sink must not move with it. */
static void f16_state(const setting *s)
{
    const setting half = {"high state=fp16", s->layout};
    trial t;
    conform_begin(&t, &half, "q1 k0 d2 sinks:100");
    conform_verify(&t);
    expect_lse(&t, 0, 0, 0, 100, 0);
    conform_end(&t);
}

static void body(const setting *s)
{
    three_keys(s, "0.5", 0.645339, 1.536592, 5e-7);
    three_keys(s, "100", 1.1e-43, 100, 2e-43); /* a subnormal, or flushed to 0 */
    sink_alone(s, "q1 k3 d2 sinks:0.5 mask:random");
    sink_alone(s, "q1 k3 d2 sinks:0.5 used:0");
    sink_alone(s, "q1 k3 d2 sinks:100 used:0");
    sink_alone(s, "q1 k0 d2 sinks:0.5");
    each_head_its_own(s);
    once_in_all_parts(s, 2);
    once_in_all_parts(s, 3);
    not_capped(s);
    minus_infinity_is_none(s);
    plus_infinity_is_nan(s);
    if (is_high(s)) f16_state(s);
}

int main(void) { return conform(body); }
