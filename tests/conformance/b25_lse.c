/* B25: LSE is a natural logarithm, and lies where its strides say. */
#include <math.h>

#include "support/conform.h"

static void natural(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q1 k2 d4 data:zeros");
    conform_verify(&t);
    expect_lse(&t, 0, 0, 0, 0.693147, 5e-7);
    conform_end(&t);
}

/* Row i of head h in sequence b sees one key, with logit 100 b + 10 h + i. */
static void start_distinct(trial *t, const setting *s)
{
    conform_begin(t, s, "b2 hq4 hk1 q3 k1 d1 scale:1 data:zeros");
    for (int64_t b = 0; b < 2; b++) {
        trial_set_k(t, b, 0, 0, 0, 1);
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < 3; i++) trial_set_q(t, b, h, i, 0, (double)(100 * b + 10 * h + i));
    }
}

static void check_distinct(trial *t)
{
    conform_verify(t);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < 3; i++) expect_lse(t, b, h, i, (double)(100 * b + 10 * h + i), 0);
    conform_end(t);
}

static void places(const setting *s)
{
    trial t;
    start_distinct(&t, s);
    check_distinct(&t);
    start_distinct(&t, s); /* [b, seq, head] */
    t.in.problem.lse_stride = (tlamp_lse_strides){.batch = t.in.spec.varlen ? 0 : 12, .head = 1, .seq = 4};
    check_distinct(&t);
    start_distinct(&t, s); /* with gaps */
    t.in.problem.lse_stride = (tlamp_lse_strides){.batch = t.in.spec.varlen ? 0 : 5, .head = 31, .seq = 9};
    if (!t.in.spec.varlen) t.in.problem.lse_stride = (tlamp_lse_strides){.batch = 100, .head = 21, .seq = 5};
    check_distinct(&t);
}

static void body(const setting *s)
{
    natural(s);
    places(s);
}

int main(void) { return conform(body); }
