/* A library without device code. */
#include "device.h"

#include "status.h"

int32_t tl_device_count(void) { return 0; }

size_t tl_device_workspace_bytes(const tlamp_plan *plan)
{
    (void)plan;
    return 0;
}

const char *tl_device_kernel_name(const tlamp_plan *plan)
{
    (void)plan;
    return "";
}

static tlamp_status no_device(tlamp_error *err)
{
    return tl_fail(err, TLAMP_UNSUPPORTED_HARDWARE, "device", "this library was built without offload: use the host");
}

tlamp_status tl_device_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                               void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    (void)plan;
    (void)tensors;
    (void)exec;
    (void)workspace;
    (void)workspace_bytes;
    return no_device(err);
}

tlamp_status tl_device_build_map(const tl_map *map, int64_t scratch, const tlamp_exec *exec, tl_coverage *coverage,
                                 tlamp_error *err)
{
    (void)map;
    (void)scratch;
    (void)exec;
    (void)coverage;
    return no_device(err);
}
