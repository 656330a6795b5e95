/* B02: tiles that a row does not see at all before one that it sees: exp(-Inf - -Inf) in the online softmax. */
#include "support/conform.h"

/* A band of 10 keys; logits 0, v = 1: every O is 1 exactly, wherever the band lies in the tiles. */
static void band(const setting *s, int lq, int lk, int d)
{
    trial t;
    conform_begin(&t, s, "q%d k%d d%d causal window:9,0 data:zeros", lq, lk, d);
    for (int64_t j = 0; j < lk; j++)
        for (int64_t c = 0; c < d; c++) trial_set_v(&t, 0, 0, j, c, 1);
    conform_verify(&t);
    for (int64_t i = 0; i < lq && !has_int8_values(s); i++)
        for (int64_t c = 0; c < d; c++)
            (void)expect(trial_o(&t, 0, 0, i, c) == 1, "o[i%d] is %.9g, not 1", (int)i, trial_o(&t, 0, 0, i, c));
    conform_end(&t);
}

static void body(const setting *s)
{
    static const int keys[] = {73, 74, 75, 137, 138, 139, 265, 266, 267}; /* the first visible key: 63, 64, 65, ... */
    band(s, 640, 640, 4);
    band(s, 640, 640, 1);
    for (int i = 0; i < 9; i++)
        for (int lq = 1; lq <= 3; lq++) band(s, lq, keys[i], 1);
}

int main(void) { return conform(body); }
