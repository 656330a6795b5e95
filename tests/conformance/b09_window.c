/* B09: a window is inclusive, lies around i + Lk - Lq, and only -1 is unlimited. */
#include <math.h>

#include "support/conform.h"

static void three_keys(const setting *s)
{
    static const double want[] = {0, 0.5, 1, 2, 3, 4};
    trial t;
    conform_begin(&t, s, "q6 k6 d1 causal window:2,0 data:ramp");
    conform_verify(&t);
    for (int i = 0; i < 6; i++) expect_o(&t, 0, 0, i, 0, want[i], 0);
    conform_end(&t);
}

/* Two problem strings that mean the same. */
static void same(const setting *s, const char *one, const char *other)
{
    trial a, b;
    conform_begin(&a, s, "%s", one);
    conform_verify(&a);
    conform_begin(&b, s, "%s", other);
    conform_verify(&b);
    expect_same(&a, &b, one);
    conform_end(&a);
    conform_end(&b);
}

static void negative(const setting *s)
{
    trial t;
    conform_begin(&t, s, "q6 k6 d1 causal");
    t.in.problem.window_left = -3;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "window_left");
    t.in.problem.window_left = -1;
    t.in.problem.window_right = -2;
    expect_refused(&t, TLAMP_INVALID_ARGUMENT, "window_right");
    conform_end(&t);
}

/* Rows whose window lies before the first key are empty. */
static void rows_outside(const setting *s)
{
    enum { ROWS = 129, KEYS = 64, LEFT = 32, RIGHT = 64 };
    trial t;
    conform_begin(&t, s, "q%d k%d d1 window:%d,%d data:ramp", ROWS, KEYS, LEFT, RIGHT);
    conform_verify(&t);
    for (int i = 0; i < ROWS; i++) {
        int n = 0, sum = 0;
        for (int j = 0; j < KEYS; j++) {
            const int distance = j - (i + KEYS - ROWS);
            if (-LEFT > distance || distance > RIGHT) continue;
            n++;
            sum += j;
        }
        if (n == 0) {
            expect_empty(&t, 0, 0, i);
            continue;
        }
        expect_o(&t, 0, 0, i, 0, (double)sum / n, 0);
        expect_lse(&t, 0, 0, i, log(n), 0);
    }
    conform_end(&t);
}

static void body(const setting *s)
{
    three_keys(s);
    same(s, "q70 k130 d8 causal window:129,0", "q70 k130 d8 causal");
    same(s, "q70 k130 d8 window:129,0", "q70 k130 d8 causal");
    same(s, "q70 k130 d8 window:-1,-1", "q70 k130 d8");
    same(s, "q70 k130 d8 window:9223372036854775807,9223372036854775807", "q70 k130 d8");
    same(s, "q70 k130 d8 causal window:9,5", "q70 k130 d8 causal window:9,0");
    negative(s);
    rows_outside(s);
}

int main(void) { return conform(body); }
