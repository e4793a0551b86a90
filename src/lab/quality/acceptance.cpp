#include "lab/quality/acceptance.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "engine/engine.h"
#include "engine/finite.h"
#include "lab/quality/engine_timelines.h"
#include "model/mtp.h"

namespace ridge::lab {

bool has_mtp_head(const Model& model) {
  Engine& engine = model.engine();
  std::error_code error;
  return engine.weights().head || read_own_mtp_head(engine.config(), engine.weights()).or_throw() ||
         std::filesystem::exists(std::filesystem::path(model.info().path) / "mtp.safetensors", error);
}

AcceptanceRun::AcceptanceRun(const Model& model, const KvChoice& kv, int n_ctx, int depth)
    : engine_(model.engine()), depth_(depth) {
  RIDGE_CHECK(depth >= 1 && depth <= kMaxSpecDepth, "{} proposals", depth);
  n_ctx += depth + 1;  // proposals behind the last place
  const std::vector<KvLayerConfig> layers = layer_configs(session_options(kv, n_ctx, kTimelineUbatch), engine_.plan());
  pool_ = engine_.open_pool(layers, pool_pages(layers, n_ctx, 1, kTimelineUbatch), {1, 1}, n_ctx);
  seq_ = pool_->open().or_throw();
  outputs_ = engine_.backend().make_outputs();
}

void AcceptanceRun::run(Proposer& proposer, std::span<const int32_t> tokens, LogitRows rows) {
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min(tokens.size(), size_t(kTimelineUbatch)));
    const SeqTokens of_seq{seq_, int(part.size())};
    const int first = pool_->length(seq_);
    pool_->reserve(seq_, of_seq.n_tokens).or_throw();
    const Batch batch{.tokens = part, .seqs = {&of_seq, 1}, .logits = rows, .hidden = proposer.wants_hidden()};
    engine_.backend().run(batch, *pool_, *outputs_);
    if (batch.hidden) proposer.observe(part, first, outputs_->hidden());
    tokens = tokens.subspan(part.size());
  }
}

AcceptanceStep AcceptanceRun::step(Proposer& proposer, std::span<const int32_t> known) {
  const int n_past = pool_->length(seq_), n = most_proposals(*pool_, seq_, depth_);
  std::vector<int32_t> tokens(1, known.back());
  if (n > 0) std::ranges::copy(proposer.propose(known, n), std::back_inserter(tokens));
  AcceptanceStep step{.n_proposed = int(tokens.size()) - 1};
  if (step.n_proposed == 0) {
    run(proposer, tokens, LogitRows::none);
    return step;
  }
  run(proposer, tokens, LogitRows::all);
  const View2<const float> logits = outputs_->logits();
  const auto holds = [&](int i) {
    const std::span<const float> row = logits.row(i);
    check_logits(row);
    return std::ranges::max_element(row) - row.begin() == tokens[size_t(i) + 1];
  };
  while (step.n_accepted < step.n_proposed && holds(step.n_accepted)) ++step.n_accepted;
  pool_->trim(seq_, n_past + 1, TrimMode::exact).or_throw();
  return step;
}

std::vector<AcceptanceStep> AcceptanceRun::along(Proposer& proposer, std::span<const int32_t> prompt,
                                                 std::span<const int32_t> text) {
  pool_->reset(seq_);
  run(proposer, prompt, LogitRows::none);
  std::vector<int32_t> known(prompt.begin(), prompt.end());
  std::vector<AcceptanceStep> steps;
  for (size_t at = 0; at < text.size(); at += size_t(depth_) + 1) {
    known.push_back(text[at]);
    if (const AcceptanceStep taken = step(proposer, known); taken.n_proposed > 0) steps.push_back(taken);
    const auto between = text.subspan(at + 1, std::min(size_t(depth_), text.size() - at - 1));
    run(proposer, between, LogitRows::none);
    known.insert(known.end(), between.begin(), between.end());
  }
  return steps;
}

}  // namespace ridge::lab
