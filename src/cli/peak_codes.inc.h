/* The loop of int8 products for one instruction set, in the primitives of cpu/simd: tl_vi_dot multiplies TL_CODES codes of each
 * lane and adds them. INT8_CHAINS: as CHAINS in peak_floats.inc.h. */
#define UNROLL _Pragma("GCC unroll 32")

enum { INT8_OPERATIONS = 2 * INT8_CHAINS * TL_LANES * TL_CODES };

static float run_int8(int64_t steps)
{
    volatile int source = 1;
    tl_vi a = tl_vi_set(source), b = a, c[INT8_CHAINS], sum = tl_vi_set(0);
    int32_t lanes[TL_LANES];
    UNROLL
    for (int i = 0; i < INT8_CHAINS; i++) c[i] = tl_vi_set(i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < INT8_CHAINS; i++) {
            __asm__ volatile("" : "+v"(a)); /* another operand each time, for all that is known */
            c[i] = tl_vi_dot(c[i], a, b);
        }
        UNROLL
        for (int i = 0; i < INT8_CHAINS; i++)
            __asm__("" : "+v"(c[i])); /* sums of integers may be regrouped: not these */
    }
    UNROLL
    for (int i = 0; i < INT8_CHAINS; i++) sum = tl_vi_add(sum, c[i]);
    tl_vi_store(lanes, sum);
    return (float)lanes[0];
}

#undef UNROLL
