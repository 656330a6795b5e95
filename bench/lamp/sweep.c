#include "sweep.h"

#include <stdio.h>

const char *const sweep_taus[NUM_TAUS] = {"1", "2^-1", "2^-2", "2^-3", "2^-4", "2^-5"};
const char *const sweep_deltas[NUM_DELTAS] = {"2^-8", "2^-4", "off"};
const int32_t sweep_rows[NUM_ROWS] = {16, 32, 128};

sweep_policy sweep_policy_of(int delta, int rows, int tau, const char *more)
{
    sweep_policy p;
    (void)snprintf(p.text, sizeof p.text, "lamp:fmt=e4m3/e4m11,tau=%s,delta=%s,bq=%d%s", sweep_taus[tau],
                   sweep_deltas[delta], sweep_rows[rows], more);
    return p;
}

static int try_headline(trial *t, const lamp_input *in, int rows, const char *more, fault *f)
{
    return lamp_try(t, in, sweep_policy_of(HEADLINE_DELTA, rows, HEADLINE_TAU, more).text, f);
}

int sweep_run(sweep *s, const lamp_input *in, fault *f)
{
    (void)snprintf(s->name, sizeof s->name, "%s", in->e.name);
    int code = lamp_try(&s->low, in, "lamp:low", f);
    if (!code) code = lamp_try(&s->mid, in, "lamp:mid", f);
    if (!code) code = lamp_try(&s->f32, in, "lamp:f32", f);
    for (int rows = 0; rows < NUM_ROWS; rows++) {
        for (int delta = 0; delta < NUM_DELTAS; delta++)
            for (int tau = 0; tau < NUM_TAUS && !code; tau++)
                code = lamp_try(&s->lamp[delta][rows][tau], in, sweep_policy_of(delta, rows, tau, "").text, f);
        if (!code) code = try_headline(&s->compact[rows], in, rows, " layout=compact", f);
        if (!code) code = try_headline(&s->hw[rows], in, rows, ",mode=hw", f);
    }
    return code;
}

typedef double choose(double a, double b);
static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

static double over_errors(const sweep *s, choose *of)
{
    double error = of(s->low.rel_mae, s->mid.rel_mae);
    for (int delta = 0; delta < NUM_DELTAS; delta++)
        for (int rows = 0; rows < NUM_ROWS; rows++)
            for (int tau = 0; tau < NUM_TAUS; tau++) error = of(error, s->lamp[delta][rows][tau].rel_mae);
    return error;
}

double sweep_worst(const sweep *s) { return over_errors(s, larger); }

double sweep_best(const sweep *s) { return over_errors(s, smaller); }
