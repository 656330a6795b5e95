/* LampAttention in simulated formats, for the instruction set of the including file:
 *   TL_SYMBOL, TL_SYMBOL_NAME  the kernel's symbol, and that as a string
 *   TL_ISA                     its instruction set, as kernels.def names it */
#include "simd/sim.h"

#include "core/tile_loop.inc.h"

static int supports(const tlamp_problem *problem) { return problem->policy->lamp_format == TLAMP_LAMP_E4M3; }

static size_t scratch_bytes(const tl_shape *shape)
{
    tl_ctx x;
    tl_arena a = {NULL, 0};
    tl_lay_out(&x, shape, shape->policy, &a);
    return a.used;
}

static size_t packed_bytes(const tl_shape *shape, int64_t lk)
{
    (void)shape;
    (void)lk;
    return 0;
}

static void attend(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, const tl_task *task,
                   int32_t head, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.cpu = {*task, call, seq, prepared, counters, head, head / call->shape.group_heads}};
    tl_lay_out(&x, &call->shape, call->policy, &(tl_arena){scratch, 0});
    tl_tile_loop(&x);
}

extern const tl_kernel TL_SYMBOL;
const tl_kernel TL_SYMBOL = {
    .name = TL_SYMBOL_NAME,
    .isa = TL_ISA,
    .lamp = 1,
    .supports = supports,
    .max_rows = TL_LAMP_ROWS,
    .one_block = TL_ROW_BLOCKS == 1,
    .scratch_bytes = scratch_bytes,
    .packed_bytes = packed_bytes,
    .attend = attend,
};
