#include <algorithm>
#include <cmath>

#include "gpu/launch.h"
#include "gpu/tensor.h"
#include "op/experts/choice_cuda.h"
#include "op/gemm/gemm_cuda.h"
#include "op/norm_rope/norm_guard_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 256;
constexpr int kRouteThreads = 256;
constexpr int kPackThreads = 1024;

/// A token's choice by a warp, into memory. `single`: every slot becomes a pack.
template <int kSegments>
__device__ void leave_choice(const ExpertChoice& c, const ExpertRouter& r, int64_t token, bool single, float* floats) {
  const int64_t first = token * c.n_chosen();
  const float* const scores = c.scores + token * c.n_scores();
  const ChoiceScale scale = choose_by_warp<kSegments>(c, r, scores, c.experts + first, floats);
  weigh_by_warp(c, r, scores, scale, c.experts + first, c.weights + first);
  for (int i = int(threadIdx.x); single && i < c.n_chosen(); i += 32)
    c.packs[first + i] = {c.experts[first + i], 1, {int32_t(first) + i}};
}

/// A warp a token.
template <int kSegments>
__global__ void __launch_bounds__(32) choose_kernel(const ExpertChoice c, const ExpertRouter r, bool single) {
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  leave_choice<kSegments>(c, r, blockIdx.x, single, gpu::dynamic_shared<float>());
}

/// Values of x and weights that a thread of score_kernel() has under way together.
constexpr int kScoreValues = 16;
/// Most blocks of score_kernel() for a multiprocessor, which runs two at a time: one batch of loads in each of two rounds
/// takes less time than more batches in one round.
constexpr int kMostScoreBlocks = 4;

/// Norm and scores of few tokens, spread over the whole device: a block has kRows scores, each of as many warps, whose
/// threads keep their part of the weights from before the wait on. The norm's factor, of squares in float, meets the sum
/// at its end, so that both are made side by side; h, where it is wanted, has one of squares in double. Blocks: (scores,
/// tokens).
template <int kRows>
__global__ void __launch_bounds__(kRouteThreads, 2) score_kernel(const ExpertChoice c, const ExpertRouter r) {
  constexpr int kWarps = kRouteThreads / 32, kRowThreads = kRouteThreads / kRows, kRowWarps = kWarps / kRows;
  __shared__ float squares_of[kWarps], sums_of[kWarps];
  const int thread = int(threadIdx.x), of_block = thread / kRowThreads, at = thread % kRowThreads;
  const int n_in = int(r.n_in), n_rows = c.n_scores() - (c.shared && !r.gates_shared);
  const int row = int(blockIdx.x) * kRows + of_block;
  const bool exists = row < n_rows;
  const float* const w = r.w + int64_t(row) * n_in;
  const int64_t token = blockIdx.y;
  const float* const x = r.x + token * n_in;
  gpu::let_next_grid_start();
  float weights[kScoreValues];
  const auto load_weights = [&](int from) {
#pragma unroll
    for (int i = 0; i < kScoreValues; ++i) {
      const int k = from + i * kRowThreads + at;
      weights[i] = exists && k < n_in ? w[k] : 0;
    }
    if (!r.norm_weight) return;
#pragma unroll
    for (int i = 0; i < kScoreValues; ++i)
      if (const int k = from + i * kRowThreads + at; k < n_in) weights[i] *= r.norm_weight[k];
  };
  load_weights(0);
  for (int k = kScoreValues * kRowThreads + 32 * at; exists && k < n_in; k += 32 * kRowThreads) gpu::prefetch(w + k);
  gpu::wait_for_previous_grid();

  float sums[2] = {}, square = 0;
  for (int from = 0; from < n_in; from += kScoreValues * kRowThreads) {
    float values[kScoreValues];
#pragma unroll
    for (int i = 0; i < kScoreValues; ++i) {
      const int k = from + i * kRowThreads + at;
      values[i] = k < n_in ? x[k] : 0;
    }
    if (from > 0) load_weights(from);
#pragma unroll
    for (int i = 0; i < kScoreValues; ++i) {
      sums[i % 2] = fmaf(weights[i], values[i], sums[i % 2]);
      if (i % kRows == of_block) square = fmaf(values[i], values[i], square);  // a block has every value once
    }
  }
  const float sum = gpu::warp_sum(sums[0] + sums[1]);
  if (r.norm_weight) square = gpu::warp_sum(square);
  if (thread % 32 == 0) sums_of[thread / 32] = sum, squares_of[thread / 32] = square;
  __syncthreads();
  if (exists && at == 0) {
    float score = 0, squares = 0;
    for (int i = 0; i < kRowWarps; ++i) score += sums_of[of_block * kRowWarps + i];
    for (const float part : squares_of) squares += part;
    const float mean = squares / float(n_in) + r.norm_eps;
    if (r.norm_weight) score *= guarded_factor(mean, 1.0f / sqrtf(mean));
    if (r.bias && row < c.n_experts) score += r.bias[row];
    c.scores[token * c.n_scores() + row] = score;
  }
  if (!r.norm_weight || !r.h) return;
  double squares = 0;
  for (int k = thread; k < n_in; k += kRouteThreads) squares += double(x[k]) * x[k];
  const double factor = 1.0 / sqrt(gpu::block_sum<kRouteThreads>(squares) / double(n_in) + r.norm_eps);
  for (int k = int(blockIdx.x) * kRouteThreads + thread; k < n_in; k += int(gridDim.x) * kRouteThreads)
    r.h[token * n_in + k] = float(x[k] * factor * r.norm_weight[k]);  // as device_rms_norm()
}

/// Norm, scores and choice of few tokens: a warp a score, and a warp of a token's last block chooses. Blocks: (scores,
/// tokens). What is read from memory is asked for in batches:
/// most of the time is latency.
template <int kSegments>
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
  if (thread < 32) leave_choice<kSegments>(c, r, token, single, h);
}

/// Slots in order, expert by expert. One block: a warp counts the slots of an expert, then finds them again.
__global__ void __launch_bounds__(kPackThreads) pack_kernel(const ExpertChoice c) {
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
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

/// `single`: every slot becomes a pack.
__global__ void place_experts_kernel(const ExpertChoice c, const int32_t* places, const StepRow* rows,
                                     const ExpertChoice kept, bool single) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= c.n_slots()) return;
  const int32_t number = rows[i / c.n_chosen()].slot < 0 ? -1 : c.experts[i];
  const int32_t place = number < 0 ? -1 : places[number];
  c.experts[i] = number;
  kept.experts[i] = place;
  if (single) kept.packs[i] = {max(place, 0), place >= 0, {int32_t(i)}};
}

__global__ void scale_kernel(int64_t n_slots, float* weights, const int32_t* experts, const float* factors) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n_slots) weights[i] *= factors[experts[i]];
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
    if (!s.experts || s.experts[token * s.n_used + k] >= 0)
      sum = fmaf(s.weights ? s.weights[token * s.n_used + k] : 1, s.y[(token * s.n_used + k) * s.n + i], sum);
  if (s.rest) sum += s.rest[token * s.n + i];
  if (s.shared) sum = fmaf(share, s.shared[token * s.n + i], sum);
  float* const out = s.out + token * s.n + i;
  *out = s.add ? *out + sum : sum;
}

void pack(gpu::StreamHandle stream, const ExpertChoice& choice, bool overlap) {
  if (choice.n_tokens > 1 && choice.packs)
    gpu::launch("packs of experts", pack_kernel, {1, kPackThreads, 0, stream, overlap}, choice);
}

/// By blocks of few scores.
void launch_scores(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  const auto blocks_of = [&](int rows) { return gpu::ceil_div(choice.n_scores(), rows); };
  int rows = router.rows;
  if (rows == 0)
    for (rows = 1;
         rows < kRouteThreads / 32 && blocks_of(rows) * choice.n_tokens > kMostScoreBlocks * gpu::multiprocessors();)
      rows *= 2;
  const auto kernel = rows == 1   ? score_kernel<1>
                      : rows == 2 ? score_kernel<2>
                      : rows == 4 ? score_kernel<4>
                                  : score_kernel<8>;
  const dim3 blocks(unsigned(blocks_of(rows)), unsigned(choice.n_tokens));
  gpu::launch("router", kernel, {blocks, kRouteThreads, 0, stream, router.overlap}, choice, router);
}

}  // namespace

void device_route(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  const float* h = router.x;
  if (choice.n_tokens <= kFewRoutedTokens && router.kernel == RouterKernel::spread) {
    launch_scores(stream, choice, router);
    if (!router.scores_only) device_choose_experts(stream, choice, router);
    return;
  }
  if (choice.n_tokens <= kFewRoutedTokens) {
    const auto shared = sizeof(float) * size_t(std::max(router.n_in, int64_t(warp_choice_floats(choice, router.rule))));
    const auto kernel =
        choice.n_experts <= 32 * kFewSegments ? route_kernel<kFewSegments> : route_kernel<kMostSegments>;
    gpu::allow_shared_bytes("shared memory of a router", kernel, shared);
    const dim3 blocks(unsigned(gpu::ceil_div(choice.n_scores(), kRouteThreads / 32)), unsigned(choice.n_tokens));
    gpu::launch("router", kernel, {blocks, kRouteThreads, shared, stream, router.overlap}, choice, router,
                choice.n_tokens == 1);
    return pack(stream, choice, router.overlap);
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
  const size_t shared = sizeof(float) * size_t(warp_choice_floats(choice, router.rule));
  const auto kernel =
      choice.n_experts <= 32 * kFewSegments ? choose_kernel<kFewSegments> : choose_kernel<kMostSegments>;
  gpu::launch("choice of experts", kernel, {unsigned(choice.n_tokens), 32, shared, stream, router.overlap}, choice,
              router, choice.n_tokens == 1);
  pack(stream, choice, router.overlap);
}

void device_place_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const int32_t* places,
                          const StepRow* rows, const ExpertChoice& kept) {
  gpu::launch("places of experts", place_experts_kernel,
              {unsigned(gpu::ceil_div(choice.n_slots(), kThreads)), kThreads, 0, stream}, choice, places, rows, kept,
              choice.n_tokens == 1);
  pack(stream, kept, false);
}

void device_scale_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const float* factors) {
  gpu::launch("expert scales", scale_kernel, {unsigned(gpu::ceil_div(choice.n_slots(), kThreads)), kThreads, 0, stream},
              choice.n_slots(), choice.weights, choice.experts, factors);
}

void device_sum_experts(gpu::StreamHandle stream, const ExpertSum& sum) {
  const dim3 blocks(unsigned(gpu::ceil_div(sum.n, kThreads)), unsigned(sum.n_tokens));
  gpu::launch("sum of experts", sum_kernel, {blocks, kThreads, 0, stream, sum.overlap}, sum);
}

}  // namespace ridge
