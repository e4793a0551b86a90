#include <algorithm>
#include <cmath>

#include "gpu/launch.h"
#include "gpu/tensor.h"
#include "op/experts/experts_cuda.h"
#include "op/gemm/gemm_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 256;
constexpr int kRouteThreads = 256;
constexpr int kPackThreads = 1024;

/// Values of all experts but those of the best groups become -infinity, as the host's keep_best_groups() has it. A
/// warp; sums [n_groups] is scratch memory for how good the groups are.
__device__ void keep_best_groups(int n_experts, const ExpertRule& rule, int lane, float* values, float* sums) {
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

/// What a choice needs of shared memory, in floats: values, weights and room for groups, each in whole fours, as loads
/// of four may read them.
__host__ __device__ int choice_floats(const ExpertChoice& c, const ExpertRule& rule) {
  return 8 * ((c.n_experts + 3) / 4) + (rule.n_groups + 3) / 4 * 4;
}

/// The largest of a block's values, in every thread.
__device__ float block_max(float value) {
  __shared__ float parts[kRouteThreads / 32];
  value = gpu::warp_max(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  for (const float part : parts) value = fmaxf(value, part);
  return value;
}

/// The choice of a token, by a block: an expert is taken when fewer than n_used are better. `single`: every slot
/// becomes a pack. shared_floats: choice_floats() of them, aligned to 16 bytes.
__device__ void choose(const ExpertChoice& c, const ExpertRouter& r, int64_t token, bool single, float* shared_floats) {
  __shared__ float weights_of[kMostUsedExperts];
  __shared__ int picked[kMostUsedExperts];
  const ExpertRule& rule = r.rule;
  const int thread = int(threadIdx.x), n_fours = (c.n_experts + 3) / 4;
  float *const values = shared_floats, *const weights = shared_floats + 4 * n_fours;
  const float* const scores = c.scores + token * c.n_scores();
  float top = 0;
  if (!rule.sigmoid) {
    top = -INFINITY;
    for (int e = thread; e < c.n_experts; e += kRouteThreads) top = fmaxf(top, __ldcg(scores + e));
    top = block_max(top);
  }
  double all = 0;
#pragma unroll 1
  for (int e = thread; e < 4 * n_fours; e += kRouteThreads) {
    float weight = 0, value = -INFINITY;  // of those that only fill up
    if (e < c.n_experts) {
      const float score = __ldcg(scores + e), power = expf(rule.sigmoid ? -score : score - top);
      weight = rule.sigmoid ? 1 / (1 + power) : power;
      value = r.choice_bias && rule.sigmoid ? weight + r.choice_bias[e] : weight;
    }
    all += weight;
    weights[e] = weight;
    values[e] = value == value ? value : -INFINITY;  // scores that are no numbers come last
  }
  if (!rule.sigmoid && (!rule.renormalised || r.choice_bias)) all = gpu::block_sum<kRouteThreads>(all);
  if (!rule.sigmoid && r.choice_bias)  // beside probabilities
    for (int e = thread; e < c.n_experts; e += kRouteThreads) values[e] += r.choice_bias[e] * float(all);
  __syncthreads();
  if (rule.n_groups > 1) {
    if (thread < 32) keep_best_groups(c.n_experts, rule, thread, values, weights + 4 * n_fours);
    __syncthreads();
  }
#pragma unroll 1
  for (int e = thread; e < c.n_experts; e += kRouteThreads) {
    const float own = values[e];
    int better = 0;
    const auto count = [&](int four, auto counts) {
      const float4 of = reinterpret_cast<const float4*>(values)[four];
      better += counts(of.x, 0) + counts(of.y, 1) + counts(of.z, 2) + counts(of.w, 3);
    };
#pragma unroll 4
    for (int four = 0; four < e / 4; ++four) count(four, [&](float other, int) { return other >= own; });
    count(e / 4, [&](float other, int i) { return other > own || (other == own && e / 4 * 4 + i < e); });
#pragma unroll 4
    for (int four = e / 4 + 1; four < n_fours; ++four) count(four, [&](float other, int) { return other > own; });
    if (better < c.n_used) picked[better] = e, weights_of[better] = weights[e];
  }
  __syncthreads();
  if (thread >= c.n_chosen()) return;
  int own = c.n_experts, rank = thread < c.n_used ? 0 : c.n_used;
  float weight = 1;
  if (thread < c.n_used) {
    own = picked[thread];
    double chosen = 0;
    for (int i = 0; i < c.n_used; ++i) {
      chosen += weights_of[i];
      rank += picked[i] < own;
    }
    double total = rule.renormalised ? chosen : rule.sigmoid ? 1.0 : all;
    if (!(total > 0)) total = 1;  // sigmoids of very low scores: all weights are 0
    weight = float(weights_of[thread] / total * rule.scale);
  } else if (r.gates_shared) {
    weight = 1 / (1 + expf(-__ldcg(scores + c.n_experts)));
  }
  const int64_t slot = token * c.n_chosen() + rank;
  c.weights[slot] = weight;
  c.experts[slot] = own;
  if (single) c.packs[slot] = {own, 1, {int32_t(slot)}};
}

/// A block a token.
__global__ void __launch_bounds__(kRouteThreads)
    choose_kernel(const ExpertChoice c, const ExpertRouter r, bool single) {
  choose(c, r, blockIdx.x, single, gpu::dynamic_shared<float>());
}

/// Norm, scores and choice of few tokens: a warp a score, and the last block of a token chooses. Blocks: (scores,
/// tokens). What is read from memory is asked for in batches: most of the time is latency.
__global__ void __launch_bounds__(kRouteThreads) route_kernel(const ExpertChoice c, const ExpertRouter r, bool single) {
  constexpr int kAtOnce = 8;
  __shared__ bool is_last;
  float* const h = gpu::dynamic_shared<float>();
  const int thread = int(threadIdx.x), lane = thread % 32;
  const int64_t token = blockIdx.y;
  const int row = int(blockIdx.x) * (kRouteThreads / 32) + thread / 32;
  const int n_rows = c.n_scores() - (c.shared && !r.gates_shared);
  const float* const w = r.w + row * r.n_in;
  gpu::let_next_grid_start();
  if (row < n_rows)
    for (int64_t i = 32 * lane; i < r.n_in; i += 32 * 32) gpu::prefetch(w + i);
  float norm[kAtOnce] = {}, values[kAtOnce] = {};
  const auto batch = [&](int64_t from, const float* of, float(&to)[kAtOnce]) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (const int64_t at = from + i * kRouteThreads + thread; at < r.n_in) to[i] = of[at];
  };
  if (r.norm_weight) batch(0, r.norm_weight, norm);
  gpu::wait_for_previous_grid();

  double sum = 0;
  for (int64_t from = 0; from < r.n_in; from += kAtOnce * kRouteThreads) {
    batch(from, r.x + token * r.n_in, values);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (const int64_t at = from + i * kRouteThreads + thread; at < r.n_in) {
        h[at] = values[i];
        sum += double(values[i]) * values[i];
      }
  }
  if (r.norm_weight) {  // as device_rms_norm()
    const double factor = 1.0 / sqrt(gpu::block_sum<kRouteThreads>(sum) / double(r.n_in) + r.norm_eps);
    for (int64_t from = 0; from < r.n_in; from += kAtOnce * kRouteThreads) {
      if (from > 0) batch(from, r.norm_weight, norm);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (const int64_t at = from + i * kRouteThreads + thread; at < r.n_in) {
          h[at] = float(h[at] * factor * norm[i]);
          if (blockIdx.x == 0) r.h[token * r.n_in + at] = h[at];
        }
    }
  }
  __syncthreads();
  if (row < n_rows) {
    float score = 0;
#pragma unroll 32
    for (int64_t i = lane; i < r.n_in; i += 32) score = fmaf(w[i], h[i], score);
    score = gpu::warp_sum(score);
    if (r.bias && row < c.n_experts) score += r.bias[row];
    if (lane == 0) c.scores[token * c.n_scores() + row] = score;
  }
  __syncthreads();
  if (thread == 0) {
    __threadfence();
    is_last = atomicAdd(r.counters + token, 1u) == gridDim.x - 1;
    if (is_last) r.counters[token] = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  choose(c, r, token, single, h);
}

/// Slots in order, expert by expert. One block: a warp counts the slots of an expert, then finds them again.
__global__ void __launch_bounds__(kPackThreads) pack_kernel(const ExpertChoice c) {
  constexpr int kMost = ExpertPack::kMost, kPackWarps = kPackThreads / 32;
  __shared__ int first_of[kMostExperts + 1];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, n_slots = int(c.n_slots());
  /// visit(mine, its place among the expert's slots), of 32 slots at a time; how many there are is returned.
  const auto each_slot = [&](int expert, const auto& visit) {
    int n = 0;
    for (int from = 0; from < n_slots; from += 32) {
      const bool mine = from + lane < n_slots && c.experts[from + lane] == expert;
      const unsigned lanes = __ballot_sync(gpu::kAllLanes, mine);
      if (mine) visit(from + lane, n + __popc(lanes & ((1u << lane) - 1)));
      n += __popc(lanes);
    }
    return n;
  };
  for (int expert = warp; expert < c.n_scores(); expert += kPackWarps) {
    const int n = each_slot(expert, [](int, int) {});
    if (lane == 0) first_of[expert + 1] = (n + kMost - 1) / kMost;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    first_of[0] = 0;
    for (int expert = 0; expert < c.n_scores(); ++expert) first_of[expert + 1] += first_of[expert];
  }
  __syncthreads();
  for (int expert = warp; expert < c.n_scores(); expert += kPackWarps) {
    ExpertPack* const packs = c.packs + first_of[expert];
    const int n = each_slot(expert, [&](int slot, int at) { packs[at / kMost].slots[at % kMost] = slot; });
    for (int i = lane; i * kMost < n; i += 32) packs[i].expert = expert, packs[i].n = min(kMost, n - i * kMost);
  }
  for (int64_t i = first_of[c.n_scores()] + int(threadIdx.x); i < c.n_packs(); i += kPackThreads) c.packs[i].n = 0;
}

/// Blocks: (columns, tokens). The shared expert's share is in double, as the reference has it.
__global__ void __launch_bounds__(kThreads) sum_kernel(const ExpertSum s) {
  const int64_t token = blockIdx.y, i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  float share = 1;
  if (s.shared && s.gate) {
    double dot = 0;
    for (int64_t k = threadIdx.x; k < s.n; k += kThreads) dot += double(s.h[token * s.n + k]) * s.gate[k];
    share = float(1 / (1 + exp(-gpu::block_sum<kThreads>(dot))));
  }
  if (i >= s.n) return;
  float sum = 0;
  for (int k = 0; k < s.n_used; ++k)
    sum = fmaf(s.weights[token * s.n_used + k], s.y[(token * s.n_used + k) * s.n + i], sum);
  if (s.shared) sum = fmaf(share, s.shared[token * s.n + i], sum);
  float* const out = s.out + token * s.n + i;
  *out = s.add ? *out + sum : sum;
}

void pack(gpu::StreamHandle stream, const ExpertChoice& choice) {
  if (choice.n_tokens > 1 && choice.packs)
    gpu::launch("packs of experts", pack_kernel, {1, kPackThreads, 0, stream}, choice);
}

}  // namespace

void device_route(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  const float* h = router.x;
  if (choice.n_tokens <= kFewRoutedTokens) {
    const auto shared = sizeof(float) * size_t(std::max(router.n_in, int64_t(choice_floats(choice, router.rule))));
    gpu::allow_shared_bytes("shared memory of a router", route_kernel, shared);
    const dim3 blocks(unsigned(gpu::ceil_div(choice.n_scores(), kRouteThreads / 32)), unsigned(choice.n_tokens));
    gpu::launch("router", route_kernel, {blocks, kRouteThreads, shared, stream, router.overlap}, choice, router,
                choice.n_tokens == 1);
    return pack(stream, choice);
  }
  if (choice.shared) throw Error(ErrorKind::failure, "a router of many tokens with a shared expert");
  if (router.norm_weight) {
    device_rms_norm(stream, choice.n_tokens, router.n_in, h, router.norm_weight, router.norm_eps, router.h);
    h = router.h;
  }
  device_gemm(stream, choice.n_tokens, choice.n_experts, router.n_in, h, router.w, choice.scores);
  if (router.bias) device_add_bias(stream, choice.n_tokens, choice.n_experts, choice.scores, router.bias);
  device_choose_experts(stream, choice, router);
}

void device_choose_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  const size_t shared = sizeof(float) * size_t(choice_floats(choice, router.rule));
  gpu::launch("choice of experts", choose_kernel, {unsigned(choice.n_tokens), kRouteThreads, shared, stream}, choice,
              router, choice.n_tokens == 1);
  pack(stream, choice);
}

void device_sum_experts(gpu::StreamHandle stream, const ExpertSum& sum) {
  const dim3 blocks(unsigned(gpu::ceil_div(sum.n, kThreads)), unsigned(sum.n_tokens));
  gpu::launch("sum of experts", sum_kernel, {blocks, kThreads, 0, stream, sum.overlap}, sum);
}

}  // namespace ridge
