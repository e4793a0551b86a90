// Matmuls with experts whose format has no bricks: a warp a row, its blocks decoded as the file has them.
#include <algorithm>

#include "format/weight_types.h"
#include "gpu/launch.h"
#include "op/experts/experts_cuda.h"

namespace ridge {
namespace {

constexpr int kWarps = 8, kRows = 4;  // of a block, of a warp

/// Values of a block that are multiplied in a row of code, for several slots: of 256 times eight the compiler would
/// make minutes of work, and no faster code.
template <class F>
constexpr int kFewUnrolled = F::kGroup <= 32 ? F::kGroup : 8;

/// sums[t] += the block's values times those of slot t, t < n: x [slots, kGroup, pitch].
template <class F, int kSlots, int kUnrolled>
__device__ __forceinline__ void multiply(const typename F::Block& block, const float* x, int pitch, int n,
                                         float (&sums)[ExpertPack::kMost]) {
  float values[F::kGroup];
  F::decode(block, values);
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    if (t >= n) break;
    const float* const of_x = x + t * F::kGroup * pitch;
#pragma unroll kUnrolled
    for (int i = 0; i < F::kGroup; ++i) sums[t] = fmaf(values[i], of_x[i * pitch], sums[t]);
  }
}

/// The x of a pack's slots lies in shared memory, slot by slot [kGroup][blocks of a row]: a lane multiplies blocks of
/// its own, and neighbours read neighbouring values. `at_once`: slots that there is room for.
template <class F>
__global__ void __launch_bounds__(32 * kWarps)
    rows_kernel(const ExpertRows w, const ExpertPack* packs, const float* x, int share, int at_once, float* y) {
  const ExpertPack& pack = packs[blockIdx.y];
  if (pack.n == 0) return;
  float* const shared = gpu::dynamic_shared<float>();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int per_row = int(w.n_in / F::kGroup), pitch = per_row | 1;
  const auto* const blocks = static_cast<const typename F::Block*>(w.blocks) + pack.expert * w.n_out * per_row;
  const int64_t first_row = int64_t(blockIdx.x) * kWarps * kRows + warp;
  for (int first = 0; first < pack.n; first += at_once) {
    const int n = min(at_once, pack.n - first);
    __syncthreads();  // the slots before have been used
    for (int t = 0; t < n; ++t) {
      const float* const from = x + pack.slots[first + t] / share * w.n_in;
      for (int i = int(threadIdx.x); i < per_row * F::kGroup; i += 32 * kWarps)
        shared[(t * F::kGroup + i % F::kGroup) * pitch + i / F::kGroup] = from[i];
    }
    __syncthreads();
    for (int64_t row = first_row; row < min(w.n_out, first_row + kWarps * kRows); row += kWarps) {
      float sums[ExpertPack::kMost] = {};
      for (int b = lane; b < per_row; b += 32) {
        const auto& block = blocks[row * per_row + b];
        if (n == 1) multiply<F, 1, F::kGroup>(block, shared + b, pitch, n, sums);
        else multiply<F, ExpertPack::kMost, kFewUnrolled<F>>(block, shared + b, pitch, n, sums);
      }
#pragma unroll
      for (int t = 0; t < ExpertPack::kMost; ++t) {
        if (t >= n) break;
        const float sum = gpu::warp_sum(sums[t]);
        if (lane > 0) continue;
        y[pack.slots[first + t] * w.n_out + row] = w.bias ? sum + w.bias[pack.expert * w.n_out + row] : sum;
      }
    }
  }
}

template <class F>
void run(gpu::StreamHandle stream, const ExpertRows& w, const ExpertCall& call, float* y) {
  constexpr int64_t kMostPacks = 32768;  // of gridDim.y
  const int64_t slot_bytes = 4 * F::kGroup * (w.n_in / F::kGroup | 1);
  const int at_once = int(std::clamp<int64_t>(gpu::most_shared_bytes() / slot_bytes, 1, call.most));
  const auto shared_bytes = size_t(at_once * slot_bytes);
  gpu::allow_shared_bytes("shared memory of experts", rows_kernel<F>, shared_bytes);
  for (int64_t first = 0; first < call.n_packs; first += kMostPacks) {
    const dim3 blocks(unsigned(gpu::ceil_div(w.n_out, kWarps * kRows)),
                      unsigned(std::min(kMostPacks, call.n_packs - first)));
    gpu::launch("rows of experts", rows_kernel<F>, {blocks, 32 * kWarps, shared_bytes, stream}, w, call.packs + first,
                call.x, call.share, at_once, y);
  }
}

template <class... Formats>
void run_with(WeightTypes<Formats...>, gpu::StreamHandle stream, const ExpertRows& w, const ExpertCall& call,
              float* y) {
  static constexpr decltype(&run<F32>) kRun[] = {run<Formats>...};
  kRun[w.format](stream, w, call, y);
}

}  // namespace

void device_expert_rows(gpu::StreamHandle stream, const ExpertRows& w, const ExpertCall& call, float* y) {
  run_with(WeightFormatTypes(), stream, w, call, y);
}

}  // namespace ridge
