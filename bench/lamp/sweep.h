/* LampAttention over its parameters, on one input: tau, delta and the rows of a warp, beside the three baselines. */
#ifndef TL_LAMP_SWEEP_H
#define TL_LAMP_SWEEP_H

#include "trial.h"

enum { NUM_TAUS = 6, NUM_DELTAS = 3, NUM_ROWS = 3, SWEEP_TEXT = 96 };

/* Index i of them is ... */
extern const char *const sweep_taus[NUM_TAUS];     /* 1, 2^-1, ... 2^-5 */
extern const char *const sweep_deltas[NUM_DELTAS]; /* 2^-8, 2^-4, off */
extern const int32_t sweep_rows[NUM_ROWS];         /* b_q: 16, 32, 128 */

/* The paper's choice: tau = 2^-1 and delta = 2^-8. It does not say b_q. */
enum { HEADLINE_TAU = 1, HEADLINE_DELTA = 0, HEADLINE_ROWS = 1 };

typedef struct sweep {
    char name[SWEEP_TEXT];
    trial low, mid, f32; /* baselines: 8, 16 and 32 bits */
    trial lamp[NUM_DELTAS][NUM_ROWS][NUM_TAUS];
    trial compact[NUM_ROWS]; /* at the paper's choice */
    trial hw[NUM_ROWS];
} sweep;

/* "lamp:fmt=e4m3/e4m11,tau=2^-1,delta=2^-8,bq=32" and then `more`. */
typedef struct sweep_policy {
    char text[SWEEP_TEXT];
} sweep_policy;
sweep_policy sweep_policy_of(int delta, int rows, int tau, const char *more);

int sweep_run(sweep *s, const lamp_input *in, fault *f);

/* The largest (smallest) relative error of anything but 32 bits. */
double sweep_worst(const sweep *s);
double sweep_best(const sweep *s);

#endif
