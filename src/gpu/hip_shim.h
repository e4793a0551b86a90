// Shim that lets device code written for CUDA compile for RDNA3 (gfx11, wavefronts of 32): CUDA's functions of warps
// and memory, and the instructions of gpu/tensor.h. Executed in an emulator, never on hardware.
//
// clang++ -x hip reads it before everything else of a file (-include gpu/hip_shim.h): <cstring> names in std only the
// overloads of memcpy that were declared before it.
#pragma once

// HIP defines them.
static inline __attribute__((device)) void* memcpy(void*, const void*, decltype(sizeof 0));
static inline __attribute__((device)) void* memset(void*, int, decltype(sizeof 0));

#define HIP_DISABLE_WARP_SYNC_BUILTINS  // ROCm 7's functions of a warp: masks of 64 bits, and a loop over masks
#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>

#include "gpu/dot_mma.h"

/// HIP's own macro cannot take template arguments: their commas split it.
constexpr int launch_bound(int threads, int = 0) { return threads; }
#undef __launch_bounds__
#define __launch_bounds__(...) __attribute__((amdgpu_flat_work_group_size(1, launch_bound(__VA_ARGS__))))
#undef __grid_constant__
#define __grid_constant__

// --- CUDA's functions of a warp, of rounding and of memory ---
//
// By macros and under names of our own, whatever a release of HIP has under CUDA's: its barriers call a library, its
// products may be fused with sums. Masks always name all lanes of the warp.

namespace ridge::gpu::hip {

template <class T>
__device__ __forceinline__ T shfl(unsigned, T value, int lane) {
  return __shfl(value, lane, 32);
}
template <class T>
__device__ __forceinline__ T shfl_xor(unsigned, T value, int mask) {
  return __shfl_xor(value, mask, 32);
}
template <class T>
__device__ __forceinline__ T shfl_up(unsigned, T value, unsigned step) {
  return __shfl_up(value, step, 32);
}
template <class T>
__device__ __forceinline__ T shfl_down(unsigned, T value, unsigned step) {
  return __shfl_down(value, step, 32);
}
__device__ __forceinline__ unsigned ballot(unsigned, bool x) { return __builtin_amdgcn_ballot_w32(x); }
__device__ __forceinline__ bool any(unsigned, bool x) { return __builtin_amdgcn_ballot_w32(x) != 0; }
__device__ __forceinline__ bool all(unsigned, bool x) { return __builtin_amdgcn_ballot_w32(!x) == 0; }
template <class T, class F>
__device__ __forceinline__ T reduce(T value, F f) {
  for (int step = 16; step > 0; step /= 2) value = f(value, __shfl_xor(value, step, 32));
  return value;
}
template <class T>
__device__ __forceinline__ T reduce_max(unsigned, T value) {
  return reduce(value, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
__device__ __forceinline__ T reduce_min(unsigned, T value) {
  return reduce(value, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
__device__ __forceinline__ T reduce_add(unsigned, T value) {
  return reduce(value, [](T a, T b) { return a + b; });
}
template <class T>
__device__ __forceinline__ T reduce_or(unsigned, T value) {
  return reduce(value, [](T a, T b) { return a | b; });
}
__device__ __forceinline__ void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
__device__ __forceinline__ void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
/// HIP's own calls a library.
__device__ __forceinline__ int sync_block_or(int x) {
  __shared__ unsigned found;
  sync_block();  // an earlier call may still be reading
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) found = 0;
  sync_block();
  if (x) found = 1;
  sync_block();
  return found != 0;
}
__device__ __forceinline__ int sync_block_and(int x) { return !sync_block_or(!x); }
__device__ __forceinline__ void fence_device() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
__device__ __forceinline__ void fence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

__device__ __forceinline__ int dp4a(int a, int b, int sum) {
  return __builtin_amdgcn_sudot4(true, a, true, b, sum, false);
}
__device__ __forceinline__ float mul_rn(float a, float b) {
#pragma clang fp contract(off)
  return a * b;
}
__device__ __forceinline__ float add_rn(float a, float b) {
#pragma clang fp contract(off)
  return a + b;
}

/// Caches' hints say when data is used again; without them the result is the same.
template <class T>
__device__ __forceinline__ T load(const T* at) {
  return *at;
}
template <class T>
__device__ __forceinline__ void store(T* at, T value) {
  *at = value;
}

}  // namespace ridge::gpu::hip

#undef __syncthreads
#undef __syncthreads_or
#undef __syncthreads_and
#undef __threadfence
#undef __threadfence_system
#define __shfl_sync ::ridge::gpu::hip::shfl
#define __shfl_xor_sync ::ridge::gpu::hip::shfl_xor
#define __shfl_up_sync ::ridge::gpu::hip::shfl_up
#define __shfl_down_sync ::ridge::gpu::hip::shfl_down
#define __ballot_sync ::ridge::gpu::hip::ballot
#define __any_sync ::ridge::gpu::hip::any
#define __all_sync ::ridge::gpu::hip::all
#define __reduce_max_sync ::ridge::gpu::hip::reduce_max
#define __reduce_min_sync ::ridge::gpu::hip::reduce_min
#define __reduce_add_sync ::ridge::gpu::hip::reduce_add
#define __reduce_or_sync ::ridge::gpu::hip::reduce_or
#define __syncwarp ::ridge::gpu::hip::sync_warp
#define __syncthreads ::ridge::gpu::hip::sync_block
#define __syncthreads_or ::ridge::gpu::hip::sync_block_or
#define __syncthreads_and ::ridge::gpu::hip::sync_block_and
#define __threadfence ::ridge::gpu::hip::fence_device
#define __threadfence_system ::ridge::gpu::hip::fence_system
#define __dp4a ::ridge::gpu::hip::dp4a
#define __fmul_rn ::ridge::gpu::hip::mul_rn
#define __fadd_rn ::ridge::gpu::hip::add_rn
#define __popc(bits) int(__popc(bits))  // HIP counts unsigned
#define __ldcg ::ridge::gpu::hip::load
#define __ldcs ::ridge::gpu::hip::load
#define __stcs ::ridge::gpu::hip::store

namespace ridge::gpu {

// --- gpu/tensor.h ---

namespace hip {

using Half2 = _Float16 __attribute__((ext_vector_type(2)));
__device__ __forceinline__ Half2 halves(uint32_t pair) { return __builtin_bit_cast(Half2, pair); }

/// The words of an mma's operands in other lanes.
struct Words {
  const uint32_t* own_a;
  uint32_t own_b[2];

  template <int kWord, int kQuad>
  __device__ __forceinline__ uint32_t a() const {
    return uint32_t(__builtin_amdgcn_mov_dpp(int(own_a[kWord]), kQuad * 0x55, 0xF, 0xF, true));
  }
  __device__ __forceinline__ uint32_t b(int word, int lane) const {
    return uint32_t(__builtin_amdgcn_ds_bpermute(4 * lane, int(own_b[word])));
  }
};
__device__ __forceinline__ int lane() { return int(__builtin_amdgcn_mbcnt_lo(~0u, 0)); }

}  // namespace hip

__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_by_dots(hip::lane(), d, hip::Words{a, {b0, b1}},
              [](uint32_t x, uint32_t y, int sum) { return __dp4a(int(x), int(y), sum); });
}
__device__ __forceinline__ void mma_s8_from(int start, int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  d[0] = d[1] = d[2] = d[3] = start;
  mma_s8(d, a, b0, b1);
}
__device__ __forceinline__ void mma_u8s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_by_dots(hip::lane(), d, hip::Words{a, {b0, b1}}, [](uint32_t x, uint32_t y, int sum) {
    return __builtin_amdgcn_sudot4(false, int(x), true, int(y), sum, false);
  });
}
__device__ __forceinline__ void mma_u8s8_k16(int (&d)[4], const uint32_t (&a)[2], uint32_t b) {
  mma_by_dots_k16(hip::lane(), d, hip::Words{a, {b, 0}}, [](uint32_t x, uint32_t y, int sum) {
    return __builtin_amdgcn_sudot4(false, int(x), true, int(y), sum, false);
  });
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_by_dots(hip::lane(), d, hip::Words{a, {b0, b1}}, [](uint32_t x, uint32_t y, float sum) {
    return __builtin_amdgcn_fdot2(hip::halves(x), hip::halves(y), sum, false);
  });
}
/// By two multiply-adds: clang 19 folds DPP into v_dot2_f32_bf16 and cannot encode that.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_by_dots(hip::lane(), d, hip::Words{a, {b0, b1}}, [](uint32_t x, uint32_t y, float sum) {
    sum = __builtin_fmaf(__uint_as_float(x << 16), __uint_as_float(y << 16), sum);
    return __builtin_fmaf(__uint_as_float(x & 0xFFFF0000u), __uint_as_float(y & 0xFFFF0000u), sum);
  });
}

/// Copies at once: RDNA3 has no copies to shared memory that run by themselves.
__device__ __forceinline__ void copy_async16(void* shared, const void* global) {
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
}
__device__ __forceinline__ void copy_async16_if(bool wanted, void* shared, const void* global) {
  if (wanted) copy_async16(shared, global);
}
__device__ __forceinline__ void copy_commit() {}
template <int kLeft>
__device__ __forceinline__ void copy_wait() {}

/// A piece is there when all lanes of the warp have copied their shares.
using Arrival = unsigned long long;
__device__ __forceinline__ void set_up_arrivals(Arrival*, int, int) {}
__device__ __forceinline__ void start_piece(Arrival*, void* shared, const void* global, int bytes, int lane) {
  for (int i = 16 * lane; i < bytes; i += 512)
    copy_async16(static_cast<char*>(shared) + i, static_cast<const char*>(global) + i);
}
__device__ __forceinline__ void wait_for_piece(Arrival*, unsigned) { __syncwarp(); }

__device__ __forceinline__ void prefetch(const void*) {}
__device__ __forceinline__ void wait_for_previous_grid() {}
__device__ __forceinline__ void let_next_grid_start() {}

__device__ __forceinline__ float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
__device__ __forceinline__ float fast_reciprocal(float x) {
  return __builtin_fabsf(x) > 0x1p126f ? 0.0f : __builtin_amdgcn_rcpf(x);
}
/// Bit 3 of a nibble asks for the byte's sign in all bits: only of selectors that are constants. Callers clear it in
/// others.
__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint32_t bytes = __builtin_amdgcn_perm(high, low, byte_selector(selector));
  if (!__builtin_constant_p(selector)) return bytes;
  const uint32_t signs = byte_selector(selector >> 3 & 0x1111u) * 0xFFu;
  return (bytes & ~signs) | ((bytes >> 7 & 0x01010101u) * 0xFFu & signs);
}
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }
template <uint32_t mask>
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}
__device__ __forceinline__ float f16_to_float(uint16_t half) { return float(__builtin_bit_cast(_Float16, half)); }
__device__ __forceinline__ float2 unpack_f16(uint32_t pair) {
  return {float(hip::halves(pair)[0]), float(hip::halves(pair)[1])};
}
__device__ __forceinline__ uint16_t float_to_f16(float value) {
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  return float_to_f16(low) | uint32_t(float_to_f16(high)) << 16;
}
__device__ __forceinline__ uint32_t sub_f16x2(uint32_t a, uint32_t b) {
#pragma clang fp contract(off)
  return __builtin_bit_cast(uint32_t, hip::halves(a) - hip::halves(b));
}
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_fma(hip::halves(a), hip::halves(b), hip::halves(c)));
}
__device__ __forceinline__ float bf16_to_float(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
/// Finite values only.
__device__ __forceinline__ uint16_t float_to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  return float_to_bf16(low) | uint32_t(float_to_bf16(high)) << 16;
}

}  // namespace ridge::gpu
