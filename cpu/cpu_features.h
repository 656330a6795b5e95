/* What this processor and its operating system can run. */
#ifndef TL_CPU_FEATURES_H
#define TL_CPU_FEATURES_H

#include <stdint.h>

enum {
    TL_CPU_AVX2 = 1u << 0,   /* with FMA and F16C */
    TL_CPU_AVX512 = 1u << 1, /* F, BW, DQ, VL */
    TL_CPU_AVX512_VNNI = 1u << 2,
    TL_CPU_AVX512_BF16 = 1u << 3,
    TL_CPU_AVX512_FP16 = 1u << 4,
    TL_CPU_AMX = 1u << 5, /* tiles, INT8 and BF16; the operating system's permission is asked elsewhere */
    TL_CPU_AVX_VNNI = 1u << 6,
    TL_CPU_AVX512_VBMI = 1u << 7,
    TL_CPU_FAST_BF16 = 1u << 8, /* VDPBF16PS does more than FMA: no instruction, a promise about its speed */

    TL_CPU_SPEEDS = TL_CPU_FAST_BF16, /* a kernel that lacks one of these runs, but slowly */
    TL_CPU_AVX512BF16_KERNELS = TL_CPU_AVX512 | TL_CPU_AVX512_VNNI | TL_CPU_AVX512_BF16 | TL_CPU_FAST_BF16
};

/* Who made the processor, as CPUID says it. */
typedef struct {
    char vendor[13];
    uint32_t family, model;
} tl_cpu_identity;

/* Does VDPBF16PS multiply more per cycle than FMA does, where the instruction exists? */
int tl_cpu_bf16_is_fast(const tl_cpu_identity *who);

/* Features whose registers the operating system saves (XCR0), found once. */
uint32_t tl_cpu_features(void);

/* Whether this process may use tile registers. Linux gives them to processes that ask: so this asks, once, for all threads
 * that are and will be and for children. It refuses where a thread's alternate signal stack is too small for the larger
 * frame that a signal then takes. Not to be called unless tiles would be used. */
int tl_cpu_permits_tiles(void);

#endif
