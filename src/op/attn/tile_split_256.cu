// Decode attention over rows of 256 values.
#include "op/attn/tile_split_cuda.h"

namespace ridge::tiles {

std::span<const SplitKernel> split_kernels_256() {
  using enum TileKind;
  static constexpr SplitKernel kKernels[] = {
      split_kernel<256, f16, f16>(),       split_kernel<256, int8_blocks, int8_blocks>(),
      split_kernel<256, rotor3, rotor3>(), split_kernel<256, rotor3, rotor3, true>(),
      any_split_kernel<256, false>(),      any_split_kernel<256, true>(),
  };
  return kKernels;
}

}  // namespace ridge::tiles
