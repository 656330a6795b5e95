/* B27: a caller compiled and linked with -ffast-math: its start-up code makes the processor flush subnormal numbers, and its
 * own isinf and isnan are folded away, so results are judged as bits. The library's NaN and -Inf must survive. The cases of
 * group A run in programs linked that way too (see tests/CMakeLists.txt). */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tilelamp/tilelamp.h"

#ifndef __FAST_MATH__
#error "this test is about -ffast-math: compile it so"
#endif

static int failures;

static uint32_t bits_of(const float *x)
{
    uint32_t u;
    memcpy(&u, x, sizeof u);
    return u;
}

static void expect_bits(const float *x, uint32_t want, const char *what)
{
    if (bits_of(x) == want) return;
    printf("FAIL %s: bits 0x%08x, not 0x%08x\n", what, bits_of(x), want);
    failures++;
}

static int is_nan(const float *x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }

enum { ROWS = 5, KEYS = 2, D = 2 };
static const uint32_t minus_infinity = 0xff800000u, one = 0x3f800000u;

static void run(tlamp_policy_kind kind, const float *q, const float *k, const float *v, float *o, float *lse)
{
    tlamp_policy policy;
    tlamp_problem p;
    tlamp_tensors t;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    tlamp_policy_init(&policy, sizeof policy);
    tlamp_problem_init(&p, sizeof p);
    tlamp_tensors_init(&t, sizeof t);
    policy.kind = kind;
    p.policy = &policy;
    p.max_seqlen_q = ROWS;
    p.max_seqlen_k = KEYS;
    p.num_heads_q = p.num_heads_k = 1;
    p.head_dim_qk = p.head_dim_v = D;
    p.mask = TLAMP_MASK_CAUSAL;
    t.q = q;
    t.k = k;
    t.v = v;
    t.o = o;
    t.lse = lse;
    if (tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, &err) || tlamp_attention(&p, &t, NULL, &err)) {
        printf("FAIL %s\n", err.text);
        failures++;
    }
}

static void empty_rows(tlamp_policy_kind kind)
{
    const float q[ROWS * D] = {0}, k[KEYS * D] = {0}, v[KEYS * D] = {1, 1, 1, 1};
    float o[ROWS * D], lse[ROWS];
    run(kind, q, k, v, o, lse);
    for (int i = 0; i < ROWS; i++) {
        expect_bits(&o[i * D], i < 3 ? 0 : one, "o of rows without and with keys");
        if (i < 3) expect_bits(&lse[i], minus_infinity, "lse of a row without keys");
    }
}

/* Key 1, which only the last row sees, holds a NaN. */
static void nan_key(tlamp_policy_kind kind)
{
    const uint32_t nan = 0x7fc00000u;
    float q[ROWS * D] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, k[KEYS * D] = {0}, v[KEYS * D] = {1, 1, 1, 1};
    float o[ROWS * D], lse[ROWS];
    memcpy(&k[D], &nan, sizeof nan);
    run(kind, q, k, v, o, lse);
    expect_bits(&o[3 * D], one, "o of the row that does not see the NaN");
    if (!is_nan(&o[4 * D]) || !is_nan(&lse[4])) {
        puts("FAIL the NaN is lost");
        failures++;
    }
}

/* Is this program's arithmetic flushing? If not, it tests less than it means to. */
static int flushes(void)
{
    volatile float tiny = 0x1p-126f;
    volatile float half = tiny * 0.5f;
    float x = half;
    return (bits_of(&x) & 0x7fffffffu) == 0;
}

int main(void)
{
    printf("subnormal numbers are %s\n", flushes() ? "flushed" : "kept");
    for (tlamp_policy_kind kind = TLAMP_POLICY_HIGH; kind <= TLAMP_POLICY_INT8; kind++) {
        empty_rows(kind);
        nan_key(kind);
    }
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}
