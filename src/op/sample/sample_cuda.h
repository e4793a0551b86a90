// Sampling of tokens where the logits are: op/sample/rule.h on the device. A token sampled here is the one that Sampler
// samples from the same logits, settings and number of calls; where Sampler throws, it has the bit kNotFiniteToken.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/memory_use.h"
#include "gpu/token_ring.h"
#include "op/sample/rule.h"

namespace ridge {

/// Launches that the settings of a batch need; one kind serves all before it.
enum class SampleKind : uint8_t {
  greedy,    ///< 1 launch
  plain,     ///< 2: sampling with temperature only
  filtered,  ///< 3: with top_k, top_p or min_p
};

/// Most rows of a step that verifies proposals: the last token of a text and the proposals behind it.
inline constexpr int kMostVerifiedRows = 16;

/// Where a text is whose steps propose, verify and go on without the host; in device memory.
struct DeviceText {
  int32_t n_past = 0;                       ///< tokens in the model's cache
  int32_t n_before = 0;                     ///< the same before the step that was verified last
  int32_t n_sampled = 0;                    ///< tokens that it gave: n_past - n_before
  int32_t sampled[kMostVerifiedRows] = {};  ///< these; the last one is not in the cache
  int32_t next[kMostVerifiedRows] = {};     ///< of the next step: the last token of the text, and proposals
  uint64_t n_forced = 0;                    ///< proposals that chance has decided on
};

/// For benchmarks: proposals count as right by chance, and the text is theirs.
struct ForcedProposals {
  double share = -1;  ///< of those that are right; below 0: they hold if they are what was sampled
  uint64_t seed = 0;
};

/// Tokens the penalty can look back on a device.
inline constexpr int kMaxDevicePenaltyTokens = 1024;

/// The samplers of n_seq sequences. Settings, random state and the penalty's window are in device memory: a graph that
/// has recorded sample() samples on with every replay, and set() between replays is respected as long as needs() is
/// what it was when the graph was recorded.
class DeviceSampler {
 public:
  /// Ids below n_ids are sampled; 0: all of them.
  DeviceSampler(int n_seq, int vocab_size, int n_ids = 0);

  /// What such a sampler allocates.
  static gpu::Allocations bytes_of(int n_seq, int vocab_size);

  /// Starts sequence `seq` anew: settings (in Sampler's ranges), step 0, and the tokens the penalty knows (the prompt;
  /// ids outside the vocabulary are passed over). Queued; not while recording. Throws usage when the penalty looks
  /// back further than kMaxDevicePenaltyTokens.
  void set(gpu::StreamHandle stream, int seq, const SamplerOptions& options, std::span<const int32_t> recent = {});

  /// The text that the last sampler samples goes on by a step of several rows: queues sampler i, of the first n, to
  /// stand where the last one would behind i proposals (text->next + 1). All have been set alike.
  void spread(gpu::StreamHandle stream, int n, const DeviceText* text);
  /// `sampled` [n] are what the first n samplers sampled from the rows of such a step. Queued: sampled tokens are taken
  /// up to the first one that its proposal is not; text and last sampler go on behind them. `ring` (of
  /// kMostVerifiedRows + 1 sequences) gets their number, then they.
  void verify(gpu::StreamHandle stream, int n, const int32_t* sampled, const ForcedProposals& forced, DeviceText* text,
              const gpu::TokenRingView& ring);

  /// What sample() launches for the settings so far; starts as greedy without penalty.
  struct Needs {
    SampleKind kind = SampleKind::greedy;
    bool penalty = false;  ///< one launch more
    bool operator==(const Needs&) const = default;
  };
  Needs needs() const { return needs(n_seq_); }
  Needs needs(int n) const;  ///< of the first n sequences

  /// Samples the next token of every sequence: logits [n_seq, vocab_size] to tokens [n_seq], both on the device. With a
  /// penalty it is applied to `logits` in place. Tokens go into `ring` (of n_seq sequences), if given, too. Kernels
  /// overlap with earlier launches of the stream and wait for them.
  void sample(gpu::StreamHandle stream, float* logits, int32_t* tokens, const gpu::TokenRingView& ring = {}) {
    sample(stream, n_seq_, logits, tokens, ring);
  }
  /// The same of the first n sequences.
  void sample(gpu::StreamHandle stream, int n, float* logits, int32_t* tokens, const gpu::TokenRingView& ring = {});

 private:
  int n_seq_, vocab_size_, n_ids_, n_blocks_;
  std::vector<Needs> needs_;  // of each sequence
  gpu::Buffer states_, partial_, bins_, listed_, recent_;
};

}  // namespace ridge
