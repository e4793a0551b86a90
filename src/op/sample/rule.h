// The rule by which a token is sampled from logits, written once for CPU and device so that both sample the same one.
//
// Logits are compared as floats, a NaN being +infinity and the smaller id the better of equals: what is not finite and
// no -infinity comes out as the best, which is looked at. Probabilities are whole
// numbers, sample_weight(): their sums are exact in any order, which is what lets many threads add them up. One token:
//
//   1. penalty: logits of the last repeat_last_n tokens, each id once, are divided by it if positive, else multiplied
//   2. greedy (exponent 0) takes the best. A best that is not finite is no token: Sampler throws, a device marks what
//      it hands out (kNotFiniteToken)
//   3. top_k keeps the k best, if not 0
//   4. top_p keeps the best until their weights at temperature 1 reach top_p of those kept by 3; always one
//   5. min_p keeps logits >= best + log_min_p
//   6. the remaining tokens get their weights at the temperature, in order: best first if 3, 4 or 5 is on, else by id.
//      The first one whose running sum exceeds multiply_high(random_number(seed, step), sum of all) is chosen.
//
// Each call but a greedy one uses up one step.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "base/rng.h"
#include "ridge/engine.h"

namespace ridge {

/// SamplerOptions in the numbers the rule works with.
struct SampleRule {
  uint64_t seed;
  float exponent;   ///< -log2(e) / temperature; 0: greedy
  float log_min_p;  ///< -infinity: off
  uint32_t top_k;   ///< 0: off
  uint32_t top_p;   ///< in units of 2^-32; kTopPOff: off
  float repeat_penalty;
  uint32_t repeat_last_n;  ///< 0 where the penalty is off
};

inline constexpr uint32_t kTopPOff = 0xFFFFFFFFu;  // the largest float below 1 is 256 less
inline constexpr float kExponentOf1 = -1.4426950408889634f;
/// In a token that a device sampled: the logits were not finite. The other bits are an id, so that steps under way go
/// on.
inline constexpr int32_t kNotFiniteToken = 1 << 30;
inline constexpr int kMaxSampleVocab = 1 << 22;  ///< up to here sums of weights fit in 64 bits

inline SampleRule sample_rule(const SamplerOptions& o) {
  SampleRule rule = {};
  rule.seed = o.seed;
  // Not to infinity: it is to be multiplied by 0.
  if (o.temperature > 0) rule.exponent = std::fmax(kExponentOf1 / o.temperature, -3e38f);
  rule.log_min_p = o.min_p > 0 ? std::log(o.min_p) : -INFINITY;
  rule.top_k = uint32_t(o.top_k);
  rule.top_p = o.top_p < 1 ? uint32_t(double(o.top_p) * 0x1p32) : kTopPOff;
  rule.repeat_penalty = o.repeat_penalty;
  rule.repeat_last_n = o.repeat_penalty != 1.0f ? uint32_t(o.repeat_last_n) : 0;
  return rule;
}

/// Whether step 3, 4 or 5 is on.
RIDGE_HD inline bool has_filter(const SampleRule& rule) {
  return rule.top_k != 0 || rule.top_p != kTopPOff || rule.log_min_p > -INFINITY;
}

/// 2^41 * exp(-below / temperature) in whole numbers, for a logit `below` (>= 0, may be infinite) under the best:
/// 2^41 at 0, and 0 from 29.1 temperatures down. Relative error below 2^-17 (that of the product with `exponent`, which
/// reaches 42) plus one unit. Compiled without fused multiply-add on both sides.
RIDGE_HD inline uint64_t sample_weight(float below, float exponent) {
  const float y = below * exponent;
  if (!(y > -42.0f)) return 0;
  const float whole = rintf(y), x = y - whole;  // exact; |x| <= 1/2
  float p = 1.5403530e-4f;                      // ln(2)^k / k!, 6 down to 0: 2^x within 1.3e-7
  p = p * x + 1.3333558e-3f;
  p = p * x + 9.6181291e-3f;
  p = p * x + 5.5504109e-2f;
  p = p * x + 2.4022651e-1f;
  p = p * x + 6.9314718e-1f;
  p = p * x + 1.0f;
  const auto mantissa = uint64_t(p * 0x1p24f);  // a float in [0.7, 1.42) times 2^24 is whole
  const int shift = 17 + int(whole);
  return shift >= 0 ? mantissa << shift : mantissa >> -shift;
}

/// floor(a * b / 2^64)
RIDGE_HD inline uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a0 = uint32_t(a), a1 = a >> 32, b0 = uint32_t(b), b1 = b >> 32;
  const uint64_t low = a1 * b0 + (a0 * b0 >> 32), high = a0 * b1 + uint32_t(low);
  return a1 * b1 + (low >> 32) + (high >> 32);
}

/// Of 64 bits, the same as call number `step` (from 0) of Rng(seed).next().
RIDGE_HD inline uint64_t random_number(uint64_t seed, uint64_t step) {
  return splitmix64(seed + (step + 1) * kSplitmixStep);
}

/// The weights, best first, that step 4 keeps must reach this sum (1 at least keeps the best).
RIDGE_HD inline uint64_t top_p_target(const SampleRule& rule, uint64_t sum) {
  const uint64_t target = multiply_high(sum, uint64_t(rule.top_p) << 32);
  return target > 0 ? target : 1;
}

/// A penalised logit.
RIDGE_HD inline float penalised(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

/// A logit and its id as one number, larger for the better; never 0.
RIDGE_HD inline uint64_t sample_key(float logit, uint32_t id) {
  const float value = logit == logit ? logit + 0.0f : INFINITY;  // -0 becomes 0
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits ^= bits >> 31 ? 0xFFFFFFFFu : 0x80000000u;
  return uint64_t(bits) << 32 | (0xFFFFFFFFu - id);
}
RIDGE_HD inline uint32_t key_id(uint64_t key) { return 0xFFFFFFFFu - uint32_t(key); }
RIDGE_HD inline float key_logit(uint64_t key) {
  auto bits = uint32_t(key >> 32);
  bits ^= bits >> 31 ? 0x80000000u : 0xFFFFFFFFu;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace ridge
