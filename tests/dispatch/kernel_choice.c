/* Which kernel runs what, written out for every rung of the ladder that TLAMP_MAX_ISA lowers. A plain program, so that it also
 * runs where nothing can be compiled. Rungs that this machine or this build lacks are skipped, and named. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/parse.h"
#include "cli/policy.h"
#include "cli/problem.h"
#include "tilelamp/tilelamp.h"

enum { SCALAR, AVX2, AVXVNNI, AVX512, AVX512VNNI, AVX512BF16, AVX512FP16, AMX, RUNGS };
static const char *const rungs[RUNGS] = {"scalar",     "avx2",       "avxvnni",    "avx512",
                                         "avx512vnni", "avx512bf16", "avx512fp16", "amx"};

/* What runs a problem on a rung. NULL: what runs it on the rung below. "A|B": A where this processor has what it needs (beyond
 * its rung's name), otherwise B. */
typedef struct expectation {
    const char *problem, *policy, *kernels[RUNGS];
} expectation;

#define PV32                                                                                                           \
    {                                                                                                                  \
        [SCALAR] = "tlamp_fwd_dx__scalar", [AVX2] = "tlamp_fwd_pv32_dx__avx2",                                         \
        [AVXVNNI] = "tlamp_fwd_pv32_dx__avxvnni", [AVX512] = "tlamp_fwd_pv32_dx__avx512",                              \
        [AVX512VNNI] = "tlamp_fwd_pv32_dx__avx512vnni", [AMX] = "tlamp_fwd_pv32_dx__amx",                              \
    }
#define PV16                                                                                                           \
    {                                                                                                                  \
        [SCALAR] = "tlamp_fwd_pv16_dx__scalar", [AVX2] = "tlamp_fwd_pv16_dx__avx2",                                    \
        [AVXVNNI] = "tlamp_fwd_pv16_dx__avxvnni", [AVX512] = "tlamp_fwd_pv16_dx__avx512",                              \
        [AVX512VNNI] = "tlamp_fwd_pv16_dx__avx512vnni",                                                                \
        [AVX512BF16] = "tlamp_fwd_pv16_dx__avx512bf16|tlamp_fwd_pv16_dx__avx512vnni",                                  \
        [AMX] = "tlamp_fwd_pv16_dx__amx",                                                                              \
    }
#define FEW                                                                                                            \
    {                                                                                                                  \
        [SCALAR] = "tlamp_fwd_dx__scalar", [AVX2] = "tlamp_fwd_few_dx__avx2", [AVX512] = "tlamp_fwd_few_dx__avx512",   \
        [AVX512VNNI] = "tlamp_fwd_few_dx__avx512vnni",                                                                 \
    }
#define FEW_PV16                                                                                                       \
    {                                                                                                                  \
        [SCALAR] = "tlamp_fwd_pv16_dx__scalar", [AVX2] = "tlamp_fwd_few_pv16_dx__avx2",                                \
        [AVX512] = "tlamp_fwd_few_pv16_dx__avx512", [AVX512VNNI] = "tlamp_fwd_few_pv16_dx__avx512vnni",                \
    }
#define FEW_PV8                                                                                                        \
    {                                                                                                                  \
        [SCALAR] = "tlamp_fwd_pv8_dx__scalar", [AVX2] = "tlamp_fwd_few_pv8_dx__avx2",                                  \
        [AVX512] = "tlamp_fwd_few_pv8_dx__avx512", [AVX512VNNI] = "tlamp_fwd_few_pv8_dx__avx512vnni",                  \
    }
#define SIMULATED                                                                                                      \
    {                                                                                                                  \
        [SCALAR] = "tlamp_fwd_sim_dx__scalar", [AVX2] = "tlamp_fwd_sim_dx__avx2",                                      \
        [AVX512] = "tlamp_fwd_sim_dx__avx512vbmi|tlamp_fwd_sim_dx__avx512",                                            \
    }

static const expectation expectations[] = {
    {"hq8 q256 d128 f16", "high pv=f32", PV32},
    {"hq8 q2048 d128 f32",
     "high",
     {[SCALAR] = "tlamp_fwd_dx__scalar",
      [AVX2] = "tlamp_fwd_pv32_dx__avx2",
      [AVXVNNI] = "tlamp_fwd_pv32_dx__avxvnni",
      [AVX512] = "tlamp_fwd_pv32_dx__avx512",
      [AVX512VNNI] = "tlamp_fwd_pv32_dx__avx512vnni"}}, /* three planes of Q and of K: vectors */
    {"hq8 q256 d128 bf16",
     "high pv=f32",
     {[SCALAR] = "tlamp_fwd_dx__scalar",
      [AVX2] = "tlamp_fwd_pv32_dx__avx2",
      [AVXVNNI] = "tlamp_fwd_pv32_dx__avxvnni",
      [AVX512] = "tlamp_fwd_pv32_dx__avx512",
      [AVX512VNNI] = "tlamp_fwd_pv32_dx__avx512vnni",
      [AVX512BF16] = "tlamp_fwd_qk16_pv32_dx__avx512bf16|tlamp_fwd_pv32_dx__avx512vnni",
      [AMX] = "tlamp_fwd_pv32_dx__amx"}},
    {"hq8 q256 d128 f32", "int8 pv=f32", PV32},
    {"hq8 q256 d128 f16", "high pv=bf16", PV16},
    {"hq8 hk2 q256 d64 f16 causal", "int8 pv=bf16", PV16},
    {"hq8 hk2 q256 d64 f16 causal", "int8 pv=f32", PV32},
    {"hq8 q256 d128 f16", "band:0.5 pv=f32", PV32},
    {"hq8 q256 d128 f16", "int8 pv=f32 scales=token smooth-k", PV32},
    {"hq8 q256 d128 f16", "int8 hadamard pv=f32", PV32},
    {"hq8 q256 d128 f16",
     "x3 pv=f32",
     {[SCALAR] = "tlamp_fwd_dx__scalar",
      [AVX2] = "tlamp_fwd_pv32_dx__avx2",
      [AVXVNNI] = "tlamp_fwd_pv32_dx__avxvnni",
      [AVX512] = "tlamp_fwd_pv32_dx__avx512",
      [AVX512VNNI] = "tlamp_fwd_pv32_dx__avx512vnni",
      [AMX] = "tlamp_fwd_pv32_dx__amx"}},
    {"hq8 q256 d128 f32", "x3 pv=bf16", PV16},
    {"hq32 hk8 q1 k4096 d128 f16", "high pv=f32", FEW},
    {"hq32 hk8 q2 k4096 d80 bf16 causal splits:auto", "int8 pv=f32", FEW},
    {"hq32 hk8 q1 k4096 d128 f16", "int8", FEW},
    {"hq32 hk8 q1 k4096 d128 bf16", "int8 pv=bf16", FEW_PV16},
    {"hq32 hk8 q1 k4096 d128 bf16", "high pv=bf16", FEW_PV16},
    {"hq32 hk8 q1 k4096 d128 f16", "int8 pv=bf16", FEW_PV16},
    {"hq32 hk8 q1 k4096 d128 f32", "high pv=bf16", FEW_PV16},
    {"hq32 hk8 q1 k4096 d128 f16", "int8 pv=f32 scales=token smooth-k hadamard", FEW},
    {"hq32 hk8 q1 k4096 d128 f16", "x3 pv=f32", FEW},
    {"hq32 hk8 q1 k4096 d128 f16", "int8 pv=int8", FEW_PV8},
    {"q100 d80 dv40 f16",
     "high state=fp16",
     {[SCALAR] = "tlamp_fwd_state16_dx__scalar",
      [AVX2] = "tlamp_fwd_state16_dx__avx2",
      [AVX512] = "tlamp_fwd_state16_dx__avx512"}},
    {"q100 d80 dv40 f16",
     "int8 pv=int8",
     {[SCALAR] = "tlamp_fwd_pv8_dx__scalar",
      [AVX2] = "tlamp_fwd_pv8_dx__avx2",
      [AVXVNNI] = "tlamp_fwd_pv8_dx__avxvnni",
      [AVX512] = "tlamp_fwd_pv8_dx__avx512",
      [AVX512VNNI] = "tlamp_fwd_pv8_dx__avx512vnni",
      [AMX] = "tlamp_fwd_pv8_dx__amx"}},
    {"hq8 q256 d128 f16", "lamp:fmt=e4m3/e4m11", SIMULATED},
    {"hq8 q256 d128 f32", "lamp:low,mode=hw", SIMULATED},
};
enum { EXPECTATIONS = sizeof expectations / sizeof expectations[0] };

static const char *expected_name(const expectation *e, int rung)
{
    while (rung > 0 && !e->kernels[rung]) rung--;
    return e->kernels[rung];
}

static int is_available(const char *name, size_t length)
{
    enum { MOST = 256 };
    static tlamp_kernel_info kernels[MOST] = {{.struct_size = sizeof kernels[0]}};
    const int32_t count = tlamp_kernels(kernels, MOST);
    for (int32_t i = 0; i < count && i < MOST; i++)
        if (strlen(kernels[i].name) == length && strncmp(kernels[i].name, name, length) == 0)
            return kernels[i].available;
    return 0;
}

/* The first alternative that is available, or the last. */
static int matches(const char *expected, const char *name)
{
    for (;;) {
        const size_t length = strcspn(expected, "|");
        if (!expected[length] || is_available(expected, length))
            return strlen(name) == length && strncmp(expected, name, length) == 0;
        expected += length + 1;
    }
}

static void describe(tlamp_problem *p, const problem_spec *s, const tlamp_policy *policy)
{
    tlamp_problem_init(p, sizeof *p);
    p->batch = s->batch;
    p->max_seqlen_q = s->lq;
    p->max_seqlen_k = s->lk;
    p->num_heads_q = (int32_t)s->heads_q;
    p->num_heads_k = (int32_t)s->heads_k;
    p->head_dim_qk = (int32_t)s->d;
    p->head_dim_v = (int32_t)s->dv;
    p->q_dtype = s->q_dtype;
    p->k_dtype = s->k_dtype;
    p->v_dtype = s->v_dtype;
    p->o_dtype = s->o_dtype;
    p->mask = s->mask;
    p->num_splits = num_splits_of(s->splits);
    p->policy = policy;
    (void)tlamp_set_strides(p, TLAMP_TENSOR_BSHD, NULL);
}

static int check(const expectation *e, int rung)
{
    fault f = {.text = ""};
    problem_spec spec;
    policy_spec policy;
    tlamp_problem problem;
    tlamp_plan *plan = NULL;
    tlamp_error err = {sizeof err, TLAMP_OK, "", ""};
    if (problem_parse(&spec, e->problem, &f) || policy_parse(&policy, e->policy, &f)) {
        printf("FAIL %s\n", f.text);
        return 1;
    }
    describe(&problem, &spec, &policy.policy);
    const char *expected = expected_name(e, rung);
    const char *name = tlamp_plan_create(&plan, &problem, NULL, &err) ? err.text : tlamp_plan_kernel_name(plan);
    const int wrong = !matches(expected, name);
    if (wrong) printf("FAIL %s: \"%s\" \"%s\" runs %s, not %s\n", rungs[rung], e->problem, e->policy, name, expected);
    tlamp_plan_destroy(plan);
    return wrong;
}

enum { SKIPPED = 77 };

/* In a process of its own, since a process chooses once. */
static int check_rung(int rung)
{
    if (setenv("TLAMP_MAX_ISA", rungs[rung], 1)) return 1;
    if (strcmp(tlamp_isa(), rungs[rung]) != 0) return SKIPPED;
    int failed = 0;
    for (int i = 0; i < EXPECTATIONS; i++) failed += check(&expectations[i], rung);
    fflush(stdout);
    return failed > 0;
}

int main(void)
{
    int failed = 0, passed = 0;
    for (int rung = 0; rung < RUNGS; rung++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) _exit(check_rung(rung));
        int status = 1;
        if (child > 0) (void)waitpid(child, &status, 0);
        const int code = child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        printf("%-10s %s\n", rungs[rung],
               code == SKIPPED ? "skipped: this machine or this build has no such kernels"
               : code          ? "FAILED"
                               : "passed");
        failed += code != 0 && code != SKIPPED;
        passed += code == 0;
    }
    return failed > 0 || passed == 0;
}
