/* One scalar kernel: the vocabulary, the loop, and the entry points of a tl_kernel. The including file says
 *   TL_STATE_F16, TL_PV_INT8, TL_PV_BF16  what this instantiation is (cpu/simd/scalar.h)
 *   TL_SYMBOL, TL_SYMBOL_NAME             its symbol, and that as a string
 *   TL_ISA                                its instruction set, as kernels.def names it */
#include "simd/scalar.h"

#include "core/tile_loop.inc.h"

static int supports(const tlamp_problem *problem)
{
    const tlamp_policy *p = problem->policy;
    return (p->state == TLAMP_STATE_F16) == TL_STATE_F16 && (p->pv == TLAMP_PV_INT8) == TL_PV_INT8 &&
           (p->pv == TLAMP_PV_BF16) == TL_PV_BF16;
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
    if (!shape->fly) (void)tl_lay_out_keys(shape, lk, &a);
    return a.used;
}

static void start(tl_ctx *x, const tl_sequence *seq, const tl_prepared *prepared, void *scratch)
{
    const tl_shape *shape = &x->cpu.call->shape;
    tl_lay_out(x, shape, &(tl_arena){scratch, 0});
    if (!shape->fly) x->keys = tl_lay_out_keys(shape, seq->lk, &(tl_arena){prepared->packed, 0});
}

static void pack(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, int32_t kv_head,
                 int64_t unit, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.cpu = {.call = call, .seq = seq, .prepared = prepared, .counters = counters, .kv_head = kv_head}};
    start(&x, seq, prepared, scratch);
    tl_pack_unit(&x, &x.keys, unit * call->shape.unit_keys);
}

static void attend(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, const tl_task *task,
                   int32_t head, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.cpu = {*task, call, seq, prepared, counters, head, head / call->shape.group_heads}};
    start(&x, seq, prepared, scratch);
    tl_tile_loop(&x);
}

static void merge(const tl_call *call, const tl_sequence *seq, const tl_prepared *prepared, const tl_task *task,
                  int32_t head, void *scratch, tl_worker_counters *counters)
{
    tl_ctx x = {.cpu = {*task, call, seq, prepared, counters, head, head / call->shape.group_heads}};
    start(&x, seq, prepared, scratch);
    tl_merge_splits(&x);
}

extern const tl_kernel TL_SYMBOL;
const tl_kernel TL_SYMBOL = {
    .name = TL_SYMBOL_NAME,
    .isa = TL_ISA,
    .supports = supports,
    .max_rows = TL_ROWS * TL_ROW_BLOCKS,
    .one_block = TL_ROW_BLOCKS == 1,
    .scratch_bytes = scratch_bytes,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .attend = attend,
    .merge = merge,
};
