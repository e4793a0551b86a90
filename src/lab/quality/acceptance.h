// How many of a proposer's tokens hold with a cache: steps of a fixed depth at fixed places of one text.
//
// How many proposals a real step has follows from times (SpecDepth), and the text from the cache. Here neither does:
// every cache gets the same places of the same text, and as many proposals at each, so that steps can be compared in
// pairs.
#pragma once

#include "engine/decode/decoder.h"
#include "engine/kv_choice.h"

namespace ridge::lab {

struct AcceptanceStep {
  int n_proposed = 0, n_accepted = 0;
};

/// Whether load_mtp_head() finds a head without being told a file.
bool has_mtp_head(const Model& model);

/// Texts with one cache. Not thread-safe.
class AcceptanceRun {
 public:
  /// For prompts and texts that have n_ctx tokens together, at most. `depth`: 1 to kMaxSpecDepth.
  AcceptanceRun(const Model& model, const KvChoice& kv, int n_ctx, int depth);

  /// Behind `prompt`, at every (depth + 1)-th token of `text`: a step of that token and `depth` proposals, each of
  /// which holds if it is the likeliest token behind those in front of it. Then the sequence goes back, and runs the
  /// text's own tokens up to the next place. Steps that `proposer`, which has seen nothing yet, has no proposals for
  /// are left out.
  std::vector<AcceptanceStep> along(Proposer& proposer, std::span<const int32_t> prompt, std::span<const int32_t> text);

 private:
  void run(Proposer& proposer, std::span<const int32_t> tokens, LogitRows rows);
  AcceptanceStep step(Proposer& proposer, std::span<const int32_t> known);

  Engine& engine_;
  int depth_;
  std::unique_ptr<SequencePool> pool_;
  SeqId seq_{};
  std::unique_ptr<Outputs> outputs_;
};

}  // namespace ridge::lab
