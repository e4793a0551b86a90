#include <algorithm>
#include <cmath>
#include <type_traits>

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
constexpr int kMostAtOnce = 64;      ///< tokens of choose_and_pack_kernel()
constexpr int kMostScoreTokens = 8;  ///< of a block of score_kernel()

/// A token's choice by a warp, into memory. `single`: every slot becomes a pack.
template <int kSegments>
__device__ void leave_choice(const ExpertChoice& c, const ExpertRouter& r, int64_t token, bool single, float* floats) {
  const int64_t first = token * c.n_chosen();
  const float* const scores = c.scores + token * c.n_scores();
  const float top = choose_by_warp<kSegments>(c, r, scores, c.experts + first, floats);
  weigh_by_warp(c, r, scores, top, c.experts + first, c.weights + first);
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
/// Tokens whose values it has under way together.
constexpr int kScoreTokens = 4;

/// Norm and scores of few tokens, spread over the whole device: a block has kRows scores of several tokens, each of as
/// many warps, whose threads keep their part of the weights from before the wait on. The norm's factor, of squares in
/// float, meets the sum at its end, so that both are made side by side; h, where it is wanted, has one of squares in
/// double. Blocks: (scores, runs of block_tokens). A score does not depend on block_tokens.
template <int kRows, int kTokens>
__global__ void __launch_bounds__(kRouteThreads, 2)
    score_kernel(const ExpertChoice c, const ExpertRouter r, int block_tokens) {
  constexpr int kWarps = kRouteThreads / 32, kRowThreads = kRouteThreads / kRows, kRowWarps = kWarps / kRows;
  __shared__ float squares_of[kMostScoreTokens][kWarps], sums_of[kMostScoreTokens][kWarps];
  const int thread = int(threadIdx.x), of_block = thread / kRowThreads, at = thread % kRowThreads;
  const int n_in = int(r.n_in), n_rows = c.n_scores() - (c.shared && !r.gates_shared);
  const int row = int(blockIdx.x) * kRows + of_block;
  const bool exists = row < n_rows;
  const float* const w = r.w + int64_t(row) * n_in;
  const int first_token = int(blockIdx.y) * block_tokens, n_tokens = min(block_tokens, int(c.n_tokens) - first_token);
  const float* const x = r.x + int64_t(first_token) * n_in;
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

  for (int token = 0; token < n_tokens; token += kTokens) {
    float sums[kTokens][2] = {}, square[kTokens] = {};
    for (int from = 0; from < n_in; from += kScoreValues * kRowThreads) {
      float values[kTokens][kScoreValues];
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int i = 0; i < kScoreValues; ++i) {
          const int k = from + i * kRowThreads + at;
          values[t][i] = k < n_in && token + t < n_tokens ? x[(token + t) * n_in + k] : 0;
        }
      if (from > 0 || (token > 0 && n_in > kScoreValues * kRowThreads)) load_weights(from);
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int i = 0; i < kScoreValues; ++i) {
          sums[t][i % 2] = fmaf(weights[i], values[t][i], sums[t][i % 2]);
          if (i % kRows == of_block) square[t] = fmaf(values[t][i], values[t][i], square[t]);  // a block has each once
        }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = gpu::warp_sum(sums[t][0] + sums[t][1]);
      if (r.norm_weight) square[t] = gpu::warp_sum(square[t]);
      if (thread % 32 == 0 && token + t < n_tokens)
        sums_of[token + t][thread / 32] = sum, squares_of[token + t][thread / 32] = square[t];
    }
  }
  __syncthreads();
  if (exists && at < n_tokens) {
    float score = 0, squares = 0;
    for (int i = 0; i < kRowWarps; ++i) score += sums_of[at][of_block * kRowWarps + i];
    for (const float part : squares_of[at]) squares += part;
    const float mean = squares / float(n_in) + r.norm_eps;
    if (r.norm_weight) score *= guarded_factor(mean, 1.0f / sqrtf(mean));
    if (r.bias && row < c.n_experts) score += r.bias[row];
    c.scores[(first_token + at) * c.n_scores() + row] = score;
  }
  if (!r.norm_weight || !r.h) return;
  // Blocks of a run share its tokens, and where there are more blocks the columns of a token.
  const int sharers = max(1, int(gridDim.x) / n_tokens);
  for (int token = int(blockIdx.x) / sharers; token < n_tokens; token += int(gridDim.x)) {
    const float* const of_token = x + token * n_in;
    double squares = 0;
    for (int k = thread; k < n_in; k += kRouteThreads) squares += double(of_token[k]) * of_token[k];
    const double factor = 1.0 / sqrt(gpu::block_sum<kRouteThreads>(squares) / double(n_in) + r.norm_eps);
    for (int k = int(blockIdx.x) % sharers * kRouteThreads + thread; k < n_in; k += sharers * kRouteThreads)
      r.h[int64_t(first_token + token) * n_in + k] =
          float(of_token[k] * factor * r.norm_weight[k]);  // device_rms_norm()
  }
}

/// Choice and packs of up to kMostAtOnce tokens and 32 kFewSegments experts by one block: a warp chooses for every 32nd
/// token, and an expert has a bit of each token that takes it.
__global__ void __launch_bounds__(kPackThreads) choose_and_pack_kernel(const ExpertChoice c, const ExpertRouter r) {
  constexpr int kMost = ExpertPack::kMost, kMostScores = 32 * kFewSegments + 1;
  constexpr int kWarps = kPackThreads / 32, kWords = kMostAtOnce / kWarps;
  __shared__ uint32_t tokens_of[kWords][kMostScores];  // bit of a word: of the warp that chose
  __shared__ int first_of[kMostScores + 1];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, n_scores = c.n_scores();
  for (int e = int(threadIdx.x); e < kWords * kMostScores; e += kPackThreads) tokens_of[0][e] = 0;
  __syncthreads();
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  int experts[kWords];
  const auto each_token = [&](const auto& visit) {  // (word, token)
#pragma unroll 1
    for (int word = 0, token = warp; token < c.n_tokens; ++word, token += kWarps) visit(word, token);
  };
  const auto each_slot = [&](const auto& visit) {  // of the lane: (word, slot)
#pragma unroll
    for (int word = 0; word < kWords; ++word)
      if (const int token = word * kWarps + warp; token < c.n_tokens && lane < c.n_chosen())
        visit(word, token * c.n_chosen() + lane);
  };
  each_token([&](int, int token) {
    leave_choice<kFewSegments>(c, r, token, false, gpu::dynamic_shared<float>() + warp * warp_choice_floats(c, r.rule));
  });
  each_slot([&](int word, int slot) {
    experts[word] = c.experts[slot];
    atomicOr(&tokens_of[word][experts[word]], 1u << warp);
  });
  __syncthreads();
  const auto n_before = [&](int expert, int n_words) {  // tokens of the first words
    int n = 0;
#pragma unroll
    for (int word = 0; word < kWords; ++word) n += word < n_words ? __popc(tokens_of[word][expert]) : 0;
    return n;
  };
  if (warp == 0) {
    int first = 0;
    for (int from = 0; from < n_scores; from += 32) {
      const int n = from + lane < n_scores ? (n_before(from + lane, kWords) + kMost - 1) / kMost : 0;
      int sum = n;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(gpu::kAllLanes, sum, by);
        if (lane >= by) sum += other;
      }
      if (from + lane < n_scores) first_of[from + lane] = first + sum - n;
      first += __shfl_sync(gpu::kAllLanes, sum, 31);
    }
    if (lane == 0) first_of[n_scores] = first;
  }
  __syncthreads();
  each_slot([&](int word, int slot) {
    const int expert = experts[word];
    const int rank = n_before(expert, word) + __popc(tokens_of[word][expert] & ((1u << warp) - 1));
    ExpertPack& pack = c.packs[first_of[expert] + rank / kMost];
    pack.slots[rank % kMost] = slot;
    if (rank % kMost == 0) pack.expert = expert, pack.n = min(kMost, n_before(expert, kWords) - rank);
  });
  for (int i = first_of[n_scores] + int(threadIdx.x); i < c.n_packs(); i += kPackThreads) c.packs[i].n = 0;
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

/// Blocks: (runs of columns, tokens). The shared expert's share is in double, as the reference has it.
__global__ void __launch_bounds__(kThreads) sum_kernel(const ExpertSum s) {
  const int64_t token = blockIdx.y;
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  float share = 1;
  if (s.shared && s.gate) {
    double dot = 0;
#pragma unroll 4
    for (int64_t k = threadIdx.x; k < s.n; k += kThreads) dot += double(s.h[token * s.n + k]) * s.gate[k];
    share = float(1 / (1 + exp(-gpu::block_sum<kThreads>(dot))));
  }
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < s.n; i += int64_t(gridDim.x) * kThreads) {
    constexpr int kAtOnce = 8;
    float sum = 0;
    for (int first = 0; first < s.n_used; first += kAtOnce) {
      float values[kAtOnce], weights[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t slot = token * s.n_used + first + k;
        const bool adds = first + k < s.n_used && (!s.experts || s.experts[slot] >= 0);
        values[k] = adds ? s.y[slot * s.n + i] : 0;
        weights[k] = !adds ? 0 : s.weights ? s.weights[slot] : 1;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) sum = fmaf(weights[k], values[k], sum);
    }
    if (s.rest) sum += s.rest[token * s.n + i];
    if (s.shared) sum = fmaf(share, s.shared[token * s.n + i], sum);
    float* const out = s.out + token * s.n + i;
    *out = s.add ? *out + sum : sum;
  }
}

void pack(gpu::StreamHandle stream, const ExpertChoice& choice, bool overlap) {
  if (choice.n_tokens > 1 && choice.packs)
    gpu::launch("packs of experts", pack_kernel, {1, kPackThreads, 0, stream, overlap}, choice);
}

void launch_scores(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  const int block_tokens = int(std::min<int64_t>(choice.n_tokens, kMostScoreTokens));
  const auto blocks_of = [&](int rows) {
    return dim3(unsigned(gpu::ceil_div(choice.n_scores(), rows)),
                unsigned(gpu::ceil_div(choice.n_tokens, block_tokens)));
  };
  int rows = std::max(1, router.rows);
  // Two blocks run on a multiprocessor at a time. One token's have one batch of loads each, which takes less time in
  // two rounds than more batches in one.
  const int most = (choice.n_tokens == 1 ? 4 : 2) * gpu::multiprocessors();
  const bool several = choice.n_tokens > 1;  // whose blocks would read their weights again for every few tokens
  const auto in_a_batch = [&](int n) { return router.n_in * n <= kScoreValues * kRouteThreads; };
  if (router.rows == 0)
    while (rows < kRouteThreads / 32 && int(blocks_of(rows).x * blocks_of(rows).y) > most &&
           (!several || in_a_batch(2 * rows)))
      rows *= 2;
  const auto launch = [&](auto kernel) {
    gpu::launch("router", kernel, {blocks_of(rows), kRouteThreads, 0, stream, router.overlap}, choice, router,
                block_tokens);
  };
  const auto of_rows = [&](auto tokens) {
    constexpr int kTokens = decltype(tokens)::value;
    if (rows == 1) launch(score_kernel<1, kTokens>);
    else if (rows == 2) launch(score_kernel<2, kTokens>);
    else if (rows == 4) launch(score_kernel<4, kTokens>);
    else launch(score_kernel<8, kTokens>);
  };
  if (choice.n_tokens == 1) of_rows(std::integral_constant<int, 1>());
  else of_rows(std::integral_constant<int, kScoreTokens>());
}

}  // namespace

void device_route(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  // A GEMM has scores without gaps between tokens.
  const bool gaps = choice.shared && (router.bias || !router.gates_shared);
  if (choice.n_tokens <= kFewRoutedTokens || gaps) {
    launch_scores(stream, choice, router);
    if (!router.scores_only) device_choose_experts(stream, choice, router);
    return;
  }
  const float* h = router.x;
  if (router.norm_weight) {
    device_rms_norm(stream, choice.n_tokens, router.n_in, h, router.norm_weight, router.norm_eps, router.h);
    h = router.h;
  }
  device_gemm(stream, choice.n_tokens, choice.n_scores(), router.n_in, h, router.w, choice.scores);
  if (router.bias) device_add_bias(stream, choice.n_tokens, choice.n_experts, choice.scores, router.bias);
  device_choose_experts(stream, choice, router);
}

void device_choose_experts(gpu::StreamHandle stream, const ExpertChoice& choice, const ExpertRouter& router) {
  const size_t shared = sizeof(float) * size_t(warp_choice_floats(choice, router.rule));
  if (choice.n_tokens > 1 && choice.n_tokens <= kMostAtOnce && choice.packs && choice.n_experts <= 32 * kFewSegments &&
      choice.n_chosen() <= 32)
    return gpu::launch("choice of experts", choose_and_pack_kernel,
                       {1, kPackThreads, kPackThreads / 32 * shared, stream, router.overlap}, choice, router);
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
  // Every block of a token computes the shared expert's share: no more of them than fill the device.
  const int64_t runs =
      std::min(gpu::ceil_div(sum.n, kThreads), gpu::ceil_div(8 * gpu::multiprocessors(), sum.n_tokens));
  const dim3 blocks(unsigned(runs), unsigned(sum.n_tokens));
  gpu::launch("sum of experts", sum_kernel, {blocks, kThreads, 0, stream, sum.overlap}, sum);
}

}  // namespace ridge
