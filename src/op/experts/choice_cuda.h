// Device code: the choice of a token's experts from its scores, by a block or by a warp. All that choose from the same
// scores choose the same experts, so a kernel of experts can choose for itself in place of reading a choice. For *.cu
// files only.
#pragma once

#include <cmath>

#include "gpu/launch.h"
#include "op/experts/experts_cuda.h"

namespace ridge {

/// Where a choice works and what it leaves, for all threads of the block: the experts in order of their number.
struct ChoiceRoom {
  double sums[kMostExperts / 32];
  float tops[32];
  int32_t experts[kMostUsedExperts + 1];
  float weights[kMostUsedExperts + 1];
  int picked[kMostUsedExperts];  ///< the best one first
  float picked_weights[kMostUsedExperts];
};

/// Experts are taken 32 at a time, a segment, by a warp. Of each the best ones alone are compared with others.
struct ChoiceSizes {
  int n_segments, kept, n_fours;  ///< kept: of a segment; n_fours: of what is kept of all of them, in fours

  __host__ __device__ ChoiceSizes(const ExpertChoice& c)
      : n_segments((c.n_experts + 31) / 32),
        kept(c.n_used < 32 ? c.n_used : 32),
        n_fours((n_segments * kept + 3) / 4) {}
};

/// What a choice needs of shared memory beside ChoiceRoom, in floats: values and weights of all experts, values and
/// numbers of those that are kept, and room for groups, each in whole fours, as loads of four may read them.
__host__ __device__ inline int choice_floats(const ExpertChoice& c, const ExpertRule& rule) {
  const ChoiceSizes sizes(c);
  return 64 * sizes.n_segments + 8 * sizes.n_fours + (rule.n_groups + 3) / 4 * 4;
}

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

/// How many of every `stride`-th four of values [4 n_fours] from four `first` on, aligned to 16 bytes, are better than
/// number `own`: larger, or equal and in front.
__device__ inline int count_better(const float* values, int n_fours, int own, int first = 0, int stride = 1) {
  const float mine = values[own];
  int better = 0;
#pragma unroll 4
  for (int four = first; four < n_fours; four += stride) {
    const float4 of = reinterpret_cast<const float4*>(values)[four];
    const auto count = [&](float other, int i) { better += other > mine || (other == mine && 4 * four + i < own); };
    count(of.x, 0), count(of.y, 1), count(of.z, 2), count(of.w, 3);
  }
  return better;
}

/// The largest of a warp's values that are numbers, -infinity where there is none.
__device__ inline float largest_number(float value) {
  const unsigned bits = __float_as_uint(value == value ? value : -INFINITY);
  const unsigned top = __reduce_max_sync(gpu::kAllLanes, bits >> 31 ? ~bits : bits | 0x80000000u);
  return __uint_as_float(top >> 31 ? top & 0x7FFFFFFFu : ~top);
}

/// Chooses from scores [n_scores], as choose_experts (route.h) defines it, by a block of whole warps. floats:
/// choice_floats() of them in shared memory, aligned to 16 bytes. Ends with a barrier. Without `weighs` the experts
/// have no weights.
__device__ inline void choose(const ExpertChoice& c, const ExpertRouter& r, const float* scores, ChoiceRoom& room,
                              float* floats, bool weighs = true) {
  const ExpertRule& rule = r.rule;
  const ChoiceSizes sizes(c);
  const int thread = int(threadIdx.x), n_threads = int(blockDim.x), warp = thread / 32, lane = thread % 32;
  float *const values = floats, *const weights = values + 32 * sizes.n_segments,
               *const best = weights + 32 * sizes.n_segments;
  int* const best_experts = reinterpret_cast<int*>(best + 4 * sizes.n_fours);
  const auto each_segment = [&](const auto& visit) {
    for (int segment = warp; segment < sizes.n_segments; segment += n_threads / 32) visit(segment, 32 * segment + lane);
  };

  const float first = thread < c.n_experts ? __ldcg(scores + thread) : 0;  // of the first segment, asked for once
  const float gate = c.shared && r.gates_shared ? __ldcg(scores + c.n_experts) : 0;
  const auto score_of = [&](int e) { return e == thread ? first : __ldcg(scores + e); };
  float top = 0;
  if (!rule.sigmoid) {
    top = -INFINITY;
    for (int e = thread; e < c.n_experts; e += n_threads) top = fmaxf(top, score_of(e));
    top = largest_number(top);
    if (lane == 0) room.tops[warp] = top;
    __syncthreads();
    for (int w = 0; w < n_threads / 32; ++w) top = fmaxf(top, room.tops[w]);
  }
  const bool sums_all = !rule.sigmoid && ((weighs && !rule.renormalised) || r.choice_bias);
  each_segment([&](int segment, int e) {
    float weight = 0, value = -INFINITY;  // of those that only fill up
    if (e < c.n_experts) {
      const float score = score_of(e), power = expf(rule.sigmoid ? -score : score - top);
      weight = rule.sigmoid ? 1 / (1 + power) : power;
      value = r.choice_bias && rule.sigmoid ? weight + r.choice_bias[e] : weight;
    }
    weights[e] = weight;
    values[e] = value == value ? value : -INFINITY;  // scores that are no numbers come last
    if (!sums_all) return;
    const double sum = gpu::warp_sum(double(weight));
    if (lane == 0) room.sums[segment] = sum;
  });
  double all = 0;
  if (sums_all) {
    __syncthreads();
    for (int segment = 0; segment < sizes.n_segments; ++segment) all += room.sums[segment];
    if (r.choice_bias)  // beside probabilities
      each_segment([&](int, int e) {
        if (e < c.n_experts) values[e] += r.choice_bias[e] * float(all);
      });
  }
  if (rule.n_groups > 1) {
    __syncthreads();
    if (warp == 0) keep_best_groups(c.n_experts, rule, lane, values, best + 8 * sizes.n_fours);
    __syncthreads();
  }
  __syncwarp();
  // Those that only fill up are last among equal ones, and so are their segments.
  each_segment([&](int segment, int e) {
    const int better = count_better(values + 32 * segment, 8, lane);
    if (better >= sizes.kept) return;
    best[segment * sizes.kept + better] = values[e];
    best_experts[segment * sizes.kept + better] = e;
  });
  const int n_best = sizes.n_segments * sizes.kept;
  if (thread < 4 * sizes.n_fours - n_best) best[n_best + thread] = -INFINITY;
  __syncthreads();
  constexpr int kParts = 4;  // lanes that count for one of them
  for (int from = 0; from < n_best; from += n_threads / kParts) {
    const int i = from + thread / kParts;
    int better = i < n_best ? count_better(best, sizes.n_fours, i, thread % kParts, kParts) : c.n_used;
    for (int step = 1; step < kParts; step *= 2) better += __shfl_xor_sync(gpu::kAllLanes, better, step);
    if (better >= c.n_used || thread % kParts != 0) continue;
    room.picked[better] = best_experts[i];
    room.picked_weights[better] = weights[best_experts[i]];
  }
  __syncthreads();
  for (int i = thread; i < c.n_chosen(); i += n_threads) {
    const bool is_picked = i < c.n_used;
    const int own = is_picked ? room.picked[i] : c.n_experts;
    int rank = is_picked ? 0 : c.n_used;
    for (int j = 0; is_picked && j < c.n_used; ++j) rank += room.picked[j] < own;
    room.experts[rank] = own;
    if (!weighs) continue;
    float weight = 1;
    if (is_picked) {
      double chosen = 0;
      for (int j = 0; j < c.n_used; ++j) chosen += room.picked_weights[j];
      double total = rule.renormalised ? chosen : rule.sigmoid ? 1.0 : all;
      if (!(total > 0)) total = 1;  // sigmoids of very low scores: all weights are 0
      weight = float(room.picked_weights[i] / total * rule.scale);
    } else if (r.gates_shared) {
      weight = 1 / (1 + expf(-gate));
    }
    room.weights[rank] = weight;
  }
  __syncthreads();
}

// The same by one warp, with the values of all experts in its registers and little code: a launch finds none of it near.

/// Floats in their order as unsigned numbers, which are above 0. What is no number is -infinity.
__device__ inline unsigned in_order(float value) {
  const unsigned bits = __float_as_uint(value == value ? value : -INFINITY);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ inline float weight_of(const ExpertRule& rule, float score, float top) {
  const float power = expf(rule.sigmoid ? -score : score - top);
  return rule.sigmoid ? 1 / (1 + power) : power;
}

/// What the weights of chosen experts are made with: the largest score, and the sum of all weights where it is needed.
struct ChoiceScale {
  float top = 0;
  double all = 0;
};

inline constexpr int kFewSegments = 8, kMostSegments = kMostExperts / 32;

/// What choose_by_warp() needs of shared memory, in floats.
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
    const unsigned top = __reduce_max_sync(gpu::kAllLanes, tops[0]);
    const unsigned lanes = __ballot_sync(gpu::kAllLanes, tops[0] == top);
    int at = 0;  // of the lane's equal ones the first
#pragma unroll
    for (int j = kSegments - 1; j >= 0; --j)
      if (keys[j] == top) at = j;
    int winner = __ffs(int(lanes)) - 1;
    if ((lanes & (lanes - 1)) != 0) {  // of several lanes' equal ones the first expert
      const unsigned number = tops[0] == top ? unsigned(32 * at + lane) : ~0u;
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
