/* B13: lengths that no tile divides. Logits are all -5, so that a ghost key with score 0 takes most of the mass; the rows'
 * gaps are NaN and the tensors end at a page that may not be touched. */
#include <math.h>

#include "support/conform.h"

static void tail(const setting *s, int lq, int lk)
{
    trial t;
    conform_begin(&t, s, "q%d k%d d3 pad:2 data:minus5", lq, lk);
    conform_verify(&t);
    for (int i = 0; i < lq; i++) {
        expect_o(&t, 0, 0, i, 0, (lk - 1) / 2., 0);
        expect_o(&t, 0, 0, i, 2, (lk - 1) / 2., 0);
        expect_lse(&t, 0, 0, i, -5 + log(lk), 1e-6); /* -5 / 3 is rounded in k */
    }
    conform_end(&t);
}

static void body(const setting *s)
{
    static const int lengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 193};
    for (int i = 0; i < 18; i++) {
        tail(s, 1, lengths[i]);
        tail(s, 9, lengths[i]);
        tail(s, lengths[i], lengths[i]);
        tail(s, lengths[i], lengths[17 - i]);
    }
}

int main(void) { return conform(body); }
