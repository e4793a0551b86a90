// The check in front of every benchmark of a model: blocks of its layers against the reference kernels, each given the
// same input. A wrong kernel shows in its own block, however chaotic the model is, and errors of other layers do not
// hide it.
//
// The model runs three steps behind the depth that is timed. What enters each block of its first, middle and last layer
// goes into the reference's block too, over the same cached rows; what both blocks add to the residual stream is
// compared, and in the end the logits.
#pragma once

#include <string>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"

namespace ridge::lab {

/// Case to compare: n_seq sequences in one batch behind random cache rows.
struct CheckCase {
  KvChoice kv;
  int depth = 0;  ///< cached rows of the first sequence, at least 64 in the check; the others hold a few more
  int n_seq = 1;
};

struct BenchCheck {
  bool done = false;
  bool passed = false;
  double nmse = 0;   ///< of what a block adds to the residual stream; of the block whose error is largest for its bound
  double bound = 0;  ///< nmse must stay below
  int depth = 0;     ///< cached rows during the check
  std::string what;  ///< what was compared, and the worst block
};

/// A model on the scalar kernels of the CPU.
class BenchReference {
 public:
  /// Throws Error, as Model::load().
  explicit BenchReference(const std::string& path);

  /// Throws Error, no_memory for one, as opening a session does. Without `bound` the bounds follow from what the fast
  /// kernels round (bench_check.cpp).
  BenchCheck compare(const Model& model, const CheckCase& of, uint64_t seed, std::optional<double> bound);

 private:
  Engine engine_;
};

/// Uniform ids of the model's vocabulary.
std::vector<int32_t> random_tokens(const Model& model, int n, Rng& rng);

}  // namespace ridge::lab
