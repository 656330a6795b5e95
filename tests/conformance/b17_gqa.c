/* B17: query heads in contiguous groups per key head; counts that do not divide are refused with outputs untouched. */
#include "support/conform.h"

static void contiguous_groups(const setting *s)
{
    static const double want[] = {0, 0, 0, 1, 1, 1};
    trial t;
    conform_begin(&t, s, "b2 hq6 hk2 q3 k4 d2 data:zeros");
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t j = 0; j < 4; j++)
                for (int64_t c = 0; c < 2; c++) trial_set_v(&t, b, h, j, c, (double)h);
    conform_verify(&t);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 6; h++)
            for (int64_t i = 0; i < 3; i++) expect_o(&t, b, h, i, 1, want[h], 0);
    conform_end(&t);
}

static void refused(const setting *s, int hq, int hk)
{
    trial t;
    conform_begin(&t, s, "hq%d hk%d q3 k4 d2", hq, hk);
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "num_heads_k");
    conform_end(&t);
}

static void body(const setting *s)
{
    contiguous_groups(s);
    refused(s, 3, 2);
    refused(s, 33, 2);
    refused(s, 4, 0);
    refused(s, 2, 4);
    refused(s, 1, 3);
}

int main(void) { return conform(body); }
