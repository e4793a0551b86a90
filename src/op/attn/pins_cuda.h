// Two instructions of decode attention, beside gpu/tensor.h so that other kernels do not depend on them.
#pragma once

#include "gpu/tensor.h"

namespace ridge::gpu {

/// copy_async16(), kOffset bytes on at both ends: the offset is part of the instruction.
template <int kOffset>
__device__ __forceinline__ void copy_async16_at(void* shared, const void* global) {
#if defined(__CUDA_EMULATED__) || defined(__HIP__)
  copy_async16(static_cast<char*>(shared) + kOffset, static_cast<const char*>(global) + kOffset);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0+%2], [%1+%2], 16;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(global), "n"(kOffset)
               : "memory");
#endif
}

/// x in a register of the lane. The compiler would keep a constant in one of the warp, which byte look-ups cannot read,
/// and copy it in front of each: 80 of 1,180 instructions of a loop over rotor-3. It cannot know that a lane's mask has
/// one bit.
__device__ __forceinline__ uint32_t pinned(uint32_t x) {
#if !defined(__CUDA_EMULATED__) && !defined(__HIP__)
  asm("{ .reg .u32 t; mov.u32 t, %%lanemask_eq; popc.b32 t, t; sub.u32 t, t, 1; or.b32 %0, %0, t; }" : "+r"(x));
#endif
  return x;
}

}  // namespace ridge::gpu
