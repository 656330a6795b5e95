/* B14: head dimensions that no vector divides, and d_v that is not d_qk. Only the last column of q and k counts; what lies
 * behind it in memory is NaN. The default scale is that of the logical d. */
#include <math.h>

#include "support/conform.h"

enum { KEYS = 21 };

static void last_column(const setting *s, int d, int dv)
{
    trial t;
    conform_begin(&t, s, "hq2 hk1 q3 k%d d%d dv%d pad:3 data:onehot", (int)KEYS, d, dv);
    for (int64_t j = 0; j < KEYS; j++)
        for (int64_t c = 0; c < dv; c++) trial_set_v(&t, 0, 0, j, c, c == dv - 1 ? (double)j : 1);
    conform_verify(&t);
    double sum = 0, weighted = 0;
    for (int j = 0; j < KEYS; j++) {
        sum += exp(j / sqrt(d));
        weighted += j * exp(j / sqrt(d));
    }
    for (int64_t h = 0; h < 2; h++) {
        expect_lse(&t, 0, h, 2, log(sum), 0);
        expect_o(&t, 0, h, 2, dv - 1, weighted / sum, 0);
        if (dv > 1) expect_o(&t, 0, h, 0, 0, 1, 0);
    }
    conform_end(&t);
}

static void body(const setting *s)
{
    static const int dims[] = {1, 3, 5, 8, 15, 16, 17, 31, 33, 40, 63, 64, 65, 72, 80, 96, 112, 120, 128, 192, 256};
    for (int i = 0; i < 21; i++) {
        last_column(s, dims[i], dims[i]);
        last_column(s, dims[i], dims[(i + 8) % 21]);
    }
}

int main(void) { return conform(body); }
