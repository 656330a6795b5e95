/* What tlamp_counters say of geometry and routing words: the host counts it, whoever runs the call on the device. */
#ifndef TL_OFFLOAD_COUNT_H
#define TL_OFFLOAD_COUNT_H

#include "plan.h"

/* Adds the groups, tiles and cells of an execution on exec->device, whose words are fetched from there with DEVICE memory. */
tlamp_status tl_count_geometry(tlamp_counters *counters, const tlamp_plan *plan, const tlamp_tensors *tensors,
                               const tlamp_exec *exec, tlamp_error *err);

#endif
