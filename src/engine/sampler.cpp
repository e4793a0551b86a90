// The sampler chain: repeat penalty, top-k, top-p, min-p, temperature, draw.
#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

struct Candidate {
  int32_t token;
  float logit;
};

void check_range(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return;  // NaN fails too
  throw Error(ErrorKind::usage, fmt::format("{} {} is out of range ({} to {})", flag, value, low, high));
}

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

/// exp(logit - top) of every candidate; candidates are sorted, so the first is the top.
std::vector<double> weights(const std::vector<Candidate>& candidates, double temperature) {
  std::vector<double> w;
  for (const Candidate& c : candidates) w.push_back(std::exp((double(c.logit) - candidates[0].logit) / temperature));
  return w;
}

}  // namespace

struct Sampler::Impl {
  SamplerOptions options;
  int vocab_size;
  Rng rng;
  std::deque<int32_t> recent;

  void remember(int32_t token) {
    recent.push_back(token);
    while (int(recent.size()) > options.repeat_last_n) recent.pop_front();
  }
};

Sampler::Sampler(const SamplerOptions& o, int vocab_size) : impl_(new Impl{o, vocab_size, Rng(o.seed), {}}) {
  check_range("--temp", o.temperature, 0, 1e4);
  check_range("--top-k", o.top_k, 0, 1 << 30);
  check_range("--top-p", o.top_p, 0, 1);
  check_range("--min-p", o.min_p, 0, 1);
  check_range("--repeat-penalty", o.repeat_penalty, 0.01, 100);
  check_range("--repeat-last-n", o.repeat_last_n, 0, 1 << 20);
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;

void Sampler::accept(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) impl_->remember(token);
}

int32_t Sampler::sample(std::span<const float> logits) {
  const SamplerOptions& o = impl_->options;
  RIDGE_CHECK(int(logits.size()) == impl_->vocab_size, "{} logits for a vocabulary of {}", logits.size(),
              impl_->vocab_size);
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    candidates[i] = {int32_t(i), std::isnan(logits[i]) ? -INFINITY : logits[i]};

  if (o.repeat_penalty != 1.0f) {
    std::deque<int32_t> seen = impl_->recent;
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (const int32_t token : seen) {
      if (token < 0 || token >= impl_->vocab_size) continue;
      float& logit = candidates[size_t(token)].logit;
      logit = logit > 0 ? logit / o.repeat_penalty : logit * o.repeat_penalty;
    }
  }

  int32_t chosen;
  if (o.temperature <= 0) {
    chosen = std::min_element(candidates.begin(), candidates.end(), better)->token;
  } else {
    const size_t k = o.top_k > 0 ? std::min(candidates.size(), size_t(o.top_k)) : candidates.size();
    std::partial_sort(candidates.begin(), candidates.begin() + std::ptrdiff_t(k), candidates.end(), better);
    candidates.resize(k);
    if (o.top_p < 1) {  // the smallest set of best tokens that holds top_p of the probability
      const std::vector<double> w = weights(candidates, 1);
      const double total = std::accumulate(w.begin(), w.end(), 0.0);
      double sum = 0;
      size_t n = 0;
      while (n < w.size() && (n == 0 || sum < double(o.top_p) * total)) sum += w[n++];
      candidates.resize(n);
    }
    if (o.min_p > 0) {  // tokens at least min_p as likely as the best one
      const float floor = candidates[0].logit + std::log(o.min_p);
      while (candidates.size() > 1 && candidates.back().logit < floor) candidates.pop_back();
    }
    const std::vector<double> w = weights(candidates, o.temperature);
    double left = impl_->rng.uniform() * std::accumulate(w.begin(), w.end(), 0.0);
    size_t i = 0;
    while (i + 1 < w.size() && (left -= w[i]) >= 0) ++i;
    chosen = candidates[i].token;
  }
  impl_->remember(chosen);
  return chosen;
}

}  // namespace ridge
