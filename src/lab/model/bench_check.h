// The check in front of every benchmark of a model: its selected kernels against the reference kernels, on the same
// weights, cache rows and tokens.
#pragma once

#include <functional>
#include <map>

#include "base/rng.h"
#include "engine/kv_choice.h"
#include "op/cache/memory.h"

namespace ridge::lab {

/// What is compared: n_seq sequences in one batch behind random cache rows.
struct CheckCase {
  KvChoice kv;
  int depth = 0;  ///< cached rows, brought into the range that a check covers
  int n_seq = 1;
};

struct BenchCheck {
  bool done = false;
  bool passed = false;
  double nmse = 0;   ///< worst of the compared logits rows
  double bound = 0;  ///< nmse must stay below
  int depth = 0;     ///< cached rows during the check
  std::string what;  ///< "2 decode steps and 4 prompt tokens at depth 64"
};

/// Logits of the scalar kernels, made once a case.
class BenchReference {
 public:
  /// Without a model compare() checks nothing.
  BenchReference() = default;
  /// Loads the model on the CPU and lets it go again. `step` is told of every case; `stopped` ends it early.
  BenchReference(const std::string& path, std::span<const CheckCase> cases, uint64_t seed,
                 const std::function<void(const std::string&)>& step, const std::function<bool()>& stopped);

  /// `bound` on the NMSE; unset: by the model's number of layers.
  BenchCheck compare(const Model& model, const CheckCase& of, std::optional<double> bound) const;

 private:
  struct Known {
    std::vector<SequenceImage> caches;  ///< [n_seq]
    std::vector<float> logits;          ///< [rows, vocab_size]
  };
  std::vector<float> logits(const Model& model, const CheckCase& of, const std::vector<SequenceImage>& caches) const;

  uint64_t seed_ = 0;
  std::map<std::string, Known> known_;
};

/// Uniform ids of the model's vocabulary.
std::vector<int32_t> random_tokens(const Model& model, int n, Rng& rng);

}  // namespace ridge::lab
