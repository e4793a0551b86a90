// The sampler chain on the CPU: op/sample/rule.h, word for word.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <functional>

#include "base/result.h"
#include "engine/distribution.h"
#include "engine/finite.h"
#include "op/sample/rule.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

void check_range(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return;  // NaN fails too
  throw_wrong_field(field, "{} is {}, expected {} to {}", field, value, low, high);
}

/// Steps 3 to 5 of the rule: the keys that are left, best first.
void filter(const SampleRule& rule, float best, std::vector<uint64_t>& keys) {
  const auto weight = [&](uint64_t key) { return sample_weight(best - key_logit(key), kExponentOf1); };
  const auto below_floor = [&](uint64_t key) { return key_logit(key) < best + rule.log_min_p; };
  uint64_t sum = 0;
  if (rule.top_k == 0) {  // what is below the floor counts for top_p, but need not be sorted
    for (const uint64_t key : keys) sum += weight(key);
    std::erase_if(keys, below_floor);
  }
  const size_t k = rule.top_k > 0 ? std::min(keys.size(), size_t(rule.top_k)) : keys.size();
  std::partial_sort(keys.begin(), keys.begin() + std::ptrdiff_t(k), keys.end(), std::greater<>());
  keys.resize(k);
  if (rule.top_k > 0)
    for (const uint64_t key : keys) sum += weight(key);
  if (rule.top_p != kTopPOff) {
    const uint64_t target = top_p_target(rule, sum);
    uint64_t reached = 0;
    size_t n = 0;
    while (n < keys.size() && reached < target) reached += weight(keys[n++]);
    keys.resize(n);
  }
  std::erase_if(keys, below_floor);
}

/// Step 1 of the rule.
std::vector<uint64_t> penalised_keys(const SampleRule& rule, std::span<const float> logits, std::vector<int32_t> seen) {
  std::vector<uint64_t> keys(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) keys[i] = sample_key(logits[i], uint32_t(i));
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const int32_t token : seen) {
    if (token < 0 || token >= ssize(logits)) continue;
    keys[size_t(token)] = sample_key(penalised(logits[size_t(token)], rule.repeat_penalty), uint32_t(token));
  }
  return keys;
}

}  // namespace

Distribution distribution_of(const SamplerOptions& options, std::span<const float> logits,
                             std::span<const int32_t> recent) {
  const SampleRule rule = sample_rule(options);
  const std::span<const int32_t> seen = recent.last(std::min(recent.size(), size_t(rule.repeat_last_n)));
  std::vector<uint64_t> keys = penalised_keys(rule, logits, {seen.begin(), seen.end()});
  const uint64_t chosen = *std::max_element(keys.begin(), keys.end());
  const float best = key_logit(chosen);
  if (!std::isfinite(best)) throw NotFiniteError();
  if (has_filter(rule)) filter(rule, best, keys);
  Distribution distribution;
  double sum = 0;
  for (const uint64_t key : keys)
    if (const uint64_t weight = sample_weight(best - key_logit(key), rule.exponent); weight > 0) {
      distribution.emplace_back(int32_t(key_id(key)), double(weight));
      sum += double(weight);
    }
  for (auto& [token, probability] : distribution) probability /= sum;
  return distribution;
}

int32_t sample_from(const Distribution& distribution, Rng& rng) {
  double left = rng.uniform();
  for (const auto& [token, probability] : distribution)
    if ((left -= probability) < 0) return token;
  return distribution.back().first;
}

double probability_of(const Distribution& distribution, int32_t token) {
  const auto found = std::ranges::find(distribution, token, &Distribution::value_type::first);
  return found == distribution.end() ? 0 : found->second;
}

Distribution residual(const Distribution& p, const Distribution& q) {
  Distribution left;
  double sum = 0;
  for (const auto& [token, probability] : p)
    if (const double more = probability - probability_of(q, token); more > 0) {
      left.emplace_back(token, more);
      sum += more;
    }
  if (left.empty()) return p;
  for (auto& [token, probability] : left) probability /= sum;
  return left;
}

struct Sampler::Impl {
  SampleRule rule;
  int vocab_size;
  uint64_t step;
  std::deque<int32_t> recent;

  void remember(int32_t token) {
    recent.push_back(token);
    while (recent.size() > rule.repeat_last_n) recent.pop_front();
  }
};

Sampler::Sampler(const SamplerOptions& o, int vocab_size) {
  check_range("temperature", o.temperature, 0, 1e4);
  check_range("top_k", o.top_k, 0, 1 << 30);
  check_range("top_p", o.top_p, 0, 1);
  check_range("min_p", o.min_p, 0, 1);
  check_range("repeat_penalty", o.repeat_penalty, 0.01, 100);
  check_range("repeat_last_n", o.repeat_last_n, 0, 1 << 20);
  RIDGE_CHECK(vocab_size > 0 && vocab_size <= kMaxSampleVocab, "a vocabulary of {}", vocab_size);
  impl_.reset(new Impl{sample_rule(o), vocab_size, o.n_sampled, {}});
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;

void Sampler::accept(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) impl_->remember(token);
}

int32_t Sampler::sample(std::span<const float> logits) {
  const SampleRule& rule = impl_->rule;
  RIDGE_CHECK(int(logits.size()) == impl_->vocab_size, "{} logits for a vocabulary of {}", logits.size(),
              impl_->vocab_size);
  std::vector<uint64_t> keys = penalised_keys(rule, logits, {impl_->recent.begin(), impl_->recent.end()});
  uint64_t chosen = *std::max_element(keys.begin(), keys.end());
  const float best = key_logit(chosen);
  if (!std::isfinite(best)) throw NotFiniteError();
  const uint64_t random = random_number(rule.seed, impl_->step);
  if (rule.exponent != 0) ++impl_->step;
  if (rule.exponent != 0) {
    if (has_filter(rule)) filter(rule, best, keys);
    const auto weight = [&](uint64_t key) { return sample_weight(best - key_logit(key), rule.exponent); };
    uint64_t sum = 0;
    for (const uint64_t key : keys) sum += weight(key);
    const uint64_t number = multiply_high(random, sum);
    size_t i = 0;
    for (uint64_t reached = weight(keys[0]); reached <= number; reached += weight(keys[i])) ++i;
    chosen = keys[i];
  }
  const auto token = int32_t(key_id(chosen));
  impl_->remember(token);
  return token;
}

}  // namespace ridge
