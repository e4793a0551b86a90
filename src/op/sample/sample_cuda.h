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

/// Most rows of a text in a step that verifies proposals: its last token and the proposals behind it.
inline constexpr int kMostVerifiedRows = 16;
/// Most texts of such a step.
inline constexpr int kMostVerifiedTexts = 16;

/// For benchmarks: proposals count as right by chance, and the text is theirs.
struct ForcedProposals {
  double share = -1;  ///< of those that are right; below 0: they hold if they are what was sampled
  uint64_t seed = 0;
  uint64_t n = 0;  ///< proposals that chance has decided on
};

/// Where a text is whose steps propose, verify and go on without the host; in device memory.
struct DeviceText {
  int32_t n_past = 0;                       ///< tokens in the model's cache
  int32_t n_before = 0;                     ///< the same before the step that was verified last
  int32_t n_sampled = 0;                    ///< tokens that it gave: n_past - n_before
  int32_t sampled[kMostVerifiedRows] = {};  ///< these; the last one is not in the cache
  int32_t next[kMostVerifiedRows] = {};     ///< of the next step: the last token of the text, and proposals
  ForcedProposals forced;
};

/// The rows of texts in a step: text i has rows [first[i], first[i + 1]).
struct VerifiedRows {
  int n_texts = 0;
  int first[kMostVerifiedTexts + 1] = {};

  RIDGE_HD int n_rows() const { return first[n_texts]; }
};

/// Where sampled tokens go: every `stride`-th place from `first` on.
struct TokenPlaces {
  TokenPlaces(int32_t* places) : first(places) {}
  TokenPlaces(int32_t* places, int every) : first(places), stride(every) {}

  int32_t* first;
  int stride = 1;
};

/// Tokens the penalty can look back on a device.
inline constexpr int kMaxDevicePenaltyTokens = 1024;

/// The samplers of n_seq sequences. Settings, random state and the penalty's window are in device memory: a graph that
/// has recorded sample() samples on with every replay, and set() between replays is respected as long as needs() is
/// what it was when the graph was recorded.
class DeviceSampler {
 public:
  /// Ids below n_ids are sampled; 0: all of them. Behind the samplers of n_seq sequences come those of n_texts texts
  /// whose steps have several rows: they are spread over the former, and sample nothing themselves.
  DeviceSampler(int n_seq, int vocab_size, int n_ids = 0, int n_texts = 0);

  /// Allocations of a sampler of n_seq sequences.
  static gpu::Allocations bytes_of(int n_seq, int vocab_size);

  /// Starts sequence `seq` anew: settings (in Sampler's ranges), step 0, and the tokens the penalty knows (the prompt;
  /// ids outside the vocabulary are passed over). Queued; not while recording. Throws usage when the penalty looks
  /// back further than kMaxDevicePenaltyTokens.
  void set(gpu::StreamHandle stream, int seq, const SamplerOptions& options, std::span<const int32_t> recent = {});

  /// Texts go on by a step of several rows each: queues the sampler of each row to stand where its text's would behind
  /// the proposals in front of the row (texts[i].next + 1). Text i has sampler n_seq + i.
  void spread(gpu::StreamHandle stream, const VerifiedRows& rows, const DeviceText* texts);
  /// `sampled` are what the rows' samplers sampled in such a step. Queued: sampled tokens of each text are taken up to
  /// the first one that its proposal is not; texts and their samplers go on behind them. `ring` (of kMostVerifiedRows +
  /// 1 sequences a text) gets their number, then they.
  void verify(gpu::StreamHandle stream, const VerifiedRows& rows, const int32_t* sampled, DeviceText* texts,
              const gpu::TokenRingView& ring);

  /// Launches that sample() needs for the settings so far; starts as greedy without penalty.
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
  /// Samples the next token of the first n sequences, as above.
  void sample(gpu::StreamHandle stream, int n, float* logits, const TokenPlaces& tokens,
              const gpu::TokenRingView& ring = {});

 private:
  int n_seq_, vocab_size_, n_ids_, n_blocks_;
  std::vector<Needs> needs_;  // of each sequence, then of each text
  gpu::Buffer states_, partial_, bins_, listed_, recent_;
};

}  // namespace ridge
