/* A way to run on devices. offload/devices.c asks those of backends.def in their order. */
#ifndef TL_OFFLOAD_BACKEND_H
#define TL_OFFLOAD_BACKEND_H

#include "device.h"

typedef struct {
    const char *name;
    /* Does it run what the plan says? *bytes: of device memory that execute works in where the caller gives it. Not exact: an
     * execution may ask for what only another runs. */
    int (*supports)(const tlamp_plan *plan, size_t *bytes);
    /* The kernel of such a plan. */
    const char *(*kernel_name)(const tlamp_plan *plan);
    /* Runs a checked execution on device exec->device, which exists. UNSUPPORTED, with outputs untouched: the next may try.
     * workspace, with DEVICE memory only: aligned device memory, or NULL. Where its bytes are too few, which happens when it is
     * another backend's, execute takes memory of its own. */
    tlamp_status (*execute)(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                            void *workspace, size_t workspace_bytes, tlamp_error *err);
} tl_backend;

/* exec->device, below 0 the first, if it is there. */
tlamp_status tl_find_device(int32_t *device, const tlamp_exec *exec, tlamp_error *err);

/* Is p memory of the host's that the device's driver knows nothing of? 0 where nobody can tell. */
int tl_is_host_memory(const void *p);

/* Failures that backends share. */
tlamp_status tl_no_device_memory(size_t bytes, tlamp_error *err);
tlamp_status tl_no_memory(size_t bytes, tlamp_error *err); /* of the host's */
tlamp_status tl_copy_failed(tlamp_error *err);
tlamp_status tl_not_launched(tlamp_error *err);

#endif
