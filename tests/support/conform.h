/* What the conformance programs share: one body, run for every instruction set, policy and layout, and checks that count.
 *
 *     static void body(const setting *s)
 *     {
 *         trial t;
 *         conform_begin(&t, s, "q%d k2 d1 causal data:ramp", 5);
 *         conform_verify(&t);                      // bounds, bits, canaries: trial_verify
 *         expect_o(&t, 0, 0, 4, 0, 0.5, 0);        // and what the case says
 *         conform_end(&t);
 *     }
 *     int main(void) { return conform(body); }
 */
#ifndef TL_TEST_CONFORM_H
#define TL_TEST_CONFORM_H

#include "trial.h"

enum { SKIPPED = 77 };

typedef struct setting {
    const char *policy, *layout;
} setting;

/* Exit code of the program. Policies: high, int8 (with and without smoothing), a mixture, x3 and INT8 P V; layouts bshd, bhsd, thd. */
int conform(void (*body)(const setting *));
/* The same with one setting, high and bshd. */
int conform_once(void (*body)(const setting *));

/* The device that TILELAMP_TEST_DEVICE names, or -1. Trials run there with the scalar kernels, and must have the host's bits. */
int32_t conform_device(void);

bool is_high(const setting *s);
bool has_int8_values(const setting *s); /* V is quantised: no element of O is exact */

/* A trial with the setting's policy, and its layout unless the problem is packed or names one. */
#if defined __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
void conform_begin(trial *t, const setting *s, const char *problem, ...);
void conform_verify(trial *t);
void conform_end(trial *t);

/* Counts; prints the message where ok is false. Returns ok. */
#if defined __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
bool expect(bool ok, const char *format, ...);

/* The result is `want`, within the policy's bound plus `printed`: half a unit of the last digit that the case states. */
void expect_o(const trial *t, int64_t b, int64_t h, int64_t i, int64_t c, double want, double printed);
void expect_lse(const trial *t, int64_t b, int64_t h, int64_t i, double want, double printed);

/* O = 0 and LSE = -Inf, exactly. */
void expect_empty(const trial *t, int64_t b, int64_t h, int64_t i);

/* The call answers `status` about `field` and touches no output. */
void expect_refused(trial *t, tlamp_status status, const char *field);

/* Both trials have the same rows, and wrote the same bits. */
void expect_same(const trial *a, const trial *b, const char *what);

#endif
