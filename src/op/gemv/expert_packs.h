// Which rows of a step go through which expert, as matmuls on a device read it (op/experts/experts_cuda.h makes it).
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

/// Gated activation of gate g and up u of a pair: silu(g) u, max(g, 0)^2 u, gelu(g) u (tanh form), or gpt-oss's clamped
/// form.
enum class BrickGlu : uint8_t { silu, relu2, gelu_tanh, clamped_swiglu };

/// Operands of a matmul with chosen experts. Pointers are device memory.
struct ExpertCall {
  const ExpertPack* packs = nullptr;
  int64_t n_packs = 0;
  int most = 1;              ///< slots of a pack: 1 or ExpertPack::kMost
  const float* x = nullptr;  ///< slot s reads row s / share of n_in values
  int share = 1;
  float* y[2] = {};  ///< [slots, n_out] of each matrix; a gated matmul has the first one only
  BrickGlu glu = BrickGlu::silu;
  bool ints = false;             ///< activations become integers where a kernel has that; packs with slots come first
  bool overlap = false;          ///< programmatic dependent launch
  bool packs_are_there = false;  ///< with overlap: the packs were complete when the grid before waited for its own
};

/// The sum of what a token's experts give, each times its weight. Pointers are device memory.
struct ExpertSumCall {
  int64_t n_tokens = 0;
  int n_slots = 0;                   ///< of a token
  const int32_t* experts = nullptr;  ///< [n_tokens, n_slots]
  const float* weights = nullptr;    ///< [n_tokens, n_slots]
  const float* x = nullptr;          ///< [n_tokens, n_slots, n_in]
  bool add = false;                  ///< to y, or in its place
  float* y = nullptr;                ///< [n_tokens, n_out]
  bool overlap = false;              ///< programmatic dependent launch
};

}  // namespace ridge
