// Drawing tokens where the logits are: op/sample/rule.h on the device. A token drawn here is the one that Sampler draws
// from the same logits, settings and number of calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/token_ring.h"
#include "op/sample/rule.h"

namespace ridge {

/// Launches that the settings of a batch need; one kind serves all before it.
enum class SampleKind : uint8_t {
  greedy,    ///< 1 launch
  plain,     ///< 2: a draw with temperature only
  filtered,  ///< 3: with top_k, top_p or min_p
};

/// Tokens the penalty can look back on a device.
inline constexpr int kMaxDevicePenaltyTokens = 1024;

/// The samplers of n_seq sequences. Settings, random state and the penalty's window are in device memory: a graph that
/// has recorded sample() draws on with every replay, and set() between replays is respected as long as needs() is what
/// it was when the graph was recorded.
class DeviceSampler {
 public:
  DeviceSampler(int n_seq, int vocab_size);

  /// Starts sequence `seq` anew: settings (in Sampler's ranges), step 0, and the tokens the penalty knows (the prompt;
  /// ids outside the vocabulary are passed over). Queued; not while recording. Throws usage when the penalty looks
  /// back further than kMaxDevicePenaltyTokens.
  void set(gpu::StreamHandle stream, int seq, const SamplerOptions& options, std::span<const int32_t> recent = {});

  /// What sample() launches for the settings so far; starts as greedy without penalty.
  struct Needs {
    SampleKind kind = SampleKind::greedy;
    bool penalty = false;  ///< one launch more
    bool operator==(const Needs&) const = default;
  };
  Needs needs() const { return needs(n_seq_); }
  Needs needs(int n) const;  ///< of the first n sequences

  /// Draws the next token of every sequence: logits [n_seq, vocab_size] to tokens [n_seq], both on the device. With a
  /// penalty it is applied to `logits` in place. Tokens go into `ring` (of n_seq sequences), if given, too. Kernels
  /// overlap with earlier launches of the stream and wait for them.
  void sample(gpu::StreamHandle stream, float* logits, int32_t* tokens, const gpu::TokenRingView& ring = {}) {
    sample(stream, n_seq_, logits, tokens, ring);
  }
  /// The same of the first n sequences.
  void sample(gpu::StreamHandle stream, int n, float* logits, int32_t* tokens, const gpu::TokenRingView& ring = {});

 private:
  int n_seq_, vocab_size_, n_blocks_;
  std::vector<Needs> needs_;  // of each sequence
  gpu::Buffer states_, partial_, bins_, listed_, recent_;
};

}  // namespace ridge
