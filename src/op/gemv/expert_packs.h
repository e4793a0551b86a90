// Which rows of a step go through which expert, as products on a device read it (op/experts/experts_cuda.h makes it).
#pragma once

#include <cstdint>

namespace ridge {

/// Up to kMost slots that take the same expert. Slot t * n_used + i is the i-th expert of token t.
struct alignas(32) ExpertPack {
  static constexpr int kMost = 4;
  int32_t expert = 0;
  int32_t n = 0;  ///< slots; 0: nothing to do
  int32_t slots[kMost] = {};
};

/// What a product over chosen experts reads and writes, one launch without overlap. Pointers are device memory.
struct ExpertCall {
  const ExpertPack* packs = nullptr;
  int64_t n_packs = 0;
  int most = 1;              ///< slots of a pack: 1 or ExpertPack::kMost
  const float* x = nullptr;  ///< slot s reads row s / share of n_in values
  int share = 1;
  float* y[2] = {};  ///< [slots, n_out] of each matrix
};

}  // namespace ridge
