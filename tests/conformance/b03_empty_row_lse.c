/* B03: an empty row's LSE is -Inf on every path: prefill, decode, packed, used lengths, split keys. */
#include "support/conform.h"

static void expect_all_empty(trial *t)
{
    conform_verify(t);
    for (int64_t b = 0; b < t->in.spec.batch; b++)
        for (int64_t i = 0; i < problem_length_q(&t->in.spec, b); i++)
            if (problem_used_k(&t->in.spec, b) == 0) expect_empty(t, b, 0, i);
}

static void no_keys(const setting *s)
{
    static const char *const problems[] = {
        "q1 k0 d8", "q5 k0 d8 causal", "b3 q2 k4 d8 used:0,4,0", "b2 q1 k9 d8 used:0,0 causal", "varlen:1,2,3/0,4,0 d8",
    };
    for (int i = 0; i < 5; i++) {
        trial t;
        conform_begin(&t, s, "%s", problems[i]);
        expect_all_empty(&t);
        conform_end(&t);
    }
}

static void hide_everything(trial *t)
{
    for (int64_t i = 0; i < t->in.spec.lq; i++)
        for (int64_t j = 0; j < t->in.spec.lk; j++) trial_set_mask(t, 0, 0, i, j, false);
}

static void nothing_visible(const setting *s, int lq)
{
    trial t;
    conform_begin(&t, s, "q%d k70 d8 mask:random", lq);
    hide_everything(&t);
    conform_verify(&t);
    for (int64_t i = 0; i < lq; i++) expect_empty(&t, 0, 0, i);
    conform_end(&t);
}

/* The parts of an empty row merge to one. */
static void split(const setting *s, int splits)
{
    trial t;
    conform_begin(&t, s, "q5 k2 d2 causal data:zeros splits:%d", splits);
    conform_verify(&t);
    for (int64_t i = 0; i < 3; i++) expect_empty(&t, 0, 0, i);
    conform_end(&t);
    conform_begin(&t, s, "q135 k130 d2 causal data:zeros splits:%d", splits);
    conform_verify(&t);
    for (int64_t i = 0; i < 5; i++) expect_empty(&t, 0, 0, i);
    conform_end(&t);
}

static void body(const setting *s)
{
    no_keys(s);
    nothing_visible(s, 1);
    nothing_visible(s, 9);
    split(s, 2);
    split(s, 3);
}

int main(void) { return conform(body); }
