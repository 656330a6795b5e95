#include "cost.h"

#include <math.h>

int32_t cost_registers(register_layout layout, int32_t b_q, int32_t b_k, int32_t n_k)
{
    const int32_t sub_block = b_q * b_k / WARP_THREADS, values = sub_block * n_k; /* of one thread */
    switch (layout) {
    case REGISTERS_SAFE: return (values + 1) / 2;
    case REGISTERS_COMPACT: return (values + 3) / 4 + (sub_block + 1) / 2;
    default: return values;
    }
}

exp_cost cost_exp(const tlamp_counters *c, register_layout layout)
{
    /* Under compact a tile with one risky sub-block executes that one high, a tile with more of them every legal one. */
    const int64_t again = layout == REGISTERS_COMPACT ? c->sub_blocks_executed - c->histogram[1] : 0;
    const double all = (double)c->sub_blocks, high = (double)(c->sub_blocks_recomputed + again);
    const double low = (double)(c->sub_blocks - c->forced - c->stage_one);
    exp_cost cost = {low / all, high / all, 0, (double)NAN};
    cost.cycles = cost.low * EXP_LOW + cost.high;
    if (low > 0 && cost.high < 1) cost.even = (1 - cost.high) / cost.low;
    return cost;
}
