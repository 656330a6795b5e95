/* The tile loop for any processor: plain C, run-time head dimensions. */
#include "simd/scalar.h"

#include "core/tile_loop.inc.h"

static int supports(const tlamp_problem *problem)
{
    (void)problem;
    return 1;
}

static size_t scratch_bytes(const tl_shape *shape)
{
    tl_ctx x;
    tl_arena a = {NULL, 0};
    tl_lay_out(&x, shape, &a);
    return a.used;
}

static size_t packed_bytes(const tl_shape *shape, int64_t lk)
{
    tl_arena a = {NULL, 0};
    (void)tl_lay_out_keys(shape, lk, &a);
    return a.used;
}

static void attend(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, const tl_task *task,
                   int32_t head, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.cpu = {*task, call, seq, prepared, counters, head, head / call->shape.group_heads}};
    x.keys = tl_packed_keys(call, seq, prepared);
    tl_lay_out(&x, &call->shape, &(tl_arena){scratch, 0});
    tl_tile_loop(&x);
}

extern const tl_kernel tlamp_fwd_dx__scalar;
const tl_kernel tlamp_fwd_dx__scalar = {
    .name = "tlamp_fwd_dx__scalar",
    .isa = "scalar",
    .supports = supports,
    .max_rows = TL_ROWS * TL_ROW_BLOCKS,
    .scratch_bytes = scratch_bytes,
    .packed_bytes = packed_bytes,
    .pack = tl_pack,
    .attend = attend,
};
