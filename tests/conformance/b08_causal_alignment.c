/* B08: where Lq and Lk differ, causal is aligned to the last key, and top-left causal to the first. */
#include <math.h>

#include "support/conform.h"

/* q = k = 0, v[j] = j: a row of n keys is (n - 1) / 2 and log n. */
static void count_keys(const setting *s, int lq, int lk, bool top_left)
{
    trial t;
    conform_begin(&t, s, "q%d k%d d1 data:ramp %s", lq, lk, top_left ? "causal-tl" : "causal");
    conform_verify(&t);
    for (int i = 0; i < lq; i++) {
        int n = i + 1 + (top_left ? 0 : lk - lq);
        if (n > lk) n = lk;
        if (n <= 0) {
            expect_empty(&t, 0, 0, i);
            continue;
        }
        expect_o(&t, 0, 0, i, 0, (n - 1) / 2., 0);
        expect_lse(&t, 0, 0, i, log(n), 0);
    }
    conform_end(&t);
}

static void stated_values(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q2 k5 d1 causal data:ramp");
    conform_verify(&t);
    expect_o(&t, 0, 0, 0, 0, 1.5, 0);
    expect_o(&t, 0, 0, 1, 0, 2, 0);
    expect_lse(&t, 0, 0, 0, 1.386294, 5e-7);
    expect_lse(&t, 0, 0, 1, 1.609438, 5e-7);
    conform_end(&t);
    conform_begin(&t, s, "q3 k128 d1 causal data:ramp");
    conform_verify(&t);
    for (int i = 0; i < 3; i++) expect_o(&t, 0, 0, i, 0, 62.5 + 0.5 * i, 0);
    conform_end(&t);
}

static void body(const setting *s)
{
    static const int shapes[][2] = {{2, 5}, {5, 2}, {3, 128}, {1, 7}, {7, 1}, {64, 65}, {65, 64}};
    stated_values(s);
    for (int i = 0; i < 7; i++) {
        count_keys(s, shapes[i][0], shapes[i][1], false);
        count_keys(s, shapes[i][0], shapes[i][1], true);
    }
}

int main(void) { return conform(body); }
