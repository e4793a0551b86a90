// Proposers: draft tokens of texts that step together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "engine/backend.h"
#include "engine/distribution.h"

namespace ridge {

/// Most draft tokens of a step; an exact trim takes back twice as many.
inline constexpr int kMaxSpecDepth = 16;

class Proposer;

/// Draft tokens of one text for one step.
struct Draft {
  Proposer* proposer = nullptr;
  std::span<const int32_t> text;  ///< the tokens of the sequence so far, the last one not run
  int n = 0;                      ///< most tokens, 1 or more
  const SamplerOptions* sampler =
      nullptr;                       ///< rejection sampling: settings that tokens are sampled by; null: the likeliest
  Rng* rng = nullptr;                ///< of this sampling
  std::vector<int32_t> tokens = {};  ///< the result
  std::vector<Distribution> probabilities = {};  ///< with `sampler`: what each token was sampled from
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  /// Up to n (1 or more) tokens that may follow `text`, the tokens of the sequence so far; none where nothing is known.
  virtual std::vector<int32_t> propose(std::span<const int32_t> text, int n) = 0;
  /// Fills the drafts of several texts, whose proposers one maker made; asked is the first one's. One after another
  /// unless a proposer can do better. Those without probabilities have nothing for drafts with a sampler.
  virtual void propose_all(std::span<Draft> drafts);
  /// What the device's own loop proposes with behind the drafts' texts, whose last tokens the target has not run: that
  /// loop then moves the proposers' caches. Asked is the first one's. Nothing where propose_all() must be asked.
  virtual std::optional<DeviceDraft> on_device(std::span<const Draft> /*drafts*/) { return {}; }
  /// The loop has ended; `text` is what it was when the last step began. observe() follows for that step.
  virtual void leave_device(std::span<const int32_t> /*text*/) {}
  /// Whether observe() is to be called.
  virtual bool wants_hidden() const { return false; }
  /// The target ran these tokens from position `first` on, hidden [n_tokens, d_model]. What was known of these
  /// positions and later ones is void.
  virtual void observe(std::span<const int32_t> /*tokens*/, int /*first*/, View2<const float> /*hidden*/) {}
  /// The target went on unobserved, maybe with another text: what was observed so far is void.
  virtual void lose_track() {}
  /// Pretends to have read the text, which Session::fill() pretends to hold: for benchmarks.
  virtual void fill(std::span<const int32_t> /*text*/, uint64_t /*seed*/) {}
  /// Of its part of a cache.
  virtual int64_t bytes() const { return 0; }
};

/// A proposer whose forward passes serve several texts: its propose_all() does the work.
class BatchProposer : public Proposer {
 public:
  std::vector<int32_t> propose(std::span<const int32_t> text, int n) final;
  void propose_all(std::span<Draft> drafts) override = 0;
};

/// Makes a proposer for one text; what proposers share is loaded once.
struct ProposerMaker : std::function<std::unique_ptr<Proposer>()> {
  using function::function;
  int64_t bytes = 0;  ///< what Proposer::bytes() of each will be
};

/// What followed the longest earlier place that ends as the text does.
std::unique_ptr<Proposer> make_lookup_proposer();
/// The likeliest tokens by a smaller model, up to one less probable than p_min. The proposers of up to n_texts texts at
/// a time share a cache, made with the first of them, and the forward passes of a step. `target` and `draft` must
/// outlive the proposers. Throws usage when the vocabularies differ.
ProposerMaker draft_proposers(const Model& target, const Model& draft, const SessionOptions& cache, double p_min = 0,
                              int n_texts = 1);
/// What an MTP head proposes.
struct MtpDrafts {
  double p_min = 0;  ///< a draft ends at a token less probable
  /// Draft tokens are among the first so many ids, of whose logits alone the head makes: 0: among all. The text does
  /// not change; a token behind them is never drafted.
  int vocab = 0;
};
/// As draft_proposers(), by the head of `target` for the tokens after the next one (model/mtp.h). It knows the text
/// from where it first observed the target. `path`: as load_mtp_head() takes it. Throws Error.
ProposerMaker mtp_proposers(const Model& target, const std::string& path, const SessionOptions& cache,
                            const MtpDrafts& drafts = {}, int n_texts = 1);

/// The next draft token behind those of `draft`, by a proposer's logits [vocab_size]; none ends them: no token is as
/// probable as p_min, or there is no distribution.
std::optional<int32_t> next_draft_token(Draft& draft, std::span<const float> logits, double p_min);

/// A sequence for one more text of a cache that a maker's proposers share. Throws no_memory where n_texts have theirs.
SeqId open_text(SequencePool& pool, int n_texts);

}  // namespace ridge
