// Instructions that CUDA C++ has no function for: mma of a warp, asynchronous copies to shared memory, and
// the edge between dependent grids. sm_80 and later; tests/emulate has them in plain C++.
//
// Fragments of mma.m16n8k*, lane = 4 r + c (r 0..7, c 0..3), as PTX defines them:
//   A [16 x K]: rows r and r + 8        B [K x 8]: column r        D [16 x 8]: rows r, r + 8; columns 2c, 2c + 1
// Element k of A and B meets element k: any order of k will do as long as it is the same on both sides.
#pragma once

#include "gpu/launch.h"

namespace ridge::gpu {

/// D = A B + D, signed bytes, K = 32. Four elements a word, from the k that is named on.
/// Word i of a: row r (i even) or r + 8 (odd), k = 4c (i < 2) or 16 + 4c. Word i of b: column r, k = 16 i + 4c.
/// d: (r, 2c) (r, 2c+1) (r+8, 2c) (r+8, 2c+1).
__device__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
/// D = A B + start in every element.
__device__ void mma_s8_from(int start, int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
/// D = A B + D, bytes of A without a sign, those of B with one, K = 32.
__device__ void mma_u8s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
/// D = A B + D as mma_u8s8(), with K = 16: word i of a is row r (i = 0) or r + 8, k = 4c; b is column r, k = 4c.
__device__ void mma_u8s8_k16(int (&d)[4], const uint32_t (&a)[2], uint32_t b);
/// D = A B + D, f16, K = 16, float sums. Two elements a word, from the k that is named on.
/// Word i of a: row r (i even) or r + 8 (odd), k = 2c (i < 2) or 8 + 2c. Word i of b: column r, k = 8 i + 2c.
__device__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
/// D = A B + D as mma_f16(), with bfloat16 elements.
__device__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

/// Begins to copy 16 bytes of global memory, read once, to shared memory; both aligned to 16.
__device__ void copy_async16(void* shared, const void* global);
/// Begins the copy of copy_async16() if `wanted`, without a branch.
__device__ void copy_async16_if(bool wanted, void* shared, const void* global);
/// Ends a group of copies of this thread.
__device__ void copy_commit();
/// Waits until at most kLeft groups of this thread are under way; another thread's copies are visible after a barrier.
template <int kLeft>
__device__ __forceinline__ void copy_wait();

/// The arrival of pieces of global memory in shared memory, phase after phase: an 8-byte word of shared memory. A warp
/// sets it up, then starts a piece, waits for it, starts the next.
using Arrival = unsigned long long;
/// For the calling warp alone.
__device__ void set_up_arrivals(Arrival* arrivals, int n, int lane);
/// The whole warp starts a copy of `bytes`, a multiple of 16, both ends aligned to 16; what it read there before has
/// been read by all lanes.
__device__ void start_piece(Arrival* arrival, void* shared, const void* global, int bytes, int lane);
/// Waits for the piece of phase 0, 1, 0, 1, ...; every lane that waits sees all of it.
__device__ void wait_for_piece(Arrival* arrival, unsigned phase);

/// Asks for the bytes around an address of global memory to be brought near, into L2.
__device__ void prefetch(const void* global);

/// Programmatic dependent launch (Grid::overlap): waits until the grid before has ended and its writes can be seen.
/// Nothing in a launch without overlap, and before sm_90.
__device__ void wait_for_previous_grid();
/// Lets the next grid start when all blocks have said so or ended.
__device__ void let_next_grid_start();

/// 2^x, fast: relative error below 2^-21.
__device__ float fast_exp2(float x);
/// 1 / x, to 2^-23 of it, of sizes 2^-126 to 2^126; 0 of larger ones.
__device__ float fast_reciprocal(float x);

/// Two floats as f16, the first in the low half.
__device__ uint32_t pack_f16(float low, float high);
__device__ uint32_t pack_bf16(float low, float high);
/// Two f16 as floats, exact; x is the low one.
__device__ float2 unpack_f16(uint32_t pair);
/// Two f16 at a time: a - b, and a b + c rounded once.
__device__ uint32_t sub_f16x2(uint32_t a, uint32_t b);
__device__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c);
/// (a & b) | c in one instruction; with two constants the compiler makes two of it.
__device__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c);
/// The bits of `mask` from a, the others from b, in one instruction.
template <uint32_t mask>
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b);

/// Bytes of high:low by the nibbles of the selector's low half, bits 0-2 which byte, bit 3 its sign alone eight times.
/// CUDA's own __byte_perm() spends an instruction on clearing bit 3.
__device__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector);

/// Conversions, to nearest; a float beyond the range becomes infinite.
__device__ float f16_to_float(uint16_t half);
__device__ uint16_t float_to_f16(float value);
__device__ float bf16_to_float(uint16_t bits);
__device__ uint16_t float_to_bf16(float value);

#if !defined(__CUDA_EMULATED__) && !defined(__HIP__)  // gpu/hip_shim.h has them for the latter

__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_s8_from(int start, int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}

__device__ __forceinline__ void mma_u8s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_u8s8_k16(int (&d)[4], const uint32_t (&a)[2], uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

#define RIDGE_MMA_HALF(name, type)                                                                      \
  __device__ __forceinline__ void name(float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                          \
        ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "                                                  \
        "{%0,%1,%2,%3};"                                                                                \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                \
  }
RIDGE_MMA_HALF(mma_f16, "f16")
RIDGE_MMA_HALF(mma_bf16, "bf16")
#undef RIDGE_MMA_HALF

__device__ __forceinline__ void copy_async16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
}
__device__ __forceinline__ void copy_async16_if(bool wanted, void* shared, const void* global) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n"
      "}"
      :
      : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(global), "r"(int(wanted))
      : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// Before sm_90 every lane copies its share and arrives for it; there one lane asks for the whole piece.
__device__ __forceinline__ void set_up_arrivals(Arrival* arrivals, int n, int lane) {
#if __CUDA_ARCH__ >= 900
  constexpr int kArrivals = 1;
#else
  constexpr int kArrivals = 32;
#endif
  if (lane < n)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(uint32_t(__cvta_generic_to_shared(arrivals + lane))),
                 "r"(kArrivals)
                 : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncwarp();
}
__device__ __forceinline__ void start_piece(Arrival* arrival, void* shared, const void* global, int bytes, int lane) {
  const auto at = uint32_t(__cvta_generic_to_shared(arrival));
#if __CUDA_ARCH__ >= 900
  if (lane == 0)
    asm volatile(
        "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %3;\n"
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%0];"
        :
        : "r"(at), "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(global), "r"(bytes)
        : "memory");
#else
  for (int i = 16 * lane; i < bytes; i += 512)
    copy_async16(static_cast<char*>(shared) + i, static_cast<const char*>(global) + i);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
#endif
}
__device__ __forceinline__ void wait_for_piece(Arrival* arrival, unsigned phase) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "AGAIN:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared.b64 there, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 there, [%0], %1;\n"
#endif
      "@!there bra AGAIN;\n"
      "}"
      :
      : "r"(uint32_t(__cvta_generic_to_shared(arrival))), "r"(phase)
      : "memory");
}

__device__ __forceinline__ void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}
__device__ __forceinline__ float f16_to_float(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
/// By way of a pair: of one half's low byte, stored by itself, ptxas 13.0 makes a conversion of its value.
__device__ __forceinline__ uint16_t float_to_f16(float value) { return uint16_t(pack_f16(value, 0)); }
__device__ __forceinline__ float bf16_to_float(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
__device__ __forceinline__ uint16_t float_to_bf16(float value) { return uint16_t(pack_bf16(value, 0)); }
__device__ __forceinline__ float2 unpack_f16(uint32_t pair) {
  float2 values;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}
__device__ __forceinline__ uint32_t sub_f16x2(uint32_t a, uint32_t b) {
  uint32_t difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  return bits;
}
template <uint32_t mask>
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(bits) : "n"(mask), "r"(a), "r"(b));
  return bits;
}
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

#endif

}  // namespace ridge::gpu

#ifdef __CUDA_EMULATED__
#include <emulated_tensor.h>  // tests/emulate
#endif
