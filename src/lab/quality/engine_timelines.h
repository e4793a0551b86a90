// Timelines of a model: one pool of equal sequences.
#pragma once

#include "engine/engine.h"
#include "lab/quality/windows.h"

namespace ridge::lab {

class EngineTimelines final : public Timelines {
 public:
  /// Throws Error(no_memory) when there is no room for n_seq sequences of options.n_ctx tokens.
  EngineTimelines(const Model& model, const SessionOptions& options, int n_seq);

  int n_seq() const override { return int(seqs_.size()); }
  void reset(int n_active) override;
  void run(std::span<const int32_t> tokens, bool with_logits) override;
  View2<const float> logits() override { return outputs_->logits(); }
  /// Where the logits are; `base` is of the same model.
  void score(Timelines* base, std::span<const int32_t> targets) override;
  std::vector<RowScore> take_scores() override { return outputs_->take_scores(); }
  KvReport cache() { return kv_report(pool_->memory(), n_ctx_); }

 private:
  Engine& engine_;
  int n_ctx_;
  std::unique_ptr<SequencePool> pool_;
  std::unique_ptr<Outputs> outputs_;
  std::vector<SeqId> seqs_;
  int n_active_ = 0;
};

/// One sequence that holds tokens and gives logits: a Session, or a test's double.
class Timeline {
 public:
  virtual ~Timeline() = default;
  virtual void reset() = 0;
  virtual void prefill(std::span<const int32_t> tokens) = 0;
  virtual std::span<const float> decode(int32_t token) = 0;
};

/// Tokens of a prompt's step where a study does not say.
inline constexpr int kTimelineUbatch = 512;

class SessionTimeline final : public Timeline {
 public:
  SessionTimeline(const Model& model, const SessionOptions& options) : session(model, options) {}
  void reset() override { session.reset(); }
  void prefill(std::span<const int32_t> tokens) override { session.prefill(tokens); }
  std::span<const float> decode(int32_t token) override { return session.decode(token); }

  Session session;
};

}  // namespace ridge::lab
