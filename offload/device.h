/* What the library asks of its devices. offload/devices.c answers in a library with device code, offload/none.c in one
 * without; which of them is linked is decided by CMake, so that nothing else knows. */
#ifndef TL_OFFLOAD_DEVICE_H
#define TL_OFFLOAD_DEVICE_H

#include "core/layout_map.h"
#include "plan.h"

/* Devices that this library has code for. */
int32_t tl_device_count(void);

/* Device memory that tl_device_execute works in, from the caller or its own. */
size_t tl_device_workspace_bytes(const tlamp_plan *plan);

/* What runs it there; "": nothing. */
const char *tl_device_kernel_name(const tlamp_plan *plan);

/* Runs a checked execution on exec->device (below 0: the first). Complete on return. */
tlamp_status tl_device_execute(const tlamp_plan *plan, const tlamp_tensors *tensors, const tlamp_exec *exec,
                               void *workspace, size_t workspace_bytes, tlamp_error *err);

/* Writes the map's words on exec->device (below 0: the first), into device memory or, by exec->memory, the host's, and
 * counts them (coverage NULL: nobody asks). scratch: items that the map needs. Complete on return; words untouched on error. */
tlamp_status tl_device_build_map(const tl_map *map, int64_t scratch, const tlamp_exec *exec, tl_coverage *coverage,
                                 tlamp_error *err);

#endif
