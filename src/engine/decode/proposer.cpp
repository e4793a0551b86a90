#include "engine/decode/proposer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ridge {
namespace {

/// The probability of the likeliest token.
double best_probability(std::span<const float> logits) {
  const float best = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double(logit) - best);
  return 1 / sum;
}

}  // namespace

void Proposer::propose_all(std::span<Draft> drafts) {
  for (Draft& draft : drafts)
    if (!draft.sampler) draft.tokens = draft.proposer->propose(draft.text, draft.n);
}

std::vector<int32_t> BatchProposer::propose(std::span<const int32_t> text, int n) {
  Draft draft{.proposer = this, .text = text, .n = n};
  propose_all({&draft, 1});
  return std::move(draft.tokens);
}

SeqId open_text(SequencePool& pool, int n_texts) {
  const Result<SeqId> seq = pool.open();
  if (!seq) throw_error(ErrorKind::no_memory, "{} texts have proposers, and there is no cache for more", n_texts);
  return *seq;
}

std::optional<int32_t> next_draft_token(Draft& draft, std::span<const float> logits, double p_min) {
  if (draft.sampler && !std::ranges::all_of(logits, [](float x) { return x < INFINITY; })) return {};
  if (p_min > 0 && best_probability(logits) < p_min) return {};
  if (!draft.sampler) return int32_t(std::ranges::max_element(logits) - logits.begin());
  const auto recent_text = draft.text.last(std::min(draft.text.size(), size_t(draft.sampler->repeat_last_n)));
  std::vector<int32_t> recent(recent_text.begin(), recent_text.end());
  recent.insert(recent.end(), draft.tokens.begin(), draft.tokens.end());
  draft.probabilities.push_back(distribution_of(*draft.sampler, logits, recent));
  return sample_from(draft.probabilities.back(), *draft.rng);
}

}  // namespace ridge
