#define _DEFAULT_SOURCE /* syscall */
#include "cpu_features.h"

#include <stdatomic.h>
#include <string.h>

/* A bit says that the instruction exists, not that it is fast: on Intel's Sapphire Rapids and its successors, which have AMX,
 * one takes two cycles and does half of what two FMA do. */
int tl_cpu_bf16_is_fast(const tl_cpu_identity *who)
{
    if (strcmp(who->vendor, "AuthenticAMD") == 0) return who->family >= 0x19;                      /* Zen 4, 5, .. */
    if (strcmp(who->vendor, "GenuineIntel") == 0) return who->family == 0x6 && who->model == 0x55; /* Cooper Lake */
    return 0;
}

#if defined __x86_64__ && defined __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined __x86_64__
#include <cpuid.h>

static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has(uint32_t reg, int bit) { return (int)(reg >> bit & 1u); }

static tl_cpu_identity find_identity(void)
{
    tl_cpu_identity who = {"", 0, 0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return who;
    memcpy(who.vendor, &b, 4);
    memcpy(who.vendor + 4, &d, 4);
    memcpy(who.vendor + 8, &c, 4);
    if (!__get_cpuid(1, &a, &b, &c, &d)) return who;
    who.family = a >> 8 & 15u;
    who.model = a >> 4 & 15u;
    if (who.family == 15 || who.family == 6) who.model |= a >> 12 & 0xf0u;
    if (who.family == 15) who.family += a >> 20 & 0xffu;
    return who;
}

static uint32_t find_features(void)
{
    uint32_t a, b, c, d, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const int osxsave = has(c, 27), avx = has(c, 28), fma = has(c, 12), f16c = has(c, 29);
    if (!osxsave || !avx) return 0;
    const uint64_t saved = xcr0();
    const int ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6, tiles = (saved & 0x60000) == 0x60000;
    if (!ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (has(b, 5) && fma && f16c) found |= TL_CPU_AVX2;
    if (zmm && has(b, 16) && has(b, 30) && has(b, 17) && has(b, 31)) {
        found |= TL_CPU_AVX512;
        if (has(c, 1)) found |= TL_CPU_AVX512_VBMI;
        if (has(c, 11)) found |= TL_CPU_AVX512_VNNI;
        if (has(d, 23)) found |= TL_CPU_AVX512_FP16;
    }
    if (tiles && has(d, 24) && has(d, 25) && has(d, 22)) found |= TL_CPU_AMX;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        if (has(a, 4) && (found & TL_CPU_AVX2)) found |= TL_CPU_AVX_VNNI;
        if (has(a, 5) && (found & TL_CPU_AVX512)) found |= TL_CPU_AVX512_BF16;
        const tl_cpu_identity who = find_identity();
        if ((found & TL_CPU_AVX512_BF16) && tl_cpu_bf16_is_fast(&who)) found |= TL_CPU_FAST_BF16;
    }
    return found;
}
#else
static uint32_t find_features(void) { return 0; }
#endif

uint32_t tl_cpu_features(void)
{
    static _Atomic uint32_t known; /* bit 31: found. Threads that race write the same value */
    uint32_t f = atomic_load_explicit(&known, memory_order_relaxed);
    if (!f) {
        f = find_features() | 1u << 31;
        atomic_store_explicit(&known, f, memory_order_relaxed);
    }
    return f & ~(1u << 31);
}

#if defined __x86_64__ && defined __linux__
static int ask_for_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; /* of asm/prctl.h since Linux 5.16 */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int ask_for_tiles(void) { return 1; }
#endif

int tl_cpu_permits_tiles(void)
{
    static _Atomic int known; /* 0: not asked yet; 1: refused; 2: granted. Asking twice does no harm */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        answer = 1 + ask_for_tiles();
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}
