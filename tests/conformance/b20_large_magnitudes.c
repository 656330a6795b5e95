/* B20: values whose products, sums or rescaling leave the range of a half type, or almost that of f32. */
#include <math.h>

#include "support/conform.h"

typedef void (*setter)(trial *, int64_t b, int64_t h, int64_t i, int64_t c, double x);

static void fill(trial *t, setter set, int64_t rows, int64_t columns, double x)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < columns; c++) set(t, 0, 0, i, c, x);
}

/* q, k and v all x; logits equal. */
static void constant(const setting *s, const char *problem, double qk, double v, double logit)
{
    trial t;
    conform_begin(&t, s, "%s", problem);
    const int64_t lk = t.in.spec.lk, d = t.in.spec.d, dv = t.in.spec.dv;
    fill(&t, trial_set_q, t.in.spec.lq, d, qk);
    fill(&t, trial_set_k, lk, d, qk);
    fill(&t, trial_set_v, lk, dv, v);
    conform_verify(&t);
    for (int64_t c = 0; c < dv; c++) expect_o(&t, 0, 0, 0, c, v, 0);
    expect_lse(&t, 0, 0, 0, logit + log((double)lk), 0);
    conform_end(&t);
}

/* One logit of 1e30, the others -1e30: the value of the one. */
static void spread(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q2 k129 d4 dv3 data:spread");
    conform_verify(&t);
    for (int64_t c = 0; c < 3 && is_high(s); c++) {
        const int64_t at = input_offset(&t.in.problem.v_stride, t.in.tensors.cu_seqlens_k, 0, 129 / 2, 0) + c;
        const double v = tensor_get(t.in.v, TLAMP_F32, at);
        (void)expect(trial_o(&t, 0, 0, 1, c) == v, "o[c%d] is %.9g, not %.9g", (int)c, trial_o(&t, 0, 0, 1, c), v);
    }
    conform_end(&t);
}

/* Logits of +-(1e4 + j): the reference moves with every other tile, whichever way the keys are taken. */
static void alternating(const setting *s, bool rising)
{
    enum { KEYS = 300 };
    trial t;
    conform_begin(&t, s, "q1 k%d d1 scale:1", (int)KEYS);
    trial_set_q(&t, 0, 0, 0, 0, 1);
    for (int64_t j = 0; j < KEYS; j++) {
        const double size = 1e4 + (double)(rising ? j : KEYS - 1 - j);
        trial_set_k(&t, 0, 0, j, 0, (j % 2) == rising ? size : -size);
        trial_set_v(&t, 0, 0, j, 0, (double)j);
    }
    conform_verify(&t);
    conform_end(&t);
}

static void body(const setting *s)
{
    constant(s, "q1 k1 d64 bf16 data:zeros", 133120, 133120, 64. * 133120 * 133120 / 8);
    constant(s, "q1 k3 d128 f16 scale:1 data:zeros", 32, 1, 131072);
    constant(s, "q1 k128 d8 f16 data:zeros", 0, 1000, 0);
    constant(s, "q1 k7 d8 bf16 data:zeros", 0, 99840, 0); /* 1e5 in bf16 */
    constant(s, "q1 k300 d8 f16 data:zeros", 0, 65504, 0);
    spread(s);
    alternating(s, true);
    alternating(s, false);
}

int main(void) { return conform(body); }
