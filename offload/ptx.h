/* The PTX that the vocabulary speaks, one function per instruction (sm_80 and later). Device pass only. */
#ifndef TL_OFFLOAD_PTX_H
#define TL_OFFLOAD_PTX_H

#include "core/port.h"

#define TL_SHARED_SPACE __attribute__((address_space(3)))
#define TL_GLOBAL_SPACE __attribute__((address_space(1)))
#define TL_FULLY _Pragma("unroll") /* loops whose arrays are registers */

/* Dynamic shared memory of the block; its 32-bit address is what ldmatrix and cp.async take. A kernel that uses it has no
 * static shared memory: that would come first, and what alignment skips behind it would be missing at the end. */
extern TL_SHARED_SPACE __attribute__((aligned(1024))) unsigned char tl_shared_memory[];
TL_INLINE uint32_t tl_shared_base(void) { return (uint32_t)(uintptr_t)tl_shared_memory; }

TL_INLINE int32_t tl_thread(void) { return __nvvm_read_ptx_sreg_tid_x(); }
TL_INLINE int32_t tl_block(void) { return __nvvm_read_ptx_sreg_ctaid_x(); }
TL_INLINE void tl_barrier(void) { __asm__ volatile("bar.sync 0;" ::: "memory"); }

/* A barrier, and whether some thread of the block says so. */
TL_INLINE int tl_barrier_any(int predicate)
{
    int r;
    __asm__ volatile("{ .reg .pred a, b; setp.ne.b32 a, %1, 0; bar.red.or.pred b, 0, a; selp.b32 %0, 1, 0, b; }"
                     : "=r"(r)
                     : "r"(predicate)
                     : "memory");
    return r;
}

/* Stops the compiler from keeping everything that follows from x in registers across a loop. */
#define TL_OPAQUE(x) __asm__ volatile("" : "+r"(x))
#define TL_OPAQUE_LONG(x) __asm__ volatile("" : "+l"(x))

/* ---- copies: 16 bytes, global to shared, in the background */

TL_INLINE void tl_copy(uint32_t to, const void *from)
{
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"((const TL_GLOBAL_SPACE void *)from)
                     : "memory");
}

/* The first `bytes` (0 .. 16) of them, then zeros; with 0 `from` is not touched. */
TL_INLINE void tl_copy_bytes(uint32_t to, const void *from, int32_t bytes)
{
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"((const TL_GLOBAL_SPACE void *)from),
                     "r"(bytes)
                     : "memory");
}

/* Zeros where there is nothing to read. */
TL_INLINE void tl_copy_or_zero(uint32_t to, const void *from, int there) { tl_copy_bytes(to, from, there ? 16 : 0); }

/* 4 bytes, or zeros. */
TL_INLINE void tl_copy4_or_zero(uint32_t to, const void *from, int there)
{
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"((const TL_GLOBAL_SPACE void *)from),
                     "r"(there ? 4 : 0)
                     : "memory");
}

TL_INLINE void tl_copies_wait(void)
{
    __asm__ volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
}

/* ---- shared memory by its 32-bit address */

typedef uint32_t tl_chunk __attribute__((vector_size(16))); /* 8 elements of 16 bits */

TL_INLINE tl_chunk tl_shared_load(uint32_t at)
{
    uint32_t x[4];
    __asm__ volatile("ld.shared.v4.b32 {%0,%1,%2,%3},[%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at)
                     : "memory");
    return (tl_chunk){x[0], x[1], x[2], x[3]};
}

TL_INLINE void tl_shared_store(uint32_t at, tl_chunk x)
{
    __asm__ volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
}

TL_INLINE uint32_t tl_shared_load4(uint32_t at)
{
    uint32_t x;
    __asm__ volatile("ld.shared.b32 %0,[%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

TL_INLINE uint64_t tl_shared_load8(uint32_t at)
{
    uint64_t x;
    __asm__ volatile("ld.shared.b64 %0,[%1];" : "=l"(x) : "r"(at) : "memory");
    return x;
}

TL_INLINE void tl_shared_store4(uint32_t at, uint32_t x)
{
    __asm__ volatile("st.shared.b32 [%0],%1;" ::"r"(at), "r"(x) : "memory");
}

TL_INLINE void tl_shared_store8(uint32_t at, uint64_t x)
{
    __asm__ volatile("st.shared.b64 [%0],%1;" ::"r"(at), "l"(x) : "memory");
}

/* ---- fragments and products */

/* Four 8x8 tiles of 16-bit elements; lane l gives the address of row l % 8 of tile l / 8. */
TL_INLINE void tl_fragment(uint32_t f[4], uint32_t at)
{
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                     : "r"(at)
                     : "memory");
}

TL_INLINE void tl_fragment_transposed(uint32_t f[4], uint32_t at)
{
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                     : "r"(at)
                     : "memory");
}

/* 16 x 8 of c += a b, f16 into f32, 16 channels; the second form starts at 0. */
TL_INLINE void tl_mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

TL_INLINE void tl_mma_f16_first(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                     "{%10,%10,%10,%10};"
                     : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

/* The same from bf16. */
TL_INLINE void tl_mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

TL_INLINE void tl_mma_bf16_first(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                     "{%10,%10,%10,%10};"
                     : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

/* The same with s8 into s32, 32 channels. c holds the bits of the float TL_INT8_ORIGIN + sum: exact below 2^22, so that no
 * conversion is needed. */
#define TL_INT8_ORIGIN 12582912.f /* 0x4B400000 */

TL_INLINE void tl_mma_s8(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    __asm__ volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

TL_INLINE void tl_mma_s8_first(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    __asm__ volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                     "{%10,%10,%10,%10};"
                     : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(TL_INT8_ORIGIN));
}

/* ---- arithmetic; libm's names would become calls that nothing resolves */

TL_INLINE float tl_max_ptx(float a, float b) /* the number where one is NaN */
{
    float r;
    __asm__("max.f32 %0,%1,%2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

/* n / d, n from 0 below 2^31; inverse: TL_INVERSE(d) of the launch's, n * 2^63 / d within 2^-32. */
TL_INLINE int32_t tl_divide(int32_t n, uint64_t inverse)
{
    const uint64_t low = (uint64_t)(uint32_t)n * (uint32_t)inverse,
                   high = (uint64_t)(uint32_t)n * (uint32_t)(inverse >> 32);
    return (int32_t)((high + (low >> 32)) >> 31);
}

TL_INLINE float tl_fma_ptx(float a, float b, float c)
{
    float r;
    __asm__("fma.rn.f32 %0,%1,%2,%3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
    return r;
}

/* 2^x: 2 ulp, 1 at 0, 0 at -Inf and where the result would be subnormal. */
TL_INLINE float tl_exp2_fast(float x)
{
    float r;
    __asm__("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

TL_INLINE float tl_log2_fast(float x)
{
    float r;
    __asm__("lg2.approx.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

/* Without a branch, whatever the compiler thinks of one. */
TL_INLINE float tl_choose(int first, float a, float b)
{
    float r;
    __asm__("{ .reg .pred p; setp.ne.b32 p, %1, 0; selp.f32 %0, %2, %3, p; }" : "=f"(r) : "r"(first), "f"(a), "f"(b));
    return r;
}

TL_INLINE float tl_with_sign(float x, float sign)
{
    return tl_float((tl_bits(x) & 0x7fffffffu) | (tl_bits(sign) & 0x80000000u));
}

/* 1 / x: 1 ulp, 0 at Inf. */
TL_INLINE float tl_reciprocal_fast(float x)
{
    float r;
    __asm__("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

TL_INLINE uint32_t tl_pack_f16(float low, float high)
{
    uint32_t r;
    __asm__("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

TL_INLINE uint32_t tl_pack_bf16(float low, float high)
{
    uint32_t r;
    __asm__("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

TL_INLINE float tl_low_f16(uint32_t pair)
{
    float r;
    __asm__("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(r) : "r"(pair));
    return r;
}

TL_INLINE float tl_round_f16_ptx(float x)
{
    float r;
    __asm__("{ .reg .b16 half; cvt.rn.f16.f32 half, %1; cvt.f32.f16 %0, half; }" : "=f"(r) : "f"(x));
    return r;
}

/* The larger halves of two pairs; NaN where one is NaN. */
TL_INLINE uint32_t tl_max_f16_pair(uint32_t a, uint32_t b)
{
    uint32_t r;
    __asm__("max.NaN.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

TL_INLINE uint32_t tl_max_bf16_pair(uint32_t a, uint32_t b)
{
    uint32_t r;
    __asm__("max.NaN.bf16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* The low bytes of a, b, c, d. */
TL_INLINE uint32_t tl_pack_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint32_t low, high, r;
    __asm__("prmt.b32 %0,%1,%2,0x0040;" : "=r"(low) : "r"(a), "r"(b));
    __asm__("prmt.b32 %0,%1,%2,0x0040;" : "=r"(high) : "r"(c), "r"(d));
    __asm__("prmt.b32 %0,%1,%2,0x5410;" : "=r"(r) : "r"(low), "r"(high));
    return r;
}

/* Bytes of (a, b) by four selectors, the lowest first: 0 to 3 are a's, 4 to 7 b's. */
TL_INLINE uint32_t tl_bytes(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t r;
    __asm__("prmt.b32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
    return r;
}

TL_INLINE uint32_t tl_sub_f16_pair(uint32_t a, uint32_t b)
{
    uint32_t r;
    __asm__("sub.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

TL_INLINE uint32_t tl_add_bf16_pair(uint32_t a, uint32_t b) /* 8.x has fused ones only */
{
    uint32_t r;
    __asm__("fma.rn.bf16x2 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return r;
}

/* ---- between the lanes of a warp */

TL_INLINE uint32_t tl_swap_bits(uint32_t x, int with)
{
    uint32_t r;
    __asm__ volatile("shfl.sync.bfly.b32 %0,%1,%2,31,-1;" : "=r"(r) : "r"(x), "r"(with));
    return r;
}

TL_INLINE float tl_swap(float x, int with) { return tl_float(tl_swap_bits(tl_bits(x), with)); }

/* The x of that lane. */
TL_INLINE float tl_from_lane(float x, int32_t lane)
{
    uint32_t r;
    __asm__ volatile("shfl.sync.idx.b32 %0,%1,%2,31,-1;" : "=r"(r) : "r"(tl_bits(x)), "r"(lane));
    return tl_float(r);
}

/* x, which all lanes share. Said by a shuffle, ptxas for sm_90 can use its uniform registers for it.
 * For sm_80 it spills 1.5 KB then, so nothing is said there. */
TL_INLINE int32_t tl_uniform(int32_t x)
{
#if __CUDA_ARCH__ >= 900
    int32_t r;
    __asm__ volatile("shfl.sync.idx.b32 %0,%1,0,31,-1;" : "=r"(r) : "r"(x));
    return r;
#else
    return x;
#endif
}

/* ---- between blocks */

/* What the thread and, before a barrier, its block have written, the device sees before what they write next; and what they
 * read next, behind a barrier for the others, is no older than what the thread has read. */
TL_INLINE void tl_device_fence(void) { __asm__ volatile("fence.acq_rel.gpu;" ::: "memory"); }

/* *at += 1; what it was. */
TL_INLINE uint32_t tl_count_up(TL_GLOBAL_SPACE uint32_t *at)
{
    uint32_t r;
    __asm__ volatile("atom.relaxed.gpu.global.add.u32 %0,[%1],1;" : "=r"(r) : "l"(at) : "memory");
    return r;
}

/* What the lanes wrote before, they all see after. */
TL_INLINE void tl_warp_barrier(void) { __asm__ volatile("bar.warp.sync -1;" ::: "memory"); }

/* The same of warp `warp` of a block's first 15, whose threads have not parted. For sm_80 bar.warp.sync would be a call that
 * ptxas keeps registers free for. */
TL_INLINE void tl_barrier_of_warp(int32_t warp)
{
#if __CUDA_ARCH__ >= 900
    (void)warp;
    tl_warp_barrier();
#else
    __asm__ volatile("bar.sync %0, 32;" ::"r"(warp + 1) : "memory");
#endif
}

TL_INLINE int tl_vote_any(int predicate)
{
    int r;
    __asm__ volatile("{ .reg .pred a, b; setp.ne.b32 a, %1, 0; vote.sync.any.pred b, a, -1; selp.b32 %0, 1, 0, b; }"
                     : "=r"(r)
                     : "r"(predicate));
    return r;
}

/* Bit l: the predicate of lane l. */
TL_INLINE uint32_t tl_ballot(int predicate)
{
    uint32_t r;
    __asm__ volatile("{ .reg .pred a; setp.ne.b32 a, %1, 0; vote.sync.ballot.b32 %0, a, -1; }"
                     : "=r"(r)
                     : "r"(predicate));
    return r;
}

TL_INLINE uint32_t tl_join_or(uint32_t x)
{
    uint32_t r;
    __asm__ volatile("redux.sync.or.b32 %0,%1,-1;" : "=r"(r) : "r"(x));
    return r;
}

#endif
