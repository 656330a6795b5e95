/* B22: blocks whose largest magnitude is 0, tiny or next to a huge one: no 0/0, no overflow of 127/amax. */
#include <float.h>
#include <math.h>

#include "support/conform.h"

typedef void (*setter)(trial *, int64_t b, int64_t h, int64_t i, int64_t c, double x);

static void fill(trial *t, setter set, int64_t first, int64_t end, double x)
{
    for (int64_t i = first; i < end; i++)
        for (int64_t c = 0; c < t->in.spec.d; c++) set(t, 0, 0, i, c, x);
}

/* Rows of q, then of k, from `first` on (a whole scale block: 128 and 64 tokens) hold x. */
static void block_of(const setting *s, double x)
{
    trial t;
    conform_begin(&t, s, "q140 k140 d8");
    fill(&t, trial_set_q, 0, 128, x);
    conform_verify(&t);
    conform_end(&t);
    conform_begin(&t, s, "q140 k140 d8 causal");
    fill(&t, trial_set_k, 64, 128, x);
    conform_verify(&t);
    conform_end(&t);
}

/* All keys the same: uniform weights, LSE = scale q.k + log Lk. Smoothing leaves exactly 0 to quantise. */
static void constant_keys(const setting *s, int lk)
{
    trial t;
    conform_begin(&t, s, "q3 k%d d8 scale:1 data:ramp", lk);
    fill(&t, trial_set_q, 0, 3, 0.5);
    fill(&t, trial_set_k, 0, lk, 3);
    conform_verify(&t);
    for (int64_t i = 0; i < 3; i++) {
        expect_o(&t, 0, 0, i, 0, (lk - 1) / 2., 0);
        expect_lse(&t, 0, 0, i, 12 + log(lk), 0);
    }
    conform_end(&t);
}

static void zero_value_channel(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q3 k70 d8");
    for (int64_t j = 0; j < 70; j++) trial_set_v(&t, 0, 0, j, 5, 0);
    conform_verify(&t);
    (void)expect(trial_o(&t, 0, 0, 2, 5) == 0, "a zero channel of V gives %g", trial_o(&t, 0, 0, 2, 5));
    conform_end(&t);
}

static void zero_beside_huge(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q3 k140 d8");
    fill(&t, trial_set_k, 0, 64, 0);
    fill(&t, trial_set_k, 64, 128, 1e18);
    conform_verify(&t);
    conform_end(&t);
}

static void body(const setting *s)
{
    static const double sizes[] = {0,   -0., (double)FLT_MIN, 0x1p-149, 127 * 0x1p-126, 127 * 0x1p-126 * (1 - 0x1p-24),
                                   1e37};
    for (int i = 0; i < 7; i++) block_of(s, sizes[i]);
    constant_keys(s, 1);
    constant_keys(s, 5);
    constant_keys(s, 130);
    zero_value_channel(s);
    zero_beside_huge(s);
}

int main(void) { return conform(body); }
