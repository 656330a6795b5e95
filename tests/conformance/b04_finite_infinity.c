/* B04: no finite number stands for minus infinity: logits may be lower than any such number. */
#include <math.h>

#include "support/conform.h"

static void masked_key_above(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q1 k2 d1 scale:1 mask:random data:zeros");
    trial_set_q(&t, 0, 0, 0, 0, -20000);
    trial_set_k(&t, 0, 0, 0, 0, 1);
    trial_set_v(&t, 0, 0, 0, 0, 1);
    trial_set_v(&t, 0, 0, 1, 0, 100);
    trial_set_mask(&t, 0, 0, 0, 0, true);
    trial_set_mask(&t, 0, 0, 0, 1, false);
    conform_verify(&t);
    expect_o(&t, 0, 0, 0, 0, 1, 0);
    expect_lse(&t, 0, 0, 0, -20000, 0);
    conform_end(&t);
}

/* 64 keys at `level`, key 0 `above` it. */
static void start_level(trial *t, const setting *s, double level, double above)
{
    conform_begin(t, s, "q1 k64 d128 scale:1");
    for (int64_t c = 0; c < 128; c++) trial_set_q(t, 0, 0, 0, c, 1);
    for (int64_t j = 0; j < 64; j++)
        for (int64_t c = 0; c < 128; c++) trial_set_k(t, 0, 0, j, c, (level + (j == 0 ? above : 0)) / 128);
}

/* The others underflow. INT8 scales of this block cannot tell the keys apart where the level is large: its bound says so. */
static void one_key_above(const setting *s, double level)
{
    trial t;
    start_level(&t, s, level, 5000);
    conform_verify(&t);
    for (int64_t c = 0; c < 128 && is_high(s); c++) {
        const double v = tensor_get(t.in.v, TLAMP_F32, input_offset(&t.in.problem.v_stride, NULL, 0, 0, 0) + c);
        (void)expect(trial_o(&t, 0, 0, 0, c) == v, "level %g: o[c%d] is %.9g, not %.9g", level, (int)c,
                     trial_o(&t, 0, 0, 0, c), v);
    }
    conform_end(&t);
}

static void all_equal(const setting *s)
{
    trial t;
    start_level(&t, s, -2.45e5, 0);
    conform_verify(&t);
    for (int64_t c = 0; c < 128; c++) {
        double sum = 0;
        for (int64_t j = 0; j < 64; j++)
            sum += tensor_get(t.in.v, TLAMP_F32,
                              input_offset(&t.in.problem.v_stride, t.in.tensors.cu_seqlens_k, 0, j, 0) + c);
        expect_o(&t, 0, 0, 0, c, sum / 64, 0);
    }
    expect_lse(&t, 0, 0, 0, -2.45e5 + log(64), 0);
    conform_end(&t);
}

static void body(const setting *s)
{
    static const double levels[] = {-1e3, -4.9e4, -5.1e4, -2.45e5, -1e9};
    masked_key_above(s);
    for (int i = 0; i < 5; i++) one_key_above(s, levels[i]);
    all_equal(s);
}

int main(void) { return conform(body); }
