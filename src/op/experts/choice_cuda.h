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

/// Floats in their order as unsigned numbers, which are above 0. What is no number is -infinity, and -0 is 0.
__device__ inline unsigned in_order(float value) {
  const unsigned bits = __float_as_uint(value == value ? value + 0.0f : -INFINITY);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ inline float number_of(unsigned ordered) {
  return __uint_as_float(ordered >> 31 ? ordered & 0x7FFFFFFFu : ~ordered);
}

/// The largest of a warp's values that are numbers, -infinity where there is none.
__device__ inline float largest_number(float value) {
  return number_of(__reduce_max_sync(gpu::kAllLanes, in_order(value)));
}

__device__ inline float weight_of(const ExpertRule& rule, float score, float top) {
  const float power = expf(rule.sigmoid ? -score : score - top);
  return rule.sigmoid ? 1 / (1 + power) : power;
}

inline constexpr int kFewSegments = 8, kMostSegments = kMostExperts / 32;

/// Floats of shared memory that choose_by_warp() takes.
__host__ __device__ inline int warp_choice_floats(const ExpertChoice& c, const ExpertRule& rule) {
  return rule.n_groups > 1 ? (c.n_experts + rule.n_groups + 3) / 4 * 4 : 0;
}

/// The best n_used of a warp's keys, of which a lane has kSegments; a key of 0 is none. Returns a bit for each of the
/// lane's keys that are among them. Of equal keys the first segment's win, and in a segment the first lane's.
template <int kSegments>
__device__ unsigned best_keys(const unsigned (&keys)[kSegments], int n_used, unsigned& best_of_all) {
  unsigned sorted[kSegments];  // falling
#pragma unroll
  for (int j = 0; j < kSegments; ++j) sorted[j] = keys[j];
#pragma unroll
  for (int round = 0; round < kSegments; ++round)
#pragma unroll
    for (int j = round % 2; j + 1 < kSegments; j += 2) {
      const unsigned larger = max(sorted[j], sorted[j + 1]);
      sorted[j + 1] = min(sorted[j], sorted[j + 1]);
      sorted[j] = larger;
    }
  unsigned last = 0;  // the n_used-th best
  int n = 0, n_larger = 0;
#pragma unroll 1
  while (n < n_used) {
    const unsigned best = __reduce_max_sync(gpu::kAllLanes, sorted[0]);
    const bool mine = sorted[0] == best;
    if (n == 0) best_of_all = best;
    if (best != last) n_larger = n;
    last = best;
    n += __popc(__ballot_sync(gpu::kAllLanes, mine));
#pragma unroll
    for (int j = 0; j + 1 < kSegments; ++j) sorted[j] = mine ? sorted[j + 1] : sorted[j];
    sorted[kSegments - 1] = mine ? 0 : sorted[kSegments - 1];
  }
  const unsigned lanes_before = (1u << int(threadIdx.x) % 32) - 1;
  unsigned taken = 0;
  int room = n_used - n_larger;  // for keys that equal the last
#pragma unroll
  for (int j = 0; j < kSegments; ++j) {
    const unsigned equal = __ballot_sync(gpu::kAllLanes, keys[j] == last);
    if (keys[j] > last || (keys[j] == last && __popc(equal & lanes_before) < room)) taken |= 1u << j;
    room -= __popc(equal);
  }
  return taken;
}
/// The same of more keys than there are registers for a sorted copy.
template <>
__device__ inline unsigned best_keys<kMostSegments>(const unsigned (&all)[kMostSegments], int n_used,
                                                    unsigned& best_of_all) {
  const int lane = int(threadIdx.x) % 32;
  unsigned keys[kMostSegments], taken = 0;
#pragma unroll
  for (int j = 0; j < kMostSegments; ++j) keys[j] = all[j];
#pragma unroll 1
  for (int i = 0; i < n_used; ++i) {
    unsigned top = 0;
#pragma unroll
    for (int j = 0; j < kMostSegments; ++j) top = max(top, keys[j]);
    const unsigned best = __reduce_max_sync(gpu::kAllLanes, top);
    if (i == 0) best_of_all = best;
    int at = 0;  // of the lane's equal ones the first
#pragma unroll
    for (int j = kMostSegments - 1; j >= 0; --j)
      if (keys[j] == best) at = j;
    const unsigned number = top == best ? unsigned(32 * at + lane) : ~0u;
    if (int(~__reduce_max_sync(gpu::kAllLanes, ~number) % 32) != lane) at = kMostSegments;
#pragma unroll
    for (int j = 0; j < kMostSegments; ++j)
      if (j == at) keys[j] = 0, taken |= 1u << j;
  }
  return taken;
}

/// Chooses from scores [n_scores], as choose_experts (route.h) defines it: experts [n_chosen] in order of their number,
/// which all lanes see. floats: warp_choice_floats() of them in shared memory. kSegments: the most values of a lane,
/// which has every 32nd expert; kFewSegments or kMostSegments. Returns the largest score, of a softmax.
template <int kSegments>
__device__ float choose_by_warp(const ExpertChoice& c, const ExpertRouter& r, const float* scores, int32_t* experts,
                                float* floats) {
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
  const bool by_score = !rule.sigmoid && !r.choice_bias && rule.n_groups == 1;  // with which a softmax rises
  if (rule.sigmoid) {
    each_value([](float& value) { value = 1 / (1 + expf(-value)); });
  } else if (!by_score) {
    each_value([&](float value) { top = fmaxf(top, value); });
    top = largest_number(top);
    each_value([&](float& value) { value = expf(value - top); });
  }
  if (r.choice_bias) {  // beside probabilities
    double all = 0;
    if (!rule.sigmoid) each_expert([&](int j, int) { all += double(values[j]); });
    const float whole = rule.sigmoid ? 1.0f : float(gpu::warp_sum(all));
    each_expert([&](int j, int e) { values[j] += r.choice_bias[e] * whole; });
  }
  if (rule.n_groups > 1) {
    each_expert([&](int j, int e) { floats[e] = values[j] == values[j] ? values[j] : -INFINITY; });
    __syncwarp();
    keep_best_groups(c.n_experts, rule, lane, floats, floats + c.n_experts);
    each_expert([&](int j, int e) { values[j] = floats[e]; });
  }

  unsigned keys[kSegments] = {}, best = 0;
  each_expert([&](int j, int) { keys[j] = in_order(values[j]); });
  const unsigned taken = best_keys<kSegments>(keys, c.n_used, best);
  if (by_score) top = number_of(best);
  int n_before = 0;
#pragma unroll
  for (int j = 0; j < kSegments; ++j) {
    const unsigned lanes = __ballot_sync(gpu::kAllLanes, taken >> j & 1u);
    if (taken >> j & 1u) experts[n_before + __popc(lanes & ((1u << lane) - 1))] = 32 * j + lane;
    n_before += __popc(lanes);
  }
  if (c.shared && lane == 0) experts[c.n_used] = c.n_experts;
  __syncwarp();
  return top;
}

/// Weights [n_chosen] of the chosen experts, by the warp that chose them; top: what choose_by_warp() returned.
__device__ inline void weigh_by_warp(const ExpertChoice& c, const ExpertRouter& r, const float* scores, float top,
                                     const int32_t* experts, float* weights) {
  const int lane = int(threadIdx.x) % 32;
  const bool is_picked = lane < c.n_used;
  const float weight = is_picked ? weight_of(r.rule, __ldcg(scores + experts[lane]), top) : 0;
  double total = 1.0;
  if (r.rule.renormalised) {
    total = gpu::warp_sum(double(weight));
  } else if (!r.rule.sigmoid) {
    total = 0;
    for (int e = lane; e < c.n_experts; e += 32) total += double(expf(__ldcg(scores + e) - top));
    total = gpu::warp_sum(total);
  }
  if (!(total > 0)) total = 1;  // sigmoids of very low scores: all weights are 0
  if (is_picked) weights[lane] = float(weight / total * r.rule.scale);
  if (c.shared && lane == 0) weights[c.n_used] = r.gates_shared ? 1 / (1 + expf(-__ldcg(scores + c.n_experts))) : 1;
}

}  // namespace ridge
