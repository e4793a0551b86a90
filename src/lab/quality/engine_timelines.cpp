#include "lab/quality/engine_timelines.h"

#include <algorithm>

namespace ridge::lab {

EngineTimelines::EngineTimelines(const Model& model, const SessionOptions& options, int n_seq)
    : engine_(model.engine()), n_ctx_(options.n_ctx) {
  const std::vector<KvLayerConfig> layers = layer_configs(options, engine_.plan());
  pool_ = engine_.open_pool(layers, n_seq * std::max(1, pages_for(layers, n_ctx_)), n_seq, n_ctx_);
  outputs_ = engine_.backend().make_outputs();
  while (ssize(seqs_) < n_seq) seqs_.push_back(pool_->open().or_throw());
}

void EngineTimelines::reset(int n_active) {
  RIDGE_CHECK(n_active > 0 && n_active <= n_seq(), "{} of {} sequences", n_active, n_seq());
  for (const SeqId seq : seqs_) pool_->reset(seq);
  n_active_ = n_active;
}

void EngineTimelines::run(std::span<const int32_t> tokens, bool with_logits) {
  std::vector<SeqTokens> step;
  for (int i = 0; i < n_active_; ++i) {
    step.push_back({seqs_[size_t(i)], int(ssize(tokens) / n_active_)});
    pool_->reserve(step.back().seq, step.back().n_tokens).or_throw();
  }
  engine_.backend().run({.tokens = tokens, .seqs = step, .logits = with_logits ? LogitRows::all : LogitRows::none},
                        *pool_, *outputs_);
}

void EngineTimelines::score(Timelines* base, std::span<const int32_t> targets) {
  outputs_->score(base ? static_cast<EngineTimelines*>(base)->outputs_.get() : nullptr, targets);
}

}  // namespace ridge::lab
