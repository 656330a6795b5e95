/* A library without device code. */
#include "device.h"

#include "status.h"

int32_t tl_device_count(void) { return 0; }

size_t tl_device_workspace_bytes(const tlamp_plan *plan)
{
    (void)plan;
    return 0;
}

tlamp_status tl_device_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                               void *workspace, size_t workspace_bytes, tlamp_error *err)
{
    (void)plan;
    (void)tensors;
    (void)exec;
    (void)workspace;
    (void)workspace_bytes;
    return tl_fail(err, TLAMP_UNSUPPORTED_HARDWARE, "device", "this library was built without offload: use the host");
}
