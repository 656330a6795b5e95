/* A way to run on devices. offload/devices.c asks those of backends.def in their order. */
#ifndef TL_OFFLOAD_BACKEND_H
#define TL_OFFLOAD_BACKEND_H

#include "device.h"

typedef struct {
    const char *name;
    /* Device memory that execute works in where the caller gives it; 0: it takes its own. */
    size_t (*workspace_bytes)(const tlamp_plan *plan);
    /* Runs a checked execution on device exec->device, which exists. UNSUPPORTED, with outputs untouched: the next may try. */
    tlamp_status (*execute)(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                            void *workspace, size_t workspace_bytes, tlamp_error *err);
} tl_backend;

#endif
