/* B23: K's mean is given back to the logits and to LSE, belongs to one sequence and one key head, and knows nothing of keys
 * that are not used. */
#include <math.h>

#include "support/conform.h"

static const char *const policies[] = {"int8 smooth-k", "int8 smooth-k scales=token", "int8 smooth-k scales=f16",
                                       "row_rand:0.5 tile=16x16 smooth-k"};

static void fill_keys(trial *t, int64_t b, int64_t h, double x)
{
    for (int64_t j = 0; j < problem_length_k(&t->in.spec, b); j++)
        for (int64_t c = 0; c < t->in.spec.d; c++) trial_set_k(t, b, h, j, c, x);
}

static void fill_queries(trial *t, int64_t b, int64_t h, double x)
{
    for (int64_t i = 0; i < problem_length_q(&t->in.spec, b); i++)
        for (int64_t c = 0; c < t->in.spec.d; c++) trial_set_q(t, b, h, i, c, x);
}

static void stated_value(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q1 k4 d8");
    fill_queries(&t, 0, 0, 1);
    fill_keys(&t, 0, 0, 10);
    conform_verify(&t);
    expect_lse(&t, 0, 0, 0, 29.670566, 5e-7);
    conform_end(&t);
}

static void copy_bits(const trial *from, int64_t b, const trial *alone, const char *what)
{
    bool same = true;
    for (int64_t h = 0; h < alone->in.spec.heads_q; h++)
        for (int64_t i = 0; i < problem_length_q(&alone->in.spec, 0); i++) {
            same = same && trial_lse(from, b, h, i) == trial_lse(alone, 0, h, i);
            for (int64_t c = 0; c < alone->in.spec.dv; c++)
                same = same && trial_o(from, b, h, i, c) == trial_o(alone, 0, h, i, c);
        }
    (void)expect(same, "other bits: %s", what);
}

/* Two packed sequences with K = +10 and K = -10 (and noise): each as it is alone. */
static void two_sequences(const setting *s)
{
    trial both, first;
    conform_begin(&both, s, "varlen:5,6/70,80 d8");
    conform_begin(&first, s, "varlen:5/70 d8");
    for (int64_t j = 0; j < 80; j++)
        for (int64_t c = 0; c < 8; c++) {
            const double noise = (double)((j * 7 + c * 3) % 11) / 16;
            if (j < 70) trial_set_k(&both, 0, 0, j, c, 10 + noise);
            if (j < 70) trial_set_k(&first, 0, 0, j, c, 10 + noise);
            trial_set_k(&both, 1, 0, j, c, -10 + noise);
        }
    conform_verify(&both);
    conform_verify(&first);
    copy_bits(&both, 0, &first, "a sequence in a batch and alone");
    conform_end(&both);
    conform_end(&first);
}

static void unused_keys(const setting *s)
{
    trial zero, poisoned;
    conform_begin(&zero, s, "q5 k70 d8 used:40");
    conform_begin(&poisoned, s, "q5 k70 d8 used:40");
    for (int64_t j = 40; j < 70; j++)
        for (int64_t c = 0; c < 8; c++) {
            trial_set_k(&zero, 0, 0, j, c, 0);
            trial_set_k(&poisoned, 0, 0, j, c, (double)NAN);
        }
    conform_verify(&zero);
    conform_verify(&poisoned);
    expect_same(&zero, &poisoned, "NaN beyond the used keys");
    conform_end(&zero);
    conform_end(&poisoned);
}

/* Keys in two halves, each smoothed by its own mean, merged by LSE. */
static void merged_halves(const setting *s)
{
    enum { HALF = 64, ROWS = 5, D = 8 };
    trial whole, half[2];
    float o[2][ROWS * D], lse[2][ROWS];
    conform_begin(&whole, s, "q%d k%d d%d data:bigchannel", (int)ROWS, 2 * HALF, (int)D);
    conform_verify(&whole);
    for (int part = 0; part < 2; part++) {
        conform_begin(&half[part], s, "q%d k%d d%d data:bigchannel", (int)ROWS, (int)HALF, (int)D);
        for (int64_t j = 0; j < HALF; j++)
            for (int64_t c = 0; c < D; c++) {
                const int64_t at = input_offset(&whole.in.problem.k_stride, NULL, 0, part * HALF + j, 0) + c;
                trial_set_k(&half[part], 0, 0, j, c, tensor_get(whole.in.k, TLAMP_F32, at));
                trial_set_v(&half[part], 0, 0, j, c, tensor_get(whole.in.v, TLAMP_F32, at));
            }
        conform_verify(&half[part]);
        for (int i = 0; i < ROWS; i++) {
            lse[part][i] = (float)trial_lse(&half[part], 0, 0, i);
            for (int c = 0; c < D; c++) o[part][i * D + c] = (float)trial_o(&half[part], 0, 0, i, c);
        }
    }
    (void)expect(tlamp_merge(ROWS, D, o[0], D, lse[0], o[1], D, lse[1], NULL) == TLAMP_OK, "merge failed");
    for (int i = 0; i < ROWS; i++) {
        const double slack = trial_lse_bound(&half[0], 0, 0, i) + trial_lse_bound(&half[1], 0, 0, i) + 1e-6;
        expect_lse(&whole, 0, 0, i, (double)lse[0][i], slack);
        for (int c = 0; c < D; c++) /* an LSE off by e moves a weight by at most e, and |v| < 7 */
            expect_o(&whole, 0, 0, i, c, (double)o[0][i * D + c],
                     trial_o_bound(&half[0], 0, 0, i, c) + trial_o_bound(&half[1], 0, 0, i, c) + 14 * slack);
    }
    conform_end(&whole);
    conform_end(&half[0]);
    conform_end(&half[1]);
}

/* Each query head gets the mean of its own key head back. */
static void key_heads(const setting *s)
{
    trial t;
    conform_begin(&t, s, "hq6 hk3 q1 k4 d8 scale:1");
    for (int64_t h = 0; h < 6; h++) fill_queries(&t, 0, h, 1);
    for (int64_t h = 0; h < 3; h++) fill_keys(&t, 0, h, (double)(h + 1));
    conform_verify(&t);
    for (int64_t h = 0; h < 6; h++) expect_lse(&t, 0, h, 0, 8. * (double)(h / 2 + 1) + log(4), 0);
    conform_end(&t);
}

static double largest_error(const trial *t)
{
    double worst = 0;
    for (size_t i = 0; i < trial_o_count(t); i++)
        worst = fmax(worst, fabs(tensor_get(t->result.o, TLAMP_F32, (int64_t)i) - t->o[i]));
    return worst;
}

/* One channel of K stands at 1000: smoothing must make things better. */
static void better_with_an_outlier(const setting *s)
{
    const setting off = {"int8", s->layout}, on = {"int8 smooth-k", s->layout};
    trial rough, smooth;
    conform_begin(&rough, &off, "q33 k128 d64 data:bigchannel");
    conform_verify(&rough);
    conform_begin(&smooth, &on, "q33 k128 d64 data:bigchannel");
    conform_verify(&smooth);
    (void)expect(largest_error(&smooth) < largest_error(&rough) / 4, "errors %.3g with, %.3g without smoothing",
                 largest_error(&smooth), largest_error(&rough));
    conform_end(&rough);
    conform_end(&smooth);
}

static void body(const setting *s)
{
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        const setting with = {policies[i], s->layout};
        stated_value(&with);
        two_sequences(&with);
        unused_keys(&with);
        merged_halves(&with);
        key_heads(&with);
    }
    better_with_an_outlier(s);
}

int main(void) { return conform_once(body); }
