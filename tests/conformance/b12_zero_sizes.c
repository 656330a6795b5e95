/* B12: sizes of zero: no division by a dimension, untouched outputs where Lq = 0, O = 0 and LSE = -Inf where Lk = 0. */
#include "support/conform.h"

static void empty_somewhere(const setting *s)
{
    static const char *const problems[] = {
        "varlen:0,1,0,1/3,0,3,5 d8",
        "varlen:1,0/0,4 d8",
        "varlen:0,1,0,1/3,0,3,5 d8 causal",
        "varlen:0,0,0/0,0,0 d8",
        "varlen:0,0/3,5 d8",
        "varlen:2,3/0,0 d8 causal",
        "b0 hq2 hk1 q5 k5 d8",
        "hq0 hk0 q5 k5 d8",
        "hq0 hk2 q5 k5 d8",
        "q0 k7 d8 causal",
        "q7 k0 d8 causal",
        "q0 k0 d8",
        "b3 hq2 hk1 q4 k4 d8 used:0,0,0",
        "q7 k0 d8 mask:random",
        "q0 k9 d8 bias:f32 alibi",
        "q7 k0 d8 window:3,0 softcap:1 alibi",
        "b3 hq2 hk1 q0 k0 d8 causal",
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        trial t;
        conform_begin(&t, s, "%s", problems[i]);
        conform_verify(&t);
        for (int64_t b = 0; b < t.in.spec.batch; b++)
            for (int64_t row = 0; row < problem_length_q(&t.in.spec, b); row++)
                for (int64_t h = 0; h < t.in.spec.heads_q; h++)
                    if (problem_used_k(&t.in.spec, b) == 0) expect_empty(&t, b, h, row);
        conform_end(&t);
    }
}

static void no_dimension(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q2 k2 d8");
    t.in.problem.head_dim_qk = 0;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "head_dim_qk");
    t.in.problem.head_dim_qk = 8;
    t.in.problem.head_dim_v = 0;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "head_dim_v");
    conform_end(&t);
}

static void body(const setting *s)
{
    empty_somewhere(s);
    no_dimension(s);
}

int main(void) { return conform(body); }
