/* B01: a row that sees no key is O = 0 and LSE = -Inf, not 0/0. */
#include "support/conform.h"

static void fill_ones(trial *t)
{
    for (int64_t j = 0; j < t->in.spec.lk; j++)
        for (int64_t c = 0; c < t->in.spec.dv; c++) trial_set_v(t, 0, 0, j, c, 1);
}

static void boolean_mask(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q4 k4 d2 mask:random data:zeros");
    fill_ones(&t);
    for (int64_t i = 0; i < 4; i++)
        for (int64_t j = 0; j < 4; j++) trial_set_mask(&t, 0, 0, i, j, i != 1);
    conform_verify(&t);
    for (int64_t i = 0; i < 4; i++) {
        if (i == 1) {
            expect_empty(&t, 0, 0, i);
            continue;
        }
        expect_o(&t, 0, 0, i, 0, 1, 0);
        expect_lse(&t, 0, 0, i, 1.3862944, 5e-8);
    }
    conform_end(&t);
}

static void more_queries_than_keys(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q5 k2 d2 causal data:zeros");
    fill_ones(&t);
    conform_verify(&t);
    for (int64_t i = 0; i < 3; i++) expect_empty(&t, 0, 0, i);
    expect_o(&t, 0, 0, 3, 0, 1, 0);
    expect_o(&t, 0, 0, 4, 1, 1, 0);
    expect_lse(&t, 0, 0, 3, 0, 0);
    expect_lse(&t, 0, 0, 4, 0.693147, 5e-7);
    conform_end(&t);
}

static void body(const setting *s)
{
    boolean_mask(s);
    more_queries_than_keys(s);
}

int main(void) { return conform(body); }
