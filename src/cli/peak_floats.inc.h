/* The loops of f32 for one instruction set, in the primitives of cpu/simd; the including file has
 *   CHAINS                       chains of FMA: more than latency times pipes, and all in registers
 *   tl_v exponential(tl_v x)     2^x by a polynomial of degree 3 with p(0) = 1, as fast as that set has it */
#define UNROLL _Pragma("GCC unroll 32")

static float run_fma(int64_t steps)
{
    volatile float source = 0.5f;
    const tl_v a = tl_v_set(source), b = a;
    tl_v c[CHAINS], sum = tl_v_set(0.f);
    UNROLL
    for (int i = 0; i < CHAINS; i++) c[i] = tl_v_set((float)i);
    for (int64_t step = 0; step < steps; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++) c[i] = tl_v_fma(c[i], a, b);
    }
    UNROLL
    for (int i = 0; i < CHAINS; i++) sum = tl_v_add(sum, c[i]);
    return tl_v_sum(sum);
}

/* A row of scores in the first cache becomes weights: its maximum, then exp2, their sum and the store. Rows are as long as a
 * span of key tiles; there are several chains of maxima and of sums. */
enum { ROW = 512, ROW_CHAINS = 4 };

static float run_softmax(int64_t steps)
{
    float scores[ROW], weights[ROW];
    tl_v total = tl_v_set(0.f);
    for (int i = 0; i < ROW; i++) scores[i] = (float)(i % 37) - 18;
    for (int64_t step = 0; step < steps; step++) {
        tl_v top[ROW_CHAINS], sum[ROW_CHAINS];
        __asm__ volatile("" : : "r"(scores), "r"(weights) : "memory"); /* other scores, for all that is known */
        for (int c = 0; c < ROW_CHAINS; c++) top[c] = sum[c] = tl_v_load(scores + c * TL_LANES);
        for (int i = 0; i < ROW; i += ROW_CHAINS * TL_LANES)
            for (int c = 0; c < ROW_CHAINS; c++) top[c] = tl_v_max(top[c], tl_v_load(scores + i + c * TL_LANES));
        for (int c = 1; c < ROW_CHAINS; c++) top[0] = tl_v_max(top[0], top[c]);
        const tl_v scale = tl_v_set(.125f), shift = tl_v_set(-.125f * tl_v_top(top[0]));
        for (int i = 0; i < ROW; i += ROW_CHAINS * TL_LANES)
            for (int c = 0; c < ROW_CHAINS; c++) {
                const tl_v p = exponential(tl_v_fma(tl_v_load(scores + i + c * TL_LANES), scale, shift));
                sum[c] = tl_v_add(sum[c], p);
                tl_v_store(weights + i + c * TL_LANES, p);
            }
        for (int c = 0; c < ROW_CHAINS; c++) total = tl_v_add(total, sum[c]);
    }
    __asm__ volatile("" : : "r"(weights) : "memory");
    return tl_v_sum(total);
}

#undef UNROLL
