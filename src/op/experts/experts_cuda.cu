#include <algorithm>

#include "gpu/launch.h"
#include "gpu/tensor.h"
#include "op/experts/experts_cuda.h"
#include "op/gemm/gemm_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRouteThreads = 128;
constexpr int kPackThreads = 1024;

/// Values of all experts but those of the best groups become -infinity, as the host's keep_best_groups() has it. A warp;
/// sums [n_groups] is room for how good the groups are.
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

/// What a warp needs of shared memory for a choice, in floats.
__host__ __device__ int choice_room(const ExpertChoice& c, const ExpertRule& rule) { return c.n_experts + rule.n_groups; }

/// The choice of a token. A warp: lane i keeps the i-th best expert. `single`: every slot becomes a pack.
__device__ void choose(const ExpertChoice& c, const ExpertRouter& r, int64_t token, bool single, float* values) {
  const ExpertRule& rule = r.rule;
  const int lane = int(threadIdx.x) % 32;
  const float* const scores = c.scores + token * c.n_scores();
  float top = -INFINITY;
  for (int e = lane; e < c.n_experts; e += 32) top = fmaxf(top, __ldcg(scores + e));
  top = gpu::warp_max(top);
  const auto weight_of = [&](int e) {
    const float score = __ldcg(scores + e);
    return rule.sigmoid ? 1 / (1 + expf(-score)) : expf(score - top);
  };
  double all = 0, chosen = 0;
  for (int e = lane; e < c.n_experts; e += 32) {
    const float weight = weight_of(e);
    all += weight;
    values[e] = r.choice_bias ? weight + r.choice_bias[e] : weight;
  }
  all = gpu::warp_sum(all);
  __syncwarp();
  if (rule.n_groups > 1) keep_best_groups(c.n_experts, rule, lane, values, values + c.n_experts);

  float own_weight = 0, last = INFINITY;
  int own = 0, last_expert = -1;
  for (int i = 0; i < c.n_used; ++i) {
    float best = -INFINITY;
    int at = c.n_experts;
    for (int e = lane; e < c.n_experts; e += 32) {
      const float value = values[e];
      const bool follows = value < last || (value == last && e > last_expert);
      if (follows && value > best) best = value, at = e;
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(gpu::kAllLanes, best, step);
      const int other_at = __shfl_xor_sync(gpu::kAllLanes, at, step);
      if (other > best || (other == best && other_at < at)) best = other, at = other_at;
    }
    at = min(at, c.n_experts - 1);  // scores that are no numbers
    last = best, last_expert = at;
    if (lane == i) own = at;
  }
  if (lane < c.n_used) own_weight = weight_of(own);
  for (int i = 0; i < c.n_used; ++i) chosen += __shfl_sync(gpu::kAllLanes, own_weight, i);
  int rank = 0;
  for (int i = 0; i < c.n_used; ++i) {
    const int other = __shfl_sync(gpu::kAllLanes, own, i);
    rank += other < own || (other == own && i < lane);
  }
  if (c.shared && lane == c.n_used) own = c.n_experts, rank = c.n_used;
  if (lane >= c.n_chosen()) return;
  const int64_t slot = token * c.n_chosen() + rank;
  double total = rule.renormalised ? chosen : rule.sigmoid ? 1.0 : all;
  if (!(total > 0)) total = 1;  // sigmoids of very low scores: all weights are 0
  float weight = float(own_weight / total * rule.scale);
  if (own == c.n_experts) weight = r.gates_shared ? 1 / (1 + expf(-__ldcg(scores + own))) : 1;
  c.weights[slot] = weight;
  c.experts[slot] = own;
  if (single) c.packs[slot] = {own, 1, {int32_t(slot)}};
}

/// A warp a token.
__global__ void choose_kernel(const ExpertChoice c, const ExpertRouter r, bool single) {
  const int warp = int(threadIdx.x) / 32;
  const int64_t token = int64_t(blockIdx.x) * kWarps + warp;
  if (token < c.n_tokens)
    choose(c, r, token, single, gpu::dynamic_shared<float>() + warp * choice_room(c, r.rule));
}

/// Norm, scores and choice of few tokens: a warp a score, and the last block of a token chooses. Blocks: (scores, tokens).
__global__ void __launch_bounds__(kRouteThreads) route_kernel(const ExpertChoice c, const ExpertRouter r, bool single) {
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
  if (r.norm_weight)
    for (int64_t i = 32 * thread; i < r.n_in; i += 32 * kRouteThreads) gpu::prefetch(r.norm_weight + i);
  gpu::wait_for_previous_grid();

  const float* const x = r.x + token * r.n_in;
  double sum = 0;
  for (int64_t i = thread; i < r.n_in; i += kRouteThreads) {
    h[i] = x[i];
    sum += double(h[i]) * h[i];
  }
  if (r.norm_weight) {  // as device_rms_norm()
    const double factor = 1.0 / sqrt(gpu::block_sum<kRouteThreads>(sum) / double(r.n_in) + r.norm_eps);
    for (int64_t i = thread; i < r.n_in; i += kRouteThreads) {
      h[i] = float(h[i] * factor * r.norm_weight[i]);
      if (blockIdx.x == 0) r.h[token * r.n_in + i] = h[i];
    }
  }
  __syncthreads();
  if (row < n_rows) {
    float score = 0;
#pragma unroll 16
    for (int64_t i = lane; i < r.n_in; i += 32) score = fmaf(w[i], h[i], score);
    score = gpu::warp_sum(score);
    if (r.bias && row < c.n_experts) score += r.bias[row];
    if (lane == 0) c.scores[token * c.n_scores() + row] = score;
  }
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    is_last = atomicAdd(r.counters + token, 1u) == gridDim.x - 1;
    if (is_last) r.counters[token] = 0;
  }
  __syncthreads();
  if (!is_last || thread >= 32) return;
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
  if (choice.n_tokens > 1) gpu::launch("packs of experts", pack_kernel, {1, kPackThreads, 0, stream}, choice);
}

}  // namespace

void device_route(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  const float* h = router.x;
  if (choice.n_tokens <= kFewRoutedTokens) {
    const auto shared = sizeof(float) * size_t(std::max(router.n_in, int64_t(choice_room(choice, router.rule))));
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
  const size_t shared = sizeof(float) * size_t(kWarps * choice_room(choice, router.rule));
  gpu::allow_shared_bytes("choice of experts", choose_kernel, shared);
  gpu::launch("choice of experts", choose_kernel,
              {unsigned(gpu::ceil_div(choice.n_tokens, kWarps)), kThreads, shared, stream}, choice, router,
              choice.n_tokens == 1);
  pack(stream, choice);
}

void device_sum_experts(gpu::StreamHandle stream, const ExpertSum& sum) {
  const dim3 blocks(unsigned(gpu::ceil_div(sum.n, kThreads)), unsigned(sum.n_tokens));
  gpu::launch("sum of experts", sum_kernel, {blocks, kThreads, 0, stream, sum.overlap}, sum);
}

}  // namespace ridge
