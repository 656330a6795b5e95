/* B19: lengths that contradict the problem are refused before any data is touched; rows behind the last sequence are not
 * written. */
#include "support/conform.h"

static int32_t *lengths(const int32_t *cu) { return (int32_t *)(uintptr_t)cu; }

static void start(trial *t, const setting *s) { conform_begin(t, s, "hq2 hk1 varlen:5,7,3/6,9,4 d8"); }

static void refused(const setting *s)
{
    trial t;
    start(&t, s);
    int32_t *cu_q = lengths(t.in.tensors.cu_seqlens_q), *cu_k = lengths(t.in.tensors.cu_seqlens_k);

    t.in.problem.max_seqlen_k--;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "cu_seqlens_k");
    t.in.problem.max_seqlen_k++;
    t.in.problem.max_seqlen_q--;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "cu_seqlens_q");
    t.in.problem.max_seqlen_q++;
    t.in.problem.total_k--;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "cu_seqlens_k");
    t.in.problem.total_k++;

    cu_q[0] = 1;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "cu_seqlens_q");
    cu_q[0] = -1;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "cu_seqlens_q");
    cu_q[0] = 0;
    cu_k[1] = 16; /* and back to 15 */
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "cu_seqlens_k");
    cu_k[1] = 6;
    cu_q[3]++;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "cu_seqlens_q");
    cu_q[3]--;
    conform_verify(&t);
    conform_end(&t);
}

static void padded_tail(const setting *s)
{
    trial t;
    start(&t, s);
    t.in.spec.batch = t.in.problem.batch = 2; /* the third sequence's rows become padding */
    conform_verify(&t);                       /* which trial_verify finds untouched */
    conform_end(&t);
}

static void used_lengths(const setting *s)
{
    trial t;
    conform_begin(&t, s, "b2 q3 k5 d8 used:5,2");
    int32_t *used = lengths(t.in.tensors.seqused_k);
    used[1] = 6;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "seqused_k");
    used[1] = -1;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "seqused_k");
    conform_end(&t);
    conform_begin(&t, s, "varlen:3,3/5,7 d8 used:5,2");
    lengths(t.in.tensors.seqused_k)[0] = 6;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "seqused_k");
    conform_end(&t);
}

static void body(const setting *s)
{
    refused(s);
    padded_tail(s);
    used_lengths(s);
}

int main(void) { return conform(body); }
