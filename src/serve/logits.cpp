#include "serve/logits.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace ridge::serve {

void apply_penalties(const GenerationRequest& request, std::span<const int32_t> generated, std::span<float> logits) {
  if (request.presence_penalty != 0 || request.frequency_penalty != 0) {
    for (const int32_t token : generated) logits[size_t(token)] -= request.frequency_penalty;
    for (const int32_t token : std::set<int32_t>(generated.begin(), generated.end()))
      logits[size_t(token)] -= request.presence_penalty;
  }
  for (const auto& [token, bias] : request.logit_bias) logits[size_t(token)] += bias;
}

TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int n) {
  const double best = *std::ranges::max_element(logits);
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0,
                                     [&](double s, float logit) { return s + std::exp(double(logit) - best); });
  const auto logprob = [&](int32_t id) { return float(double(logits[size_t(id)]) - best - std::log(sum)); };
  TokenLogprob result{token, logprob(token), {}};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  n = std::min(n, int(ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + n, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x != y ? x > y : a < b;
  });
  for (int i = 0; i < n; ++i) result.top.emplace_back(ids[size_t(i)], logprob(ids[size_t(i)]));
  return result;
}

}  // namespace ridge::serve
