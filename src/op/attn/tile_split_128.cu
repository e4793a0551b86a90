// Decode attention over rows of 128 values.
#include "op/attn/tile_split_cuda.h"

namespace ridge::tiles {

std::span<const SplitKernel> split_kernels_128() {
  using enum TileKind;
  static constexpr SplitKernel kKernels[] = {
      split_kernel<128, f16, f16>(),
      split_kernel<128, bf16, bf16>(),
      split_kernel<128, int8_blocks, int8_blocks>(),
      split_kernel<128, int8_row, int8_row>(),
      split_kernel<128, q4, q4>(),
      split_kernel<128, rotor4, rotor4>(),
      split_kernel<128, rotor4, rotor4, true>(),
      split_kernel<128, rotor3, rotor3>(),
      split_kernel<128, rotor3, rotor3, true>(),
      split_kernel<128, int8_blocks, q4>(),
      split_kernel<128, int8_blocks, rotor3>(),
      split_kernel<128, rotor4, rotor3>(),
      split_kernel<128, rotor4, rotor3, true>(),
      any_split_kernel<128, false>(),
      any_split_kernel<128, true>(),
  };
  return kKernels;
}

}  // namespace ridge::tiles
