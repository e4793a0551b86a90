#include "gpu/launch.h"
#include "op/experts/experts_cuda.h"
#include "op/gemm/gemm_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPackThreads = 1024;

/// A warp a score: few tokens.
__global__ void router_kernel(int n_experts, int64_t n_in, const float* x, const float* w, const float* bias,
                              float* scores) {
  const int lane = int(threadIdx.x) % 32, expert = int(blockIdx.x) * kWarps + int(threadIdx.x) / 32;
  const int64_t token = blockIdx.y;
  if (expert >= n_experts) return;
  float sum = 0;
  for (int64_t i = lane; i < n_in; i += 32) sum = fmaf(w[expert * n_in + i], x[token * n_in + i], sum);
  sum = gpu::warp_sum(sum);
  if (lane == 0) scores[token * n_experts + expert] = bias ? sum + bias[expert] : sum;
}

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

/// A warp a token; lane i keeps the i-th best expert. `single`: every slot becomes a pack.
__global__ void choose_kernel(const ExpertChoice c, const ExpertRule rule, const float* bias, bool single) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t token = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= c.n_tokens) return;
  const float* const scores = c.scores + token * c.n_experts;
  float* const values = gpu::dynamic_shared<float>() + int(threadIdx.x) / 32 * (c.n_experts + rule.n_groups);
  float top = -INFINITY;
  for (int e = lane; e < c.n_experts; e += 32) top = fmaxf(top, scores[e]);
  top = gpu::warp_max(top);
  const auto weight_of = [&](int e) { return rule.sigmoid ? 1 / (1 + expf(-scores[e])) : expf(scores[e] - top); };
  double all = 0, chosen = 0;
  for (int e = lane; e < c.n_experts; e += 32) {
    const float weight = weight_of(e);
    all += weight;
    values[e] = bias ? weight + bias[e] : weight;
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
    const float weight = weight_of(at);
    chosen += weight;
    last = best, last_expert = at;
    if (lane == i) own_weight = weight, own = at;
  }
  int rank = 0;
  for (int i = 0; i < c.n_used; ++i) {
    const int other = __shfl_sync(gpu::kAllLanes, own, i);
    rank += other < own || (other == own && i < lane);
  }
  if (lane >= c.n_used) return;
  const int64_t slot = token * c.n_used + rank;
  double total = rule.renormalised ? chosen : rule.sigmoid ? 1.0 : all;
  if (!(total > 0)) total = 1;  // sigmoids of very low scores: all weights are 0
  c.weights[slot] = float(own_weight / total * rule.scale);
  c.experts[slot] = own;
  if (single) c.packs[slot] = {own, 1, {int32_t(slot)}};
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
  for (int expert = warp; expert < c.n_experts; expert += kPackWarps) {
    const int n = each_slot(expert, [](int, int) {});
    if (lane == 0) first_of[expert + 1] = (n + kMost - 1) / kMost;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    first_of[0] = 0;
    for (int expert = 0; expert < c.n_experts; ++expert) first_of[expert + 1] += first_of[expert];
  }
  __syncthreads();
  for (int expert = warp; expert < c.n_experts; expert += kPackWarps) {
    ExpertPack* const packs = c.packs + first_of[expert];
    const int n = each_slot(expert, [&](int slot, int at) { packs[at / kMost].slots[at % kMost] = slot; });
    for (int i = lane; i * kMost < n; i += 32) packs[i].expert = expert, packs[i].n = min(kMost, n - i * kMost);
  }
  for (int64_t i = first_of[c.n_experts] + int(threadIdx.x); i < c.n_packs(); i += kPackThreads) c.packs[i].n = 0;
}

/// A block a token; the shared expert's share in double, as the reference has it.
__global__ void sum_kernel(const ExpertSum s) {
  const int64_t token = blockIdx.x;
  const float* const y = s.y + token * s.n_used * s.n;
  float share = 1;
  if (s.shared && s.gate) {
    double dot = 0;
    for (int64_t i = threadIdx.x; i < s.n; i += kThreads) dot += double(s.h[token * s.n + i]) * s.gate[i];
    share = float(1 / (1 + exp(-gpu::block_sum<kThreads>(dot))));
  }
  for (int64_t i = threadIdx.x; i < s.n; i += kThreads) {
    float sum = 0;
    for (int k = 0; k < s.n_used; ++k) sum = fmaf(s.weights[token * s.n_used + k], y[k * s.n + i], sum);
    if (s.shared) sum = fmaf(share, s.shared[token * s.n + i], sum);
    float* const out = s.out + token * s.n + i;
    *out = s.add ? *out + sum : sum;
  }
}

}  // namespace

void device_router(gpu::StreamHandle stream, const ExpertChoice& choice, int64_t n_in, const float* x, const float* w,
                   const float* bias) {
  constexpr int64_t kMostRows = 24;  // of a warp a score
  if (choice.n_tokens <= kMostRows) {
    const dim3 blocks(unsigned(gpu::ceil_div(choice.n_experts, kWarps)), unsigned(choice.n_tokens));
    gpu::launch("router", router_kernel, {blocks, kThreads, 0, stream}, choice.n_experts, n_in, x, w, bias,
                choice.scores);
    return;
  }
  device_gemm(stream, choice.n_tokens, choice.n_experts, n_in, x, w, choice.scores);
  if (bias) device_add_bias(stream, choice.n_tokens, choice.n_experts, choice.scores, bias);
}

void device_choose_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRule& rule,
                           const float* bias) {
  const bool single = choice.n_tokens == 1;
  const size_t shared = sizeof(float) * size_t(kWarps * (choice.n_experts + rule.n_groups));
  gpu::allow_shared_bytes("choice of experts", choose_kernel, shared);
  gpu::launch("choice of experts", choose_kernel,
              {unsigned(gpu::ceil_div(choice.n_tokens, kWarps)), kThreads, shared, stream}, choice, rule, bias, single);
  if (!single) gpu::launch("packs of experts", pack_kernel, {1, kPackThreads, 0, stream}, choice);
}

void device_sum_experts(gpu::StreamHandle stream, const ExpertSum& sum) {
  gpu::launch("sum of experts", sum_kernel, {unsigned(sum.n_tokens), kThreads, 0, stream}, sum);
}

}  // namespace ridge
