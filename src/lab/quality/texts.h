// Texts that one cache reads and writes side by side.
#pragma once

#include "engine/engine.h"
#include "engine/kv_choice.h"

namespace ridge::lab {

/// Sequences of one cache: those of a model, or a test's double.
class Texts {
 public:
  virtual ~Texts() = default;
  /// Most texts side by side.
  virtual int n_seq() const = 0;
  /// Forgets all texts.
  virtual void reset() = 0;
  /// Appends tokens[i] to text i. Texts get any number of tokens, those of this call at least one each. Keeps logits of
  /// every token, or none.
  virtual void append(std::span<const std::span<const int32_t>> tokens, LogitRows rows) = 0;
  /// The likeliest token of each row of logits. Throws Error for logits that are not finite.
  virtual std::vector<int32_t> likeliest() = 0;
  /// -ln p(target) in nats, row by row of the logits. Throws as likeliest().
  virtual std::vector<double> nll(std::span<const int32_t> targets) = 0;
  /// Remembers the texts as they are; go_back() brings them back, any number of times until reset().
  virtual void mark() = 0;
  virtual void go_back() = 0;
};

class EngineTexts final : public Texts {
 public:
  /// Up to n_seq texts of n_ctx tokens. Throws Error(no_memory) when there is no room.
  EngineTexts(const Model& model, const KvChoice& kv, int n_ctx, int n_seq);
  /// As many texts side by side as keep the model's device busy and have room there, `most` at most.
  static std::unique_ptr<EngineTexts> open(const Model& model, const KvChoice& kv, int n_ctx, int most);

  int n_seq() const override { return int(seqs_.size()); }
  void reset() override;
  void append(std::span<const std::span<const int32_t>> tokens, LogitRows rows) override;
  std::vector<int32_t> likeliest() override;
  std::vector<double> nll(std::span<const int32_t> targets) override;
  void mark() override;
  void go_back() override;
  KvReport cache() { return kv_report(pool_->memory(), n_ctx_); }

 private:
  void run(std::span<const int32_t> tokens, std::span<const SeqTokens> seqs, LogitRows rows);

  Engine& engine_;
  const int n_ctx_;
  std::unique_ptr<SequencePool> pool_;
  std::unique_ptr<Outputs> outputs_;
  std::vector<SeqId> seqs_;
  std::vector<CheckpointId> marks_;  ///< of the first sequences, those that hold tokens
};

}  // namespace ridge::lab
