/* B21: a NaN or Inf that a row does not see never matters; one that it sees makes exactly that row, or that column of it,
 * NaN. Elements that no row sees change no bit; those that another row sees change no bit under HIGH. */
#include <math.h>
#include <string.h>

#include "support/conform.h"

enum { KEYS = 70, D = 8 };

/* As bits, so that the signalling NaN stays one. */
static const uint32_t poisons[] = {0x7fc00000u /* NaN */, 0x7f800000u /* Inf */, 0xff800000u /* -Inf */,
                                   0x7fa00000u /* signalling NaN */};

static void set_bits(void *data, const tlamp_strides *stride, const int32_t *cu, int64_t b, int64_t j, int64_t c,
                     uint32_t bits)
{
    memcpy((char *)data + (input_offset(stride, cu, b, j, 0) + c) * 4, &bits, 4);
}

static void poison_key(trial *t, int64_t b, int64_t j, int64_t c, uint32_t bits)
{
    set_bits(t->in.k, &t->in.problem.k_stride, t->in.tensors.cu_seqlens_k, b, j, c, bits);
}

static void poison_value(trial *t, int64_t b, int64_t j, int64_t c, uint32_t bits)
{
    set_bits(t->in.v, &t->in.problem.v_stride, t->in.tensors.cu_seqlens_k, b, j, c, bits);
}

/* ------------------------------------------------------------------------------------------------ invisible */

/* Keys that no row sees, all columns. */
static void poison_hidden(trial *t, uint32_t bits)
{
    for (int64_t b = 0; b < t->in.spec.batch; b++)
        for (int64_t j = 0; j < problem_length_k(&t->in.spec, b); j++) {
            bool seen = false;
            for (int64_t i = 0; i < problem_length_q(&t->in.spec, b); i++) {
                int64_t begin, end;
                problem_visible_keys(&t->in.spec, b, i, &begin, &end);
                const uint8_t *mask = t->in.tensors.bool_mask;
                seen = seen || (begin <= j && j < end && (!t->in.spec.pattern || mask[i * t->in.spec.lk + j]));
            }
            for (int64_t c = 0; c < D && !seen; c++) {
                poison_key(t, b, j, c, bits);
                poison_value(t, b, j, c, bits);
            }
        }
}

static void begin_hidden(trial *t, const setting *s, const char *problem)
{
    conform_begin(t, s, "%s", problem);
    for (int64_t i = 0; t->in.spec.pattern && i < t->in.spec.lq; i++)
        for (int64_t j = 0; j < t->in.spec.lk; j++) trial_set_mask(t, 0, 0, i, j, j % 5 != 2 && (i + j) % 3 != 0);
}

static void hidden_from_all(const setting *s)
{
    static const char *const problems[] = {
        "q9 k70 d8 pad:3 window:5,0 causal", "q9 k70 d8 mask:random", "b2 q5 k70 d8 used:40,0",
        "varlen:3,4/70,30 d8 used:33,30",    "q2 k70 d8 causal-tl",   "q9 k70 d8 causal used:31 mask:random",
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
        for (int p = 0; p < 4; p++) {
            trial zero, poisoned;
            begin_hidden(&zero, s, problems[i]);
            poison_hidden(&zero, 0);
            conform_verify(&zero);
            begin_hidden(&poisoned, s, problems[i]);
            poison_hidden(&poisoned, poisons[p]);
            conform_verify(&poisoned);
            expect_same(&zero, &poisoned, "NaN or Inf where no row looks");
            conform_end(&zero);
            conform_end(&poisoned);
        }
}

/* Key 40 and its value are poisoned; causal, so rows before it do not see it. */
static void hidden_from_some(const setting *s)
{
    enum { FIRST = 40 };
    for (int p = 0; p < 4; p++) {
        trial clean, poisoned;
        conform_begin(&clean, s, "q%d k%d d%d causal", (int)KEYS, (int)KEYS, (int)D);
        conform_verify(&clean);
        conform_begin(&poisoned, s, "q%d k%d d%d causal", (int)KEYS, (int)KEYS, (int)D);
        poison_key(&poisoned, 0, FIRST, 1, poisons[p]);
        poison_value(&poisoned, 0, FIRST, 2, poisons[p]);
        conform_verify(&poisoned); /* exact pattern: the rows from FIRST on */
        for (int64_t i = 0; i < FIRST; i++)
            for (int64_t c = 0; c < D; c++) {
                const double got = trial_o(&poisoned, 0, 0, i, c), want = trial_o(&clean, 0, 0, i, c);
                (void)expect(isfinite(got), "o[i%d c%d] is %g", (int)i, (int)c, got);
                if (is_high(s)) (void)expect(got == want, "o[i%d c%d]: %.9g, %.9g", (int)i, (int)c, got, want);
            }
        conform_end(&clean);
        conform_end(&poisoned);
    }
}

/* ------------------------------------------------------------------------------------------------ visible */

/* A NaN in K is seen by all rows but those of a window that passed it. */
static void nan_in_key(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q%d k%d d%d causal window:9,0", (int)KEYS, (int)KEYS, (int)D);
    poison_key(&t, 0, 30, 3, poisons[0]);
    conform_verify(&t);
    for (int64_t i = 0; i < KEYS; i++) {
        const bool sees = 30 <= i && i <= 39;
        (void)expect(isnan(trial_lse(&t, 0, 0, i)) == sees, "lse[i%d] is %g", (int)i, trial_lse(&t, 0, 0, i));
        for (int64_t c = 0; c < D; c++)
            (void)expect(isnan(trial_o(&t, 0, 0, i, c)) == sees, "o[i%d c%d] is %g", (int)i, (int)c,
                         trial_o(&t, 0, 0, i, c));
    }
    conform_end(&t);
}

/* A NaN in V stays in its column, and LSE knows nothing of it. */
static void nan_in_value(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q%d k%d d%d causal", (int)KEYS, (int)KEYS, (int)D);
    poison_value(&t, 0, 30, 3, poisons[0]);
    conform_verify(&t);
    for (int64_t i = 0; i < KEYS; i++) {
        (void)expect(isfinite(trial_lse(&t, 0, 0, i)), "lse[i%d] is %g", (int)i, trial_lse(&t, 0, 0, i));
        for (int64_t c = 0; c < D; c++)
            (void)expect(isnan(trial_o(&t, 0, 0, i, c)) == (i >= 30 && c == 3), "o[i%d c%d] is %g", (int)i, (int)c,
                         trial_o(&t, 0, 0, i, c));
    }
    conform_end(&t);
}

static void nan_in_query(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q%d k%d d%d", (int)KEYS, (int)KEYS, (int)D);
    trial_set_q(&t, 0, 0, 33, 0, (double)NAN);
    conform_verify(&t);
    for (int64_t i = 0; i < KEYS; i++)
        (void)expect(isnan(trial_lse(&t, 0, 0, i)) == (i == 33) && isnan(trial_o(&t, 0, 0, i, 0)) == (i == 33),
                     "row %d: lse %g, o %g", (int)i, trial_lse(&t, 0, 0, i), trial_o(&t, 0, 0, i, 0));
    conform_end(&t);
}

/* Logits of +Inf make the row NaN; logits of -Inf have weight 0. q decides the sign, so both appear in one block, whose
 * other keys keep their scale. */
static void infinite_key(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q4 k%d d1 scale:1", (int)KEYS);
    poison_key(&t, 0, 5, 0, poisons[1]);
    for (int64_t i = 0; i < 4; i++) trial_set_q(&t, 0, 0, i, 0, i % 2 ? -1 : 1);
    conform_verify(&t);
    for (int64_t i = 0; i < 4; i++)
        (void)expect(isnan(trial_o(&t, 0, 0, i, 0)) == (i % 2 == 0), "o[i%d] is %g", (int)i, trial_o(&t, 0, 0, i, 0));
    conform_end(&t);
}

static void infinite_value(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q2 k%d d%d", (int)KEYS, (int)D);
    poison_value(&t, 0, 5, 0, poisons[1]);
    poison_value(&t, 0, 6, 1, poisons[2]);
    poison_value(&t, 0, 7, 2, poisons[1]);
    poison_value(&t, 0, 68, 2, poisons[2]);
    conform_verify(&t);
    (void)expect(trial_o(&t, 0, 0, 0, 0) == (double)INFINITY, "Inf in V gives %g", trial_o(&t, 0, 0, 0, 0));
    (void)expect(trial_o(&t, 0, 0, 0, 1) == -(double)INFINITY, "-Inf in V gives %g", trial_o(&t, 0, 0, 0, 1));
    (void)expect(isnan(trial_o(&t, 0, 0, 0, 2)), "Inf and -Inf in V give %g", trial_o(&t, 0, 0, 0, 2));
    conform_end(&t);
}

static void body(const setting *s)
{
    hidden_from_all(s);
    hidden_from_some(s);
    nan_in_key(s);
    nan_in_value(s);
    nan_in_query(s);
    infinite_key(s);
    infinite_value(s);
}

int main(void) { return conform(body); }
