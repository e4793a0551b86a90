// What device code needs to compile for RDNA3 (gfx11, wavefronts of 32) from the sources that are compiled for CUDA:
// CUDA's warp functions, and gpu/tensor.h's instructions as far as decode attention uses them. Compiled by clang++ -x
// hip and inspected (tools/hip_check.py), never run: there is no host side.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>

#include "gpu/dot_mma.h"

// --- What the kernels call of ROCm's device library, which is not at hand where only assembly is made ---

#define RIDGE_DEVICE_LIBRARY extern "C" __device__ inline __attribute__((const, always_inline))
RIDGE_DEVICE_LIBRARY size_t __ockl_get_local_id(uint) { return __builtin_amdgcn_workitem_id_x(); }
RIDGE_DEVICE_LIBRARY size_t __ockl_get_local_size(uint) { return __builtin_amdgcn_workgroup_size_x(); }
RIDGE_DEVICE_LIBRARY size_t __ockl_get_group_id(uint axis) {
  return axis == 0 ? __builtin_amdgcn_workgroup_id_x() : __builtin_amdgcn_workgroup_id_y();
}
RIDGE_DEVICE_LIBRARY float __ocml_rint_f32(float x) { return __builtin_rintf(x); }
#undef RIDGE_DEVICE_LIBRARY

/// HIP's own macro cannot take template arguments: their commas split it.
constexpr int launch_bound(int threads, int = 0) { return threads; }
#undef __launch_bounds__
#define __launch_bounds__(...) __attribute__((amdgpu_flat_work_group_size(1, launch_bound(__VA_ARGS__))))

// --- CUDA's functions of a warp; masks always name all lanes ---

template <class T>
__device__ __forceinline__ T __shfl_sync(unsigned, T value, int lane) {
  return __shfl(value, lane, 32);
}
template <class T>
__device__ __forceinline__ T __shfl_xor_sync(unsigned, T value, int mask) {
  return __shfl_xor(value, mask, 32);
}
template <class T>
__device__ __forceinline__ T __shfl_up_sync(unsigned, T value, unsigned step) {
  return __shfl_up(value, step, 32);
}
__device__ __forceinline__ unsigned __ballot_sync(unsigned, bool x) { return __builtin_amdgcn_ballot_w32(x); }
__device__ __forceinline__ bool __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
__device__ __forceinline__ void __syncwarp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
/// In place of HIP's __syncthreads(), which calls the library for its fences.
__device__ __forceinline__ void __rdna3_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#define __syncthreads __rdna3_barrier
__device__ __forceinline__ int __dp4a(int a, int b, int sum) {
  return __builtin_amdgcn_sudot4(true, a, true, b, sum, false);
}

namespace ridge::gpu {

// --- gpu/launch.h: named by templates that no kernel needs ---

struct Grid;
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... args);
template <class... Parameters>
void allow_shared_bytes(const char* name, void (*kernel)(Parameters...), size_t bytes);

// --- gpu/tensor.h ---

namespace rdna3 {

using Half2 = _Float16 __attribute__((ext_vector_type(2)));

/// The words of a product's operands in other lanes.
struct Words {
  const uint32_t (&own_a)[4];
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

}  // namespace rdna3

__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_by_dots(rdna3::lane(), d, rdna3::Words{a, {b0, b1}},
              [](uint32_t x, uint32_t y, int sum) { return __dp4a(int(x), int(y), sum); });
}
__device__ __forceinline__ void mma_s8_from(int start, int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  d[0] = d[1] = d[2] = d[3] = start;
  mma_s8(d, a, b0, b1);
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_by_dots(rdna3::lane(), d, rdna3::Words{a, {b0, b1}}, [](uint32_t x, uint32_t y, float sum) {
    return __builtin_amdgcn_fdot2(__builtin_bit_cast(rdna3::Half2, x), __builtin_bit_cast(rdna3::Half2, y), sum, false);
  });
}

/// Copies at once: RDNA3 has no copies to shared memory that run by themselves.
__device__ __forceinline__ void copy_async16(void* shared, const void* global) {
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
}
__device__ __forceinline__ void copy_commit() {}
template <int kLeft>
__device__ __forceinline__ void copy_wait() {}
__device__ __forceinline__ void wait_for_previous_grid() {}
__device__ __forceinline__ void let_next_grid_start() {}

__device__ __forceinline__ float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
/// Without the sign bits of gpu/tensor.h's: callers clear bit 3 of each nibble.
__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  return __builtin_amdgcn_perm(high, low, byte_selector(selector));
}
__device__ __forceinline__ float f16_to_float(uint16_t half) { return float(__builtin_bit_cast(_Float16, half)); }
__device__ __forceinline__ float2 unpack_f16(uint32_t pair) {
  const auto halves = __builtin_bit_cast(rdna3::Half2, pair);
  return {float(halves[0]), float(halves[1])};
}
__device__ __forceinline__ uint16_t float_to_f16(float value) {
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  return float_to_f16(low) | uint32_t(float_to_f16(high)) << 16;
}
__device__ __forceinline__ float bf16_to_float(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
/// Finite values only.
__device__ __forceinline__ uint16_t float_to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace ridge::gpu
