/* src/dispatch.c and cpu/cpuid.c: which kernel runs on which processor, whatever this machine is. */
#include <criterion/criterion.h>

#include <stddef.h>
#include <string.h>

#include "cpu_features.h"
#include "dispatch.h"
#include "tilelamp/tilelamp.h"

/* ---------------------------------------------------------------------------------------------- processors */

Test(dispatch, a_processor_with_the_bf16_instruction_may_be_slow_at_it)
{
    const struct {
        tl_cpu_identity who;
        int fast;
        const char *name;
    } cases[] = {
        {{"AuthenticAMD", 0x19, 0x11}, 1, "Zen 4, Genoa"},
        {{"AuthenticAMD", 0x19, 0x61}, 1, "Zen 4, Raphael"},
        {{"AuthenticAMD", 0x1a, 0x02}, 1, "Zen 5, Turin"},
        {{"AuthenticAMD", 0x1a, 0x44}, 1, "Zen 5, Granite Ridge"},
        {{"GenuineIntel", 0x06, 0x55}, 1, "Cooper Lake"},
        {{"GenuineIntel", 0x06, 0x8f}, 0, "Sapphire Rapids"},
        {{"GenuineIntel", 0x06, 0xcf}, 0, "Emerald Rapids"},
        {{"GenuineIntel", 0x06, 0xad}, 0, "Granite Rapids"},
        {{"GenuineIntel", 0x13, 0x01}, 0, "a later family"},
        {{"AuthenticAMD", 0x17, 0x31}, 0, "Zen 2"},
        {{"HygonGenuine", 0x18, 0x01}, 0, "an unknown maker"},
        {{"", 0, 0}, 0, "nobody"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_eq(tl_cpu_bf16_is_fast(&cases[i].who), cases[i].fast, "%s", cases[i].name);
}

enum {
    ZEN_3 = TL_CPU_AVX2,
    ALDER_LAKE = TL_CPU_AVX2 | TL_CPU_AVX_VNNI,
    SKYLAKE_X = TL_CPU_AVX2 | TL_CPU_AVX512,
    ICE_LAKE = SKYLAKE_X | TL_CPU_AVX512_VNNI | TL_CPU_AVX512_VBMI,
    ZEN_4 = ICE_LAKE | TL_CPU_AVX512_BF16 | TL_CPU_FAST_BF16,
    RAPIDS_WITHOUT_AMX = ICE_LAKE | TL_CPU_AVX512_BF16 | TL_CPU_AVX512_FP16 | TL_CPU_AVX_VNNI
};

#if TILELAMP_HAVE_AVX2 && TILELAMP_HAVE_AVXVNNI && TILELAMP_HAVE_AVX512 && TILELAMP_HAVE_AVX512VNNI &&                 \
    TILELAMP_HAVE_AVX512BF16

typedef struct {
    uint32_t features;
    const char *isa; /* TLAMP_MAX_ISA; NULL: not set */
    tlamp_policy_kind kind;
    tlamp_dtype dtype;
    tlamp_pv pv;
    const char *kernel;
    tlamp_pv resolved;
} choice;

static const choice choices[] = {
    {0, NULL, TLAMP_POLICY_HIGH, TLAMP_F32, TLAMP_PV_AUTO, "tlamp_fwd_dx__scalar", TLAMP_PV_F32},
    {0, NULL, TLAMP_POLICY_INT8, TLAMP_F16, TLAMP_PV_BF16, "tlamp_fwd_pv16_dx__scalar", TLAMP_PV_BF16},
    {0, NULL, TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_INT8, "tlamp_fwd_pv8_dx__scalar", TLAMP_PV_INT8},

    {ZEN_3, NULL, TLAMP_POLICY_HIGH, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx2", TLAMP_PV_F32},
    {ZEN_3, NULL, TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx2", TLAMP_PV_F32},
    {ZEN_3, NULL, TLAMP_POLICY_HIGH, TLAMP_F32, TLAMP_PV_BF16, "tlamp_fwd_pv16_dx__avx2", TLAMP_PV_BF16},
    {ZEN_3, "scalar", TLAMP_POLICY_HIGH, TLAMP_F32, TLAMP_PV_AUTO, "tlamp_fwd_dx__scalar", TLAMP_PV_F32},
    {ALDER_LAKE, NULL, TLAMP_POLICY_ROUTED, TLAMP_F32, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avxvnni", TLAMP_PV_F32},
    {ALDER_LAKE, NULL, TLAMP_POLICY_INT8, TLAMP_F32, TLAMP_PV_BF16, "tlamp_fwd_pv16_dx__avxvnni", TLAMP_PV_BF16},
    {ALDER_LAKE, "avx2", TLAMP_POLICY_INT8, TLAMP_F32, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx2", TLAMP_PV_F32},
    {SKYLAKE_X, NULL, TLAMP_POLICY_INT8, TLAMP_F16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512", TLAMP_PV_F32},
    {SKYLAKE_X, NULL, TLAMP_POLICY_INT8, TLAMP_F16, TLAMP_PV_BF16, "tlamp_fwd_pv16_dx__avx512", TLAMP_PV_BF16},
    {ICE_LAKE, NULL, TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512vnni", TLAMP_PV_F32},
    {ICE_LAKE, NULL, TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_BF16, "tlamp_fwd_pv16_dx__avx512vnni", TLAMP_PV_BF16},

    {ZEN_4, NULL, TLAMP_POLICY_HIGH, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_qk16_pv16_dx__avx512bf16", TLAMP_PV_BF16},
    {ZEN_4, NULL, TLAMP_POLICY_HIGH, TLAMP_BF16, TLAMP_PV_F32, "tlamp_fwd_qk16_pv32_dx__avx512bf16", TLAMP_PV_F32},
    {ZEN_4, NULL, TLAMP_POLICY_HIGH, TLAMP_F16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512vnni", TLAMP_PV_F32},
    {ZEN_4, NULL, TLAMP_POLICY_HIGH, TLAMP_F32, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512vnni", TLAMP_PV_F32},
    {ZEN_4, NULL, TLAMP_POLICY_HIGH, TLAMP_F32, TLAMP_PV_BF16, "tlamp_fwd_pv16_dx__avx512bf16", TLAMP_PV_BF16},
    {ZEN_4, NULL, TLAMP_POLICY_INT8, TLAMP_F32, TLAMP_PV_AUTO, "tlamp_fwd_pv16_dx__avx512bf16", TLAMP_PV_BF16},
    {ZEN_4, NULL, TLAMP_POLICY_INT8, TLAMP_F32, TLAMP_PV_F32, "tlamp_fwd_pv32_dx__avx512vnni", TLAMP_PV_F32},
    {ZEN_4, NULL, TLAMP_POLICY_ROUTED, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_qk16_pv16_dx__avx512bf16", TLAMP_PV_BF16},
    {ZEN_4, "avx512vnni", TLAMP_POLICY_INT8, TLAMP_F32, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512vnni", TLAMP_PV_F32},

    /* What is slow is passed over, unless it is named. */
    {RAPIDS_WITHOUT_AMX, NULL, TLAMP_POLICY_HIGH, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512vnni",
     TLAMP_PV_F32},
    {RAPIDS_WITHOUT_AMX, NULL, TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_BF16, "tlamp_fwd_pv16_dx__avx512vnni",
     TLAMP_PV_BF16},
    {RAPIDS_WITHOUT_AMX, "amx", TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512vnni",
     TLAMP_PV_F32},
    {RAPIDS_WITHOUT_AMX, "avx512bf16", TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_AUTO,
     "tlamp_fwd_qk16_pv16_dx__avx512bf16", TLAMP_PV_BF16},
    {ICE_LAKE, "avx512bf16", TLAMP_POLICY_INT8, TLAMP_BF16, TLAMP_PV_AUTO, "tlamp_fwd_pv32_dx__avx512vnni",
     TLAMP_PV_F32},
};

Test(dispatch, the_kernel_of_each_processor)
{
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        const choice *c = &choices[i];
        tlamp_policy policy;
        tlamp_problem p;
        tlamp_policy_init(&policy, sizeof policy);
        tlamp_problem_init(&p, sizeof p);
        policy.kind = c->kind;
        policy.pv = c->pv;
        p.policy = &policy;
        p.q_dtype = p.k_dtype = p.v_dtype = p.o_dtype = c->dtype;
        p.batch = p.num_heads_q = p.num_heads_k = 1;
        p.max_seqlen_q = p.max_seqlen_k = 300;
        p.head_dim_qk = p.head_dim_v = 64;
        const tl_machine machine = tl_machine_of(c->features, c->isa);
        tlamp_pv pv = TLAMP_PV_AUTO;
        const tl_kernel *kernel = tl_find_kernel(&pv, &machine, &p);
        cr_assert(kernel, "choice %zu: none", i);
        cr_assert_str_eq(kernel->name, c->kernel, "choice %zu: %s", i, kernel->name);
        cr_assert_eq(pv, c->resolved, "choice %zu: %d", i, (int)pv);
    }
}

#endif

/* ---------------------------------------------------------------------------------------------- plans */

Test(dispatch, a_plan_tells_what_pv_auto_is)
{
    tlamp_problem p;
    tlamp_problem_init(&p, sizeof p);
    p.batch = p.num_heads_q = p.num_heads_k = 1;
    p.max_seqlen_q = p.max_seqlen_k = 5;
    p.head_dim_qk = p.head_dim_v = 8;
    cr_assert_eq(tlamp_set_strides(&p, TLAMP_TENSOR_BSHD, NULL), TLAMP_OK);
    for (tlamp_pv pv = TLAMP_PV_AUTO; pv <= TLAMP_PV_INT8; pv++) {
        tlamp_policy policy;
        tlamp_policy_init(&policy, sizeof policy);
        policy.pv = pv;
        p.policy = &policy;
        tlamp_plan *plan;
        cr_assert_eq(tlamp_plan_create(&plan, &p, NULL, NULL), TLAMP_OK, "pv %d", (int)pv);
        cr_assert_eq(tlamp_plan_pv(plan), pv == TLAMP_PV_AUTO ? TLAMP_PV_F32 : pv); /* HIGH, f32 */
        tlamp_plan_destroy(plan);
    }
    cr_assert_eq(tlamp_plan_pv(NULL), TLAMP_PV_AUTO);
}
