#include "lab/quality/texts.h"

#include <algorithm>

#include "engine/finite.h"

namespace ridge::lab {

EngineTexts::EngineTexts(const Model& model, const KvChoice& kv, int n_ctx, int n_seq)
    : engine_(model.engine()), n_ctx_(n_ctx) {
  const int n_step = engine_.default_ubatch();
  const std::vector<KvLayerConfig> layers = layer_configs(session_options(kv, n_ctx, n_step), engine_.plan());
  // A mark has a slot of its own, and shares the page that its text goes on in.
  PageNumbers n_pages = pool_pages(layers, n_ctx, n_seq, n_step);
  const int more = n_seq * (pages_for(layers, kPagePositions) + 1);
  n_pages.full += more, n_pages.sliding += more;
  pool_ = engine_.open_pool(layers, n_pages, 2 * n_seq, n_ctx);
  outputs_ = engine_.backend().make_outputs();
  while (ssize(seqs_) < n_seq) seqs_.push_back(pool_->open().or_throw());
}

std::unique_ptr<EngineTexts> EngineTexts::open(const Model& model, const KvChoice& kv, int n_ctx, int most) {
  // Texts side by side share the reading of weights; all of them together hold this many tokens.
  const bool on_device = model.engine().on_device();
  const int busy = on_device ? 64 : 8, tokens = on_device ? 1 << 18 : 1 << 14;
  for (int n_seq = std::clamp(tokens / n_ctx, 1, std::min(busy, most));; n_seq /= 2) {
    try {
      return std::make_unique<EngineTexts>(model, kv, n_ctx, n_seq);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::no_memory || n_seq == 1) throw;
    }
  }
}

void EngineTexts::reset() {
  for (const CheckpointId mark : marks_) pool_->release(mark);
  marks_.clear();
  for (const SeqId seq : seqs_) pool_->reset(seq);
}

void EngineTexts::run(std::span<const int32_t> tokens, std::span<const SeqTokens> seqs, LogitRows rows) {
  for (const SeqTokens& of : seqs) pool_->reserve(of.seq, of.n_tokens).or_throw();
  engine_.backend().run({.tokens = tokens, .seqs = seqs, .logits = rows}, *pool_, *outputs_);
}

void EngineTexts::append(std::span<const std::span<const int32_t>> tokens, LogitRows rows) {
  RIDGE_CHECK(ssize(tokens) <= n_seq(), "{} texts in {} sequences", tokens.size(), n_seq());
  if (rows == LogitRows::none) {  // prompts, each in steps of its own
    const auto n_step = size_t(engine_.default_ubatch());
    for (size_t i = 0; i < tokens.size(); ++i)
      for (auto rest = tokens[i]; !rest.empty(); rest = rest.subspan(std::min(n_step, rest.size()))) {
        const SeqTokens of{seqs_[i], int(std::min(n_step, rest.size()))};
        run(rest.first(size_t(of.n_tokens)), {&of, 1}, rows);
      }
    return;
  }
  std::vector<int32_t> joined;
  std::vector<SeqTokens> seqs;
  for (size_t i = 0; i < tokens.size(); ++i) {
    joined.insert(joined.end(), tokens[i].begin(), tokens[i].end());
    seqs.push_back({seqs_[i], int(tokens[i].size())});
  }
  run(joined, seqs, rows);
}

std::vector<int32_t> EngineTexts::likeliest() {
  const auto n = size_t(outputs_->n_rows());
  const std::vector<SamplerOptions> greedy(n, {.temperature = 0});
  std::vector<int32_t> tokens = engine_.backend().sample(*outputs_, greedy, std::vector<std::vector<int32_t>>(n));
  for (const int32_t token : tokens) checked_token(token);
  return tokens;
}

std::vector<double> EngineTexts::nll(std::span<const int32_t> targets) {
  outputs_->score(nullptr, targets);
  std::vector<double> nll;
  for (const RowScore& score : outputs_->take_scores()) {
    if (score.finite != 1) throw NotFiniteError();
    nll.push_back(score.nll);
  }
  return nll;
}

void EngineTexts::mark() {
  for (const SeqId seq : seqs_)
    if (pool_->length(seq) > 0) marks_.push_back(pool_->checkpoint(seq).or_throw());
}

void EngineTexts::go_back() {
  for (size_t i = 0; i < marks_.size(); ++i) pool_->restore(seqs_[i], marks_[i]);
}

}  // namespace ridge::lab
