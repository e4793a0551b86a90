#include <cmath>

#include "gpu/launch.h"
#include "op/score/score_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 256;

struct Facts {
  double log_sum;
  int top;
  bool finite;
};

/// ln sum exp, first index of the largest value, finiteness of one row, the same in every thread of the block.
__device__ Facts row_facts(const float* logits, int n) {
  __shared__ float top_values[kThreads / 32];
  __shared__ int top_places[kThreads / 32];
  float best = -INFINITY;
  int place = n;
  bool finite = true;
  for (int i = int(threadIdx.x); i < n; i += kThreads) {
    finite = finite && isfinite(logits[i]);
    if (logits[i] > best) best = logits[i], place = i;
  }
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(gpu::kAllLanes, best, step);
    const int other_place = __shfl_xor_sync(gpu::kAllLanes, place, step);
    if (other > best || (other == best && other_place < place)) best = other, place = other_place;
  }
  const bool all_finite = __syncthreads_and(finite);  // also: an earlier call is done with the shared arrays
  if (threadIdx.x % 32 == 0) top_values[threadIdx.x / 32] = best, top_places[threadIdx.x / 32] = place;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w)
    if (top_values[w] > best || (top_values[w] == best && top_places[w] < place))
      best = top_values[w], place = top_places[w];
  if (!all_finite) return {0, 0, false};

  double sum = 0;
  for (int i = int(threadIdx.x); i < n; i += kThreads) sum += exp(double(logits[i]) - double(best));
  return {double(best) + log(gpu::block_sum<kThreads>(sum)), place, true};
}

/// One block a row.
__global__ void score_kernel(int n, const float* base_rows, const float* candidate_rows, const int32_t* targets,
                             RowScore* scores) {
  const int64_t row = blockIdx.x;
  const float* candidate = candidate_rows + row * n;
  const int target = targets[row];
  RowScore score = {0, 0, 0, 0, 0, 0};
  const Facts facts = row_facts(candidate, n);
  score.finite = facts.finite ? 1 : 0;
  score.nll = facts.log_sum - double(candidate[target]);
  if (base_rows != nullptr) {
    const float* base = base_rows + row * n;
    const Facts base_facts = row_facts(base, n);
    score.finite |= base_facts.finite ? 2 : 0;
    double divergence = 0;
    for (int i = int(threadIdx.x); i < n; i += kThreads) {
      const double log_p = base[i] - base_facts.log_sum, p = exp(log_p);
      if (p != 0) divergence += p * (log_p - (candidate[i] - facts.log_sum));  // p log p is 0 at 0, not NaN
    }
    score.kld = gpu::block_sum<kThreads>(divergence);
    score.nll_base = base_facts.log_sum - double(base[target]);
    score.delta_p = exp(-score.nll) - exp(-score.nll_base);
    score.same_top = facts.top == base_facts.top;
  }
  if (threadIdx.x == 0) scores[row] = score;
}

}  // namespace

void device_score(gpu::StreamHandle stream, int64_t n_rows, int vocab_size, const float* base, const float* candidate,
                  const int32_t* targets, RowScore* scores) {
  gpu::launch("score", score_kernel, {unsigned(n_rows), kThreads, 0, stream}, vocab_size, base, candidate, targets,
              scores);
}

}  // namespace ridge
