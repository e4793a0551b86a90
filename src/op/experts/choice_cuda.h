// Device code: the choice of a token's experts from its scores by a warp, with the values of all experts in its
// registers and little code: a launch finds none of it near. All that choose from the same scores choose the same
// experts, so a kernel of experts can choose for itself in place of reading a choice. For *.cu files only.
#pragma once

#include <cmath>

#include "gpu/launch.h"
#include "op/experts/experts_cuda.h"

namespace ridge {

/// Values of all experts but those of the best groups become -infinity, as the host's keep_best_groups() has it. A
/// warp; sums [n_groups] is scratch memory for how good the groups are.
__device__ inline void keep_best_groups(int n_experts, const ExpertRule& rule, int lane, float* values, float* sums) {
  const int size = n_experts / rule.n_groups;
  for (int g = lane; g < rule.n_groups; g += 32) {
    float best = -INFINITY, second = size == 1 ? 0.0f : -INFINITY;
    for (int i = 0; i < size; ++i) {
      const float value = values[g * size + i];
      second = fmaxf(second, fminf(best, value));
      best = fmaxf(best, value);
    }
    sums[g] = rule.sigmoid ? best + second : best;
  }
  __syncwarp();
  for (int g = lane; g < rule.n_groups; g += 32) {
    int better = 0;
    for (int other = 0; other < rule.n_groups; ++other)
      better += sums[other] > sums[g] || (sums[other] == sums[g] && other < g);
    if (better < rule.n_groups_used) continue;
    for (int i = 0; i < size; ++i) values[g * size + i] = -INFINITY;
  }
  __syncwarp();
}

/// Floats in their order as unsigned numbers, which are above 0. What is no number is -infinity.
__device__ inline unsigned in_order(float value) {
  const unsigned bits = __float_as_uint(value == value ? value : -INFINITY);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// The largest of a warp's values that are numbers, -infinity where there is none.
__device__ inline float largest_number(float value) {
  const unsigned top = __reduce_max_sync(gpu::kAllLanes, in_order(value));
  return __uint_as_float(top >> 31 ? top & 0x7FFFFFFFu : ~top);
}

__device__ inline float weight_of(const ExpertRule& rule, float score, float top) {
  const float power = expf(rule.sigmoid ? -score : score - top);
  return rule.sigmoid ? 1 / (1 + power) : power;
}

/// Values that the weights of chosen experts are made with: the largest score, and the sum of all weights where it is
/// needed.
struct ChoiceScale {
  float top = 0;
  double all = 0;
};

inline constexpr int kFewSegments = 8, kMostSegments = kMostExperts / 32;

/// Floats of shared memory that choose_by_warp() takes.
__host__ __device__ inline int warp_choice_floats(const ExpertChoice& c, const ExpertRule& rule) {
  return rule.n_groups > 1 ? (c.n_experts + rule.n_groups + 3) / 4 * 4 : 0;
}

/// Chooses from scores [n_scores], as choose_experts (route.h) defines it: experts [n_chosen] in order of their number,
/// which all lanes see. floats: warp_choice_floats() of them in shared memory. kSegments: the most values of a lane,
/// which has every 32nd expert; kFewSegments or kMostSegments.
template <int kSegments>
__device__ ChoiceScale choose_by_warp(const ExpertChoice& c, const ExpertRouter& r, const float* scores,
                                      int32_t* experts, float* floats) {
  const ExpertRule& rule = r.rule;
  const int lane = int(threadIdx.x) % 32;
  const auto each_expert = [&](const auto& visit) {
#pragma unroll
    for (int j = 0; j < kSegments; ++j)
      if (const int e = 32 * j + lane; e < c.n_experts) visit(j, e);
  };
  float values[kSegments], top = -INFINITY;
  const auto each_value = [&](const auto& visit) {
#pragma unroll
    for (int j = 0; j < kSegments; ++j) visit(values[j]);
  };
  each_value([](float& value) { value = -INFINITY; });
  each_expert([&](int j, int e) { values[j] = __ldcg(scores + e); });
  ChoiceScale scale;
  if (rule.sigmoid) {
    each_value([](float& value) { value = 1 / (1 + expf(-value)); });
  } else {
    each_value([&](float value) { top = fmaxf(top, value); });
    scale.top = largest_number(top);
    each_value([&](float& value) { value = expf(value - scale.top); });
  }
  if (!rule.sigmoid && (!rule.renormalised || r.choice_bias)) {
    each_expert([&](int j, int) { scale.all += double(values[j]); });
    scale.all = gpu::warp_sum(scale.all);
  }
  if (r.choice_bias) {  // beside probabilities
    const float all = rule.sigmoid ? 1.0f : float(scale.all);
    each_expert([&](int j, int e) { values[j] += r.choice_bias[e] * all; });
  }
  if (rule.n_groups > 1) {
    each_expert([&](int j, int e) { floats[e] = values[j] == values[j] ? values[j] : -INFINITY; });
    __syncwarp();
    keep_best_groups(c.n_experts, rule, lane, floats, floats + c.n_experts);
    each_expert([&](int j, int e) { values[j] = floats[e]; });
  }

  unsigned keys[kSegments] = {}, taken = 0;  // 0: taken or no expert; taken: a bit for each of the lane's
  each_expert([&](int j, int) { keys[j] = in_order(values[j]); });
#pragma unroll 1
  for (int i = 0; i < c.n_used; ++i) {
    unsigned tops[kSegments];
#pragma unroll
    for (int j = 0; j < kSegments; ++j) tops[j] = keys[j];
#pragma unroll
    for (int half = kSegments / 2; half > 0; half /= 2)
#pragma unroll
      for (int j = 0; j < half; ++j) tops[j] = max(tops[j], tops[j + half]);
    const unsigned best = __reduce_max_sync(gpu::kAllLanes, tops[0]);
    const unsigned lanes = __ballot_sync(gpu::kAllLanes, tops[0] == best);
    int at = 0;  // of the lane's equal ones the first
#pragma unroll
    for (int j = kSegments - 1; j >= 0; --j)
      if (keys[j] == best) at = j;
    int winner = __ffs(int(lanes)) - 1;
    if ((lanes & (lanes - 1)) != 0) {  // of several lanes' equal ones the first expert
      const unsigned number = tops[0] == best ? unsigned(32 * at + lane) : ~0u;
      winner = int(~__reduce_max_sync(gpu::kAllLanes, ~number) % 32);
    }
    if (lane != winner) at = kSegments;
#pragma unroll
    for (int j = 0; j < kSegments; ++j)
      if (j == at) keys[j] = 0, taken |= 1u << j;
  }
  int n_before = 0;
#pragma unroll
  for (int j = 0; j < kSegments; ++j) {
    const unsigned lanes = __ballot_sync(gpu::kAllLanes, taken >> j & 1u);
    if (taken >> j & 1u) experts[n_before + __popc(lanes & ((1u << lane) - 1))] = 32 * j + lane;
    n_before += __popc(lanes);
  }
  if (c.shared && lane == 0) experts[c.n_used] = c.n_experts;
  __syncwarp();
  return scale;
}

/// Weights [n_chosen] of the chosen experts, by the warp that chose them.
__device__ inline void weigh_by_warp(const ExpertChoice& c, const ExpertRouter& r, const float* scores,
                                     const ChoiceScale& scale, const int32_t* experts, float* weights) {
  const int lane = int(threadIdx.x) % 32;
  const bool is_picked = lane < c.n_used;
  const float weight = is_picked ? weight_of(r.rule, __ldcg(scores + experts[lane]), scale.top) : 0;
  double total = r.rule.sigmoid ? 1.0 : scale.all;
  if (r.rule.renormalised) total = gpu::warp_sum(double(weight));
  if (!(total > 0)) total = 1;  // sigmoids of very low scores: all weights are 0
  if (is_picked) weights[lane] = float(weight / total * r.rule.scale);
  if (c.shared && lane == 0) weights[c.n_used] = r.gates_shared ? 1 / (1 + expf(-__ldcg(scores + c.n_experts))) : 1;
}

}  // namespace ridge
