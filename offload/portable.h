/* The portable path: the CPU's plain C kernels, compiled for whatever device OpenMP has. One device thread is one worker. */
#ifndef TL_OFFLOAD_PORTABLE_H
#define TL_OFFLOAD_PORTABLE_H

#include "work.h"

/* One wave on a device. It lies in device memory, and so does everything it points to. */
typedef struct {
    tl_call call;
    tl_wave wave;
    unsigned char *scratch, *counters; /* [workers] */
    size_t scratch_bytes, counters_bytes;
    int64_t workers;
} tl_portable_run;

typedef enum { TL_PHASE_SURVEY, TL_PHASE_MEAN, TL_PHASE_PACK, TL_PHASE_ATTEND } tl_phase;

typedef struct {
    const tl_kernel *kernel; /* what it runs, and how its memory is laid out */
    /* Runs a phase with so many workers (launch.inc.h). */
    int (*launch)(const tl_portable_run *run, int32_t phase, int64_t workers, int32_t device);
} tl_portable_kernel;

#endif
