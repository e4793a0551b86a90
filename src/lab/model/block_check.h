// The blocks of a model's layers against the reference kernels, each given the same input: a wrong kernel shows in its
// own block, however chaotic the model is, and errors of other layers do not hide it.
//
// The engine runs three steps behind the depth that is timed. What enters each block of its first, middle and last
// layer goes into the reference's block too, over the same cached rows; what both blocks add to the residual stream is
// compared, and in the end the logits.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/kv_choice.h"

namespace ridge::lab {

/// The block whose error is largest for its bound.
struct BlockError {
  std::string block;  ///< "attention of layer 13, step of 1"
  double nmse = 0;    ///< of what the block adds to the residual stream
  double bound = 0;
  bool finite = true;

  bool passed() const { return finite && nmse <= bound; }
};

/// A model on the scalar kernels of the CPU.
class BlockReference {
 public:
  /// Throws Error, as Model::load().
  explicit BlockReference(const std::string& path);

  /// Three steps of one sequence (1, 4 and 24 tokens) behind `depth` pseudo-random positions. Throws Error, no_memory
  /// for one, as opening a session does. The bounds follow from what the fast kernels round (block_check.cpp).
  BlockError compare(Engine& engine, const KvChoice& kv, int depth, uint64_t seed);

  static constexpr int kSteps[] = {1, 4, 24};
  static constexpr int kTokens = 1 + 4 + 24;

 private:
  Engine engine_;
};

}  // namespace ridge::lab
