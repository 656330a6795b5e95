#include "dispatch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/quantize.h"
#include "cpu_features.h"
#include "device.h"
#include "status.h"

/* ------------------------------------------------------------------------------------------------ kernels */

#define TL_KERNEL(symbol, isa, features) extern const tl_kernel symbol;
#include "kernels.def"
#undef TL_KERNEL

typedef struct {
    const tl_kernel *kernel;
    uint32_t features; /* what the processor must have */
} tl_entry;

static const tl_entry entries[] = {
#define TL_KERNEL(symbol, isa, features) {&symbol, features},
#include "kernels.def"
#undef TL_KERNEL
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

/* ------------------------------------------------------------------------------------------------ instruction sets */

/* The ladder that TLAMP_MAX_ISA lowers, worst first. A kernel's isa is one of these. */
static const char *const ladder[] = {"scalar",     "avx2",       "avxvnni",    "avx512",
                                     "avx512vnni", "avx512bf16", "avx512fp16", "amx"};
enum { RUNGS = sizeof ladder / sizeof ladder[0], ANY = RUNGS }; /* ANY: all of them, none named */

#define LADDER "scalar, avx2, avxvnni, avx512, avx512vnni, avx512bf16, avx512fp16 or amx"

/* NONE: it is no name, and no kernel is at or below it. */
enum { NONE = -1, UNREAD = -2 };

static int rung_of(const char *isa)
{
    for (int i = 0; i < RUNGS; i++)
        if (strcmp(ladder[i], isa) == 0) return i;
    return NONE;
}

static _Atomic int max_rung = UNREAD; /* of the environment, or what was set */
static _Atomic int planned;           /* a plan was made: the choice is final */

/* Threads that race read the same environment and write the same value. */
static int highest_rung(void)
{
    int rung = atomic_load(&max_rung);
    if (rung != UNREAD) return rung;
    const char *name = getenv("TLAMP_MAX_ISA");
    rung = name && *name ? rung_of(name) : ANY;
    int unread = UNREAD;
    return atomic_compare_exchange_strong(&max_rung, &unread, rung) ? rung : unread;
}

int tl_is_scalar_only(void) { return highest_rung() == 0; }

tl_machine tl_this_machine(void) { return (tl_machine){tl_cpu_features(), highest_rung()}; }

tl_machine tl_machine_of(uint32_t features, const char *isa)
{
    return (tl_machine){features, isa ? rung_of(isa) : ANY};
}

/* Can the machine run it, and may it? Permission for tiles is asked only where all else is there. */
static int is_allowed(const tl_entry *e, const tl_machine *m)
{
    const uint32_t needed = e->features & ~(uint32_t)TL_CPU_SPEEDS;
    if ((needed & ~m->features) != 0 || rung_of(e->kernel->isa) > m->rung) return 0;
    return !(e->features & TL_CPU_AMX) || tl_cpu_permits_tiles();
}

/* Is it fast, too, or of the instruction set that was named? */
static int is_available(const tl_entry *e, const tl_machine *m)
{
    return is_allowed(e, m) && ((e->features & ~m->features) == 0 || rung_of(e->kernel->isa) == m->rung);
}

static tlamp_kernel_info describe(const tl_entry *e, const tl_machine *m)
{
    const int available = is_available(e, m), slow = !available && is_allowed(e, m);
    return (tlamp_kernel_info){sizeof(tlamp_kernel_info), e->kernel->name, e->kernel->isa, available, slow};
}

/* The caller's header may have a smaller or a larger struct: the first one's size is the stride of the array. */
int32_t tlamp_kernels(tlamp_kernel_info *kernels, int32_t count)
{
    const tl_machine here = tl_this_machine();
    if (!kernels || count < 1) return ENTRIES;
    const size_t stride = kernels->struct_size;
    if (stride < sizeof stride) return -1;
    for (int32_t i = 0; i < count && i < ENTRIES; i++) {
        const tlamp_kernel_info info = describe(&entries[i], &here);
        tl_init_struct((unsigned char *)kernels + (size_t)i * stride, stride, &info, sizeof info);
    }
    return ENTRIES;
}

const char *tlamp_isa(void)
{
    const tl_machine here = tl_this_machine();
    int best = -1;
    for (int i = 0; i < ENTRIES; i++) {
        const int rung = rung_of(entries[i].kernel->isa);
        if (rung > best && is_available(&entries[i], &here)) best = rung;
    }
    return best >= 0 ? ladder[best] : "none";
}

tlamp_status tlamp_set_max_isa(const char *isa, tlamp_error *err)
{
    const int rung = isa ? rung_of(isa) : NONE;
    if (rung == NONE)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "isa", "%.80s is no instruction set: " LADDER, isa ? isa : "NULL");
    if (atomic_load(&planned))
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "isa", "a plan has been made: set it before the first");
    atomic_store(&max_rung, rung);
    return TLAMP_OK;
}

int32_t tlamp_num_devices(void) { return tl_device_count(); }

/* ------------------------------------------------------------------------------------------------ the choice */

#define UNSUPPORTED_IF(condition, field, text)                                                                         \
    do {                                                                                                               \
        if (condition) return tl_fail(err, TLAMP_UNSUPPORTED, field, text);                                            \
    } while (0)

/* What no kernel of this version does. */
static tlamp_status check_features(const tlamp_problem *p, tlamp_error *err)
{
    const tlamp_policy *policy = p->policy;
    UNSUPPORTED_IF(policy->kind == TLAMP_POLICY_X3 && p->head_dim_qk > TL_X3_MOST_DIM, "head_dim_qk",
                   "X3 goes up to 523 channels: its sums would leave an int32");
    UNSUPPORTED_IF(policy->kind == TLAMP_POLICY_TOLERANCE, "policy.kind", "TOLERANCE is not built yet");
    UNSUPPORTED_IF((policy->pv == TLAMP_PV_INT8 || policy->pv == TLAMP_PV_BF16) && policy->state == TLAMP_STATE_F16,
                   "policy.state", "the f16 state with P V in int8 or bf16 is not built");
    UNSUPPORTED_IF(policy->smooth_k && p->k_dtype == TLAMP_INT8, "policy.smooth_k",
                   "keys that the caller quantised cannot be smoothed: smooth before quantising");
    UNSUPPORTED_IF(policy->hadamard && (p->q_dtype == TLAMP_INT8 || p->k_dtype == TLAMP_INT8), "policy.hadamard",
                   "codes of the caller's cannot be rotated: rotate before quantising");
    UNSUPPORTED_IF(p->num_policies != 1, "num_policies", "one policy per query head is not built yet");
    UNSUPPORTED_IF(p->page_size != 0, "page_size", "paged caches are not built yet");
    return TLAMP_OK;
}

static tlamp_status check_lamp(const tlamp_problem *p, tlamp_error *err)
{
    const tlamp_policy *policy = p->policy;
    UNSUPPORTED_IF(policy->lamp_format == TLAMP_LAMP_INT8, "policy.lamp_format",
                   "LAMP with INT8 first is not built yet: use E4M3 (simulated)");
    UNSUPPORTED_IF(p->num_splits > 1, "num_splits", "LAMP decides in the order of keys, which splits would cut: use 1");
    UNSUPPORTED_IF(policy->lamp_n_k > 32, "policy.lamp_n_k", "more than 32 sub-blocks per tile are not built");
    UNSUPPORTED_IF(policy->lamp_b_q > 128 || (policy->block_m > 128 && 128 % policy->lamp_b_q), "policy.lamp_b_q",
                   "must be at most 128, and divide 128 where block_m is larger");
    UNSUPPORTED_IF(policy->smooth_k || policy->hadamard || policy->pv > TLAMP_PV_F32 ||
                       policy->state == TLAMP_STATE_F16,
                   "policy", "LAMP's simulated formats go with P V and state in f32, without smoothing or rotation");
    return TLAMP_OK;
}

/* P V in bf16 adds no visible error to INT8 scores or bf16 values (ALGORITHMS C2). */
static int may_narrow(const tlamp_problem *p)
{
    const tlamp_policy *policy = p->policy;
    const int exact = policy->kind == TLAMP_POLICY_HIGH || policy->kind == TLAMP_POLICY_X3;
    if (exact) return p->v_dtype == TLAMP_BF16 || p->v_dtype == TLAMP_INT8;
    return policy->kind == TLAMP_POLICY_INT8 || policy->kind == TLAMP_POLICY_ROUTED;
}

/* The problem with P V in one arithmetic. */
typedef struct {
    tlamp_problem problem;
    tlamp_policy policy;
} tl_variant;

static void make_variant(tl_variant *v, const tlamp_problem *problem, tlamp_pv pv)
{
    v->problem = *problem;
    v->policy = *problem->policy;
    v->policy.pv = pv;
    v->problem.policy = &v->policy;
}

const tl_kernel *tl_find_kernel(tlamp_pv *pv, const tl_machine *machine, const tlamp_problem *problem)
{
    const tlamp_policy *policy = problem->policy;
    const int lamp = policy->kind == TLAMP_POLICY_LAMP;
    tl_variant variants[2];
    int count = 1;
    make_variant(&variants[0], problem, policy->pv == TLAMP_PV_AUTO ? TLAMP_PV_F32 : policy->pv);
    if (policy->pv == TLAMP_PV_AUTO && may_narrow(problem)) make_variant(&variants[count++], problem, TLAMP_PV_BF16);
    for (int i = 0; i < ENTRIES; i++) {
        const tl_kernel *kernel = entries[i].kernel;
        if (kernel->lamp != lamp || !is_available(&entries[i], machine)) continue;
        for (int j = 0; j < count; j++) {
            if (!kernel->supports(&variants[j].problem)) continue;
            *pv = variants[j].policy.pv;
            return kernel;
        }
    }
    return NULL;
}

tlamp_status tl_choose_kernel(const tl_kernel **kernel, tlamp_pv *pv, const tlamp_problem *problem, tlamp_error *err)
{
    const tl_machine here = tl_this_machine();
    if (here.rung == NONE)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "TLAMP_MAX_ISA",
                       "the environment variable TLAMP_MAX_ISA names no instruction set: " LADDER);
    tlamp_status s = check_features(problem, err);
    if (!s && problem->policy->kind == TLAMP_POLICY_LAMP) s = check_lamp(problem, err);
    if (s) return s;
    *kernel = tl_find_kernel(pv, &here, problem);
    if (!*kernel)
        return tl_fail(err, TLAMP_UNSUPPORTED_HARDWARE, "isa", "no kernel of this library runs this on this machine");
    atomic_store(&planned, 1);
    return TLAMP_OK;
}
