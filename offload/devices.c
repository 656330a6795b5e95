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

size_t tl_device_workspace_bytes(const tlamp_plan *plan)
{
    size_t most = 0;
    for (int i = 0; i < BACKENDS; i++) {
        const size_t bytes = backends[i]->workspace_bytes(plan);
        most = bytes > most ? bytes : most;
    }
    return most;
}

tlamp_status tl_device_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                               void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    const int32_t count = tl_device_count();
    tlamp_exec on = *exec;
    if (on.device < 0) on.device = 0;
    if (on.device >= count)
        return tl_fail(err, TLAMP_UNSUPPORTED_HARDWARE, "device",
                       "%d: this machine has %d devices that the library has code for", (int)on.device, (int)count);
    tlamp_status s = TLAMP_UNSUPPORTED;
    for (int i = tl_is_scalar_only() ? BACKENDS - 1 : 0; i < BACKENDS && s == TLAMP_UNSUPPORTED; i++)
        s = backends[i]->execute(plan, tensors, &on, workspace, workspace_bytes, err);
    return s;
}
