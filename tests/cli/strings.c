/* Problem and policy strings, and the data that problems describe. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/data.h"
#include "cli/parse.h"
#include "cli/policy.h"
#include "cli/problem.h"

static int failures;

static void check(int good, const char *what, const char *text)
{
    if (good) return;
    failures++;
    printf("FAILED: %s: %s\n", what, text);
}

/* One line, which says what to do. */
static int is_one_line(const fault *f)
{
    return f->text[0] && !strchr(f->text, '\n') && strchr(f->text, ':') && strlen(f->text) < 1000;
}

/* ------------------------------------------------------------------------------------------------ problems */

static int same_spec(const problem_spec *a, const problem_spec *b) { return memcmp(a, b, sizeof *a) == 0; }

/* What a string parses to is printed canonically, and that parses to the same. */
static void check_round_trip(const char *text)
{
    static problem_spec first, second;
    fault f = {.code = DONE};
    check(problem_parse(&first, text, &f) == DONE, f.text, text);
    char *printed = problem_print(&first);
    check(printed && problem_parse(&second, printed, &f) == DONE, "printed, it does not parse", text);
    char *again = problem_print(&second);
    check(printed && again && strcmp(printed, again) == 0 && same_spec(&first, &second),
          "printed, it means something else", text);
    free(printed);
    free(again);
}

static const char *const good_problems[] = {
    "q5 d40",
    "b1 hq9 hk3 q1024 k1024 d64 dv64 f16 causal window:127,0 softcap:30 scale:0.125 layout:bshd seed:7 data:normal",
    "hq6 hk2 q5 k2 d40 causal-tl bias:bf16 alibi sinks:0.5 out:f32 f16",
    "varlen:5,0,7/9,3,7 d8 hq2 used:9,0,4 mask:rowempty",
    "q9 varlen:5,0,7/9,3,7 d8 k20 b3",
    "b3 q4 d8 layout:thd sinks:-inf",
    "b0 q4 d8 layout:thd",
    "hq3 q4 d8 sinks:0.1,-2,3e4 pad:3 splits:2 threads:4",
    "q4 k9 d8 splits:auto",
    "q6 k6 d8 layout:fused f16 data:nanhidden",
    "varlen:5,6/5,6 d8 layout:fused",
    "q6 d8 f16/bf16/f32 out:bf16 window:-1,9223372036854775807",
    "q0 k0 d1 hq0 hk0",
    "b1048576 q1 d1 seed:18446744073709551615",
    "q2147483647 d65536",
    "q6 d8 scale:2^-3 softcap:0 cache:int8",
};

static const char *const bad_problems[] = {
    "",
    "d4",
    "q4",
    "q4 d0",
    "q4 d4 d5",
    "q4 d4 hqq3",
    "q4 d4 f16 f32",
    "q4 d4 causal causal-tl",
    "q4 d4 causal:1",
    "q4 d4 window",
    "q4 d4 window:",
    "q4 d4 window:1",
    "q4 d4 window:1,",
    "q4 d4 window:-2,0",
    "q4 d4 window:1,2,3",
    "q-1 d4",
    "q+4 d4",
    "q4x d4",
    "q4 d4 q",
    "q99999999999999999999 d4",
    "q2147483648 d4",
    "b4 q1073741824 d4",
    "q4 d4 softcap:nan",
    "q4 d4 softcap:-1",
    "q4 d4 softcap:inf",
    "q4 d4 softcap:0x10",
    "q4 d4 scale:0",
    "q4 d4 scale:1e99",
    "q4 d4 mask:none",
    "q4 d4 mask:foo",
    "q4 d4 bias",
    "q4 d4 bias:int8",
    "q4 d4 sinks:nan",
    "q4 d4 hq3 sinks:1,2",
    "q4 d4 used:5",
    "q4 d4 used:1,2",
    "q4 d4 used:",
    "q4 d4 used:-1",
    "varlen:1/2,3 d4",
    "varlen: d4",
    "varlen:1 d4",
    "varlen:/ d4",
    "b2 varlen:1/1 d4",
    "varlen:5/5 q4 d4",
    "varlen:5/5 d4 layout:bshd",
    "q4 d4 layout:xyz",
    "q4 k5 d4 layout:fused",
    "q4 d4 dv5 layout:fused",
    "q4 d4 layout:fused f16/f32/f16",
    "q4 d4 data:foo",
    "q4 d4 seed:-1",
    "q4 d4 pad:-1",
    "q4 d4 splits:0",
    "q4 d4 threads:0",
    "q4 d4 cache:none",
    "q4 d4 f16/bf16",
    "q4 d4 f16/bf16/f32/f32",
    "q4 d4 \x01",
    "q4 d4 out:f64",
    "q4 d4 hq1e3",
    "b1025 q4 d4 layout:thd",
    "varlen:2147483647,2147483647/1,1 d4",
};

static void check_problems(void)
{
    for (size_t i = 0; i < sizeof good_problems / sizeof good_problems[0]; i++) check_round_trip(good_problems[i]);
    for (size_t i = 0; i < sizeof bad_problems / sizeof bad_problems[0]; i++) {
        static problem_spec spec;
        fault f = {.code = DONE};
        check(problem_parse(&spec, bad_problems[i], &f) == BAD_INPUT, "is accepted", bad_problems[i]);
        check(is_one_line(&f), "is not refused with one line", bad_problems[i]);
    }
}

/* ------------------------------------------------------------------------------------------------ policies */

static const struct {
    const char *text;
    tlamp_policy_kind kind;
} good_policies[] = {
    {"high", TLAMP_POLICY_HIGH},
    {"int8 smooth-k scales=token", TLAMP_POLICY_INT8},
    {"one", TLAMP_POLICY_ROUTED},
    {"band:0.5 tile=64x64 g=2 retarget=7", TLAMP_POLICY_ROUTED},
    {"sptrans_scaled:1", TLAMP_POLICY_ROUTED},
    {"words:a/b:c.json", TLAMP_POLICY_ROUTED},
    {"x3", TLAMP_POLICY_X3},
    {"lamp:int8,tau=0.1", TLAMP_POLICY_LAMP},
    {"lamp:fmt=e4m3/e4m11,mode=hw,delta=2^-8,tau=2^-1,bq=32,bk=16,nk=4", TLAMP_POLICY_LAMP},
    {"lamp:int8,delta=off splits=2 pv=int8 state=fp16 quant=fly", TLAMP_POLICY_LAMP},
    {"lamp:low round=stochastic", TLAMP_POLICY_LAMP},
    {"lamp:f32", TLAMP_POLICY_LAMP},
    {"lamp:int8,tau=0.1 gate=band:0.5 g=2 layout=compact", TLAMP_POLICY_LAMP},
    {"tolerance:0.03,eps=stat6,kind=output", TLAMP_POLICY_TOLERANCE},
};

static const struct {
    const char *text;
    int code;
} bad_policies[] = {
    {"", BAD_INPUT},
    {"foo", BAD_INPUT},
    {"high:1", BAD_INPUT},
    {"band", BAD_INPUT},
    {"band:", BAD_INPUT},
    {"band:1.1", BAD_INPUT},
    {"band:nan", BAD_INPUT},
    {"one:0.5", BAD_INPUT},
    {"int8 g=2", BAD_INPUT},
    {"high retarget=1", BAD_INPUT},
    {"band:0.5 g=0", BAD_INPUT},
    {"band:0.5 tile=64", BAD_INPUT},
    {"band:0.5 tile=64x", BAD_INPUT},
    {"band:0.5 tile=64x64 tile=64x64", BAD_INPUT},
    {"band:0.5 foo", BAD_INPUT},
    {"band:0.5 foo=1", BAD_INPUT},
    {"band:0.5 smooth-k=1", BAD_INPUT},
    {"words:", BAD_INPUT},
    {"words", BAD_INPUT},
    {"lamp", BAD_INPUT},
    {"lamp:tau=x", BAD_INPUT},
    {"lamp:fmt", BAD_INPUT},
    {"tolerance:", BAD_INPUT},
    {"tolerance:-1", BAD_INPUT},
    {"tolerance:1,eps=foo", BAD_INPUT},
    {"adaptive:budget=0.75", UNAVAILABLE},
    {"int8 gate=band:0.5", BAD_INPUT},
    {"lamp:int8 gate=nonsense:0.5", BAD_INPUT},
    {"int8 round=stochastic", BAD_INPUT},
    {"int8 layout=compact", BAD_INPUT},
    {"lamp:int8 layout=loose", BAD_INPUT},
    {"lamp:high", BAD_INPUT},
};

static void check_policies(void)
{
    policy_spec spec;
    for (size_t i = 0; i < sizeof good_policies / sizeof good_policies[0]; i++) {
        fault f = {.code = DONE};
        const int code = policy_parse(&spec, good_policies[i].text, &f);
        check(code == DONE && spec.policy.kind == good_policies[i].kind, f.text, good_policies[i].text);
    }
    for (size_t i = 0; i < sizeof bad_policies / sizeof bad_policies[0]; i++) {
        fault f = {.code = DONE};
        check(policy_parse(&spec, bad_policies[i].text, &f) == bad_policies[i].code, "has another exit code",
              bad_policies[i].text);
        check(is_one_line(&f), "is not refused with one line", bad_policies[i].text);
    }
    static char huge[5000];
    memset(huge, 'a', sizeof huge - 1);
    fault f = {.code = DONE};
    check(policy_parse(&spec, huge, &f) == BAD_INPUT && is_one_line(&f), "is accepted", "a policy of 5000 letters");
}

/* ------------------------------------------------------------------------------------------------ mutations */

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* Overwrites, removes or doubles a few characters. */
static void mutate(char *text, size_t room)
{
    static const char letters[] = "0123456789:,./-+eE^xbhqkdvfs \t=%\x7f\xff";
    for (uint32_t n = 1 + random_below(4); n > 0; n--) {
        const size_t length = strlen(text);
        if (!length) return;
        char *at = text + random_below((uint32_t)length);
        switch (random_below(3)) {
        case 0: *at = letters[random_below(sizeof letters - 1)]; break;
        case 1: memmove(at, at + 1, strlen(at)); break;
        default:
            if (length + 1 < room) memmove(at + 1, at, strlen(at) + 1);
        }
    }
}

static void check_mutations(void)
{
    static problem_spec spec;
    policy_spec policy;
    fault f;
    char text[300];
    for (int round = 0; round < 100000; round++) {
        const uint32_t which = random_below(sizeof good_problems / sizeof good_problems[0]);
        (void)snprintf(text, sizeof text, "%s", good_problems[which]);
        mutate(text, sizeof text);
        if (problem_parse(&spec, text, &f) == DONE)
            check_round_trip(text);
        else
            check(f.code == BAD_INPUT && is_one_line(&f), "is not refused with one line", text);
        (void)snprintf(text, sizeof text, "%s",
                       good_policies[random_below(sizeof good_policies / sizeof good_policies[0])].text);
        mutate(text, sizeof text);
        if (policy_parse(&policy, text, &f)) check(is_one_line(&f), "is not refused with one line", text);
    }
}

/* ------------------------------------------------------------------------------------------------ data */

static void make(input *in, const char *text)
{
    static problem_spec spec;
    fault f = {.code = DONE};
    if (problem_parse(&spec, text, &f) || input_create(in, &spec, &f) || input_fill(in, &f)) {
        printf("FAILED: %s: %s\n", f.text, text);
        exit(1);
    }
}

static double key_at(const input *in, int64_t b, int64_t j, int64_t h, int64_t c)
{
    return tensor_get(in->k, in->spec.k_dtype,
                      input_offset(&in->problem.k_stride, in->tensors.cu_seqlens_k, b, j, h) + c);
}

/* The same problem holds the same numbers in every layout. */
static void check_layouts(void)
{
    static const char *const layouts[] = {"layout:bhsd", "layout:thd", "layout:fused", "layout:bshd pad:3",
                                          "layout:fused pad:1"};
    static input first, other;
    make(&first, "b2 hq3 q5 d4 data:qknorm");
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "b2 hq3 q5 d4 data:qknorm %s", layouts[i]);
        make(&other, text);
        int same = 1;
        for (int64_t n = 0; n < (int64_t)2 * 5 * 3 * 4; n++) {
            const int64_t b = n / 60, j = n / 12 % 5, h = n / 4 % 3, c = n % 4;
            same = same && key_at(&first, b, j, h, c) == key_at(&other, b, j, h, c);
        }
        check(same, "other numbers than in layout:bshd", text);
        input_free(&other);
    }
    input_free(&first);
}

static void check_contents(void)
{
    static input in;
    make(&in, "q3 k4 d4 pad:2 causal");
    check(isnan(key_at(&in, 0, 3, 0, 4)) && isnan(key_at(&in, 0, 0, 0, 5)) && !isnan(key_at(&in, 0, 0, 0, 3)), "gaps",
          "pad:2");
    input_free(&in);
    make(&in, "q3 k5 d4 window:0,0 data:nanhidden");
    check(isnan(key_at(&in, 0, 1, 0, 0)) && !isnan(key_at(&in, 0, 2, 0, 0)), "hidden keys", "data:nanhidden");
    input_free(&in);
    make(&in, "q3 k5 d4 used:3 data:nanhidden");
    check(isnan(key_at(&in, 0, 3, 0, 0)) && !isnan(key_at(&in, 0, 2, 0, 0)), "unused keys", "data:nanhidden used:3");
    input_free(&in);
    make(&in, "q3 k5 d4 data:onehot f16");
    check(key_at(&in, 0, 4, 0, 3) == 4 && key_at(&in, 0, 4, 0, 2) == 0, "wrong keys", "data:onehot");
    input_free(&in);
}

/* Mean 0, variance 1. */
static void check_normal(void)
{
    static input in;
    make(&in, "q1 k1000 d100");
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < 1000; j++)
        for (int64_t c = 0; c < 100; c++) {
            sum += key_at(&in, 0, j, 0, c);
            squares += key_at(&in, 0, j, 0, c) * key_at(&in, 0, j, 0, c);
        }
    check(fabs(sum * 1e-5) < 0.02 && fabs(squares * 1e-5 - 1) < 0.02, "not N(0,1)", "data:normal");
    input_free(&in);
}

static void check_hostile_sizes(void)
{
    static const char *const texts[] = {"q2147483647 hq65536 d65536", "b1048576 q2000 d65536 hq65536 pad:1048576",
                                        "q2147483647 d1 mask:random", "q1000000 d1 bias:f32"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        static problem_spec spec;
        static input in;
        fault f = {.code = DONE};
        int code = problem_parse(&spec, texts[i], &f);
        if (!code) code = input_create(&in, &spec, &f);
        check(code == BAD_INPUT && is_one_line(&f), "is not refused", texts[i]);
    }
}

int main(void)
{
    check_problems();
    check_policies();
    check_mutations();
    check_layouts();
    check_contents();
    check_normal();
    check_hostile_sizes();
    if (!failures) printf("strings: all passed\n");
    return failures != 0;
}
