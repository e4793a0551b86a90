// Bounds of logits against those of float32 arithmetic.
#pragma once

#include <string_view>

namespace ridge {

/// For products added in float32 in any order, and weights decoded to float32: what the README of the reference data
/// allows.
inline constexpr double kFloatBound = 1e-4;
/// For matrices in block formats on processors with panel kernels, which round activations to 15 bits
/// (op/gemv/panels.h). Runtimes that round them to 8 bits are off by 0.29 in the reference data's models of block
/// formats; 15 bits are 128 times finer.
inline constexpr double kFifteenBitBound = 0.29 / 128;

/// The bound of a reference model by its name: these alone have matrices in a block format with panels.
constexpr double logit_bound(std::string_view model) {
  for (const std::string_view packed : {"fp4", "awq", "gptq"})
    if (model.find(packed) != model.npos) return kFifteenBitBound;
  return kFloatBound;
}

}  // namespace ridge
