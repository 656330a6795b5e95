/* Devices by number, and which backend runs an execution there. */
#include <ctype.h>
#include <omp.h>
#include <stdlib.h>

#include "backend.h"
#include "dispatch.h"
#include "status.h"

#define TL_BACKEND(symbol) extern const tl_backend symbol;
#include "backends.def"
#undef TL_BACKEND

static const tl_backend *const backends[] = {
#define TL_BACKEND(symbol) &symbol,
#include "backends.def"
#undef TL_BACKEND
};
enum { BACKENDS = sizeof backends / sizeof backends[0] };

/* OpenMP counts its devices even where the user wants none of them used. */
static int is_disabled(void)
{
    static const char disabled[] = "disabled";
    const char *policy = getenv("OMP_TARGET_OFFLOAD");
    size_t i = 0;
    while (policy && i < sizeof disabled && tolower((unsigned char)policy[i]) == disabled[i]) i++;
    return i == sizeof disabled;
}

int32_t tl_device_count(void) { return is_disabled() ? 0 : omp_get_num_devices(); }

/* The first backend to ask. */
static int first_backend(void) { return tl_is_scalar_only() ? BACKENDS - 1 : 0; }

/* The backend that runs it, and the memory that it needs. NULL and 0: none does. */
static const tl_backend *find_backend(const tlamp_plan *plan, size_t *bytes)
{
    *bytes = 0;
    for (int i = first_backend(); i < BACKENDS; i++)
        if (backends[i]->supports(plan, bytes)) return backends[i];
    return NULL;
}

static size_t needed_bytes(const tlamp_plan *plan)
{
    size_t bytes;
    (void)find_backend(plan, &bytes);
    return bytes;
}

size_t tl_device_workspace_bytes(const tlamp_plan *plan) { return tl_device_count() > 0 ? needed_bytes(plan) : 0; }

const char *tl_device_kernel_name(const tlamp_plan *plan)
{
    size_t bytes;
    const tl_backend *backend = tl_device_count() > 0 ? find_backend(plan, &bytes) : NULL;
    return backend ? backend->kernel_name(plan) : "";
}

tlamp_status tl_find_device(int32_t *device, const tlamp_exec *exec, tlamp_error *err)
{
    const int32_t count = tl_device_count();
    *device = exec->device < 0 ? 0 : exec->device;
    return *device < count
               ? TLAMP_OK
               : tl_fail(err, TLAMP_UNSUPPORTED_HARDWARE, "device",
                         "%d: this machine has %d devices that the library has code for", (int)*device, (int)count);
}

tlamp_status tl_no_device_memory(size_t bytes, tlamp_error *err)
{
    return tl_fail(err, TLAMP_OUT_OF_MEMORY, "device", "no device memory for %zu bytes", bytes);
}

tlamp_status tl_no_memory(size_t bytes, tlamp_error *err)
{
    return tl_fail(err, TLAMP_OUT_OF_MEMORY, "device", "no memory for %zu bytes", bytes);
}

tlamp_status tl_copy_failed(tlamp_error *err) { return tl_fail(err, TLAMP_DEVICE_ERROR, "device", "a copy failed"); }

tlamp_status tl_not_launched(tlamp_error *err)
{
    return tl_fail(err, TLAMP_DEVICE_ERROR, "device", "the OpenMP runtime could not launch the kernel");
}

/* ---- what a caller can get wrong with DEVICE memory */

static tlamp_status check_workspace(const tlamp_plan *plan, const void *workspace, size_t bytes, tlamp_error *err)
{
    const size_t need = needed_bytes(plan);
    if ((uintptr_t)workspace % TLAMP_WORKSPACE_ALIGN)
        return tl_fail(err, TLAMP_INVALID_ARGUMENT, "workspace", "must be aligned to %d", TLAMP_WORKSPACE_ALIGN);
    if (bytes < need)
        return tl_fail(err, TLAMP_WORKSPACE_TOO_SMALL, "workspace_bytes",
                       "%zu: the device needs %zu (tlamp_plan_device_workspace_size)", bytes, need);
    return TLAMP_OK;
}

/* A kernel that is given the host's memory ends the process. */
static tlamp_status check_pointers(const tlamp_problem *p, const tlamp_tensors *t, const void *workspace,
                                   tlamp_error *err)
{
    const int rows = p->batch > 0 && p->num_heads_q > 0 && (p->varlen ? p->total_q : p->max_seqlen_q) > 0;
    const int keys = rows && (p->varlen ? p->total_k : p->max_seqlen_k) > 0;
    const int words = rows && (p->policy->kind == TLAMP_POLICY_ROUTED || p->policy->kind == TLAMP_POLICY_LAMP);
    const struct {
        const char *field;
        const void *pointer;
        int read;
    } given[] = {{"q", t->q, rows},
                 {"k", t->k, keys},
                 {"v", t->v, keys},
                 {"o", t->o, rows},
                 {"lse", t->lse, rows},
                 {"words", t->words, words},
                 {"bool_mask", t->bool_mask, keys && p->has_bool_mask},
                 {"bias", t->bias, keys && p->has_bias},
                 {"alibi_slopes", t->alibi_slopes, rows && p->has_alibi},
                 {"sinks", t->sinks, rows && p->has_sinks},
                 {"q_scale", t->q_scale, rows && p->q_dtype == TLAMP_INT8},
                 {"k_scale", t->k_scale, keys && p->k_dtype == TLAMP_INT8},
                 {"v_scale", t->v_scale, keys && p->v_dtype == TLAMP_INT8},
                 {"workspace", workspace, 1}};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        if (given[i].read && given[i].pointer && tl_is_host_memory(given[i].pointer))
            return tl_fail(err, TLAMP_INVALID_ARGUMENT, given[i].field,
                           "is memory of the host's: with TLAMP_MEMORY_DEVICE it must be the device's");
    return TLAMP_OK;
}

tlamp_status tl_device_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                               void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    tlamp_exec on = *exec;
    tlamp_status s = tl_find_device(&on.device, exec, err);
    if (on.memory == TLAMP_MEMORY_HOST) workspace = NULL;
    if (!s && workspace) s = check_workspace(plan, workspace, workspace_bytes, err);
    if (!s && on.memory == TLAMP_MEMORY_DEVICE) s = check_pointers(&plan->problem, tensors, workspace, err);
    if (s) return s;
    s = TLAMP_UNSUPPORTED;
    for (int i = first_backend(); i < BACKENDS && s == TLAMP_UNSUPPORTED; i++)
        s = backends[i]->execute(plan, tensors, &on, workspace, workspace_bytes, err);
    return s;
}
