// Products with experts whose format has no bricks: a warp a row, its blocks decoded as the file has them.
#include "format/weight_types.h"
#include "gpu/launch.h"
#include "op/experts/experts_cuda.h"

namespace ridge {
namespace {

constexpr int kWarps = 8;

template <class F>
__global__ void rows_kernel(const ExpertRows w, const ExpertPack* packs, const float* x, int share, float* y) {
  const ExpertPack pack = packs[blockIdx.y];
  const int lane = int(threadIdx.x) % 32;
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (pack.n == 0 || row >= w.n_out) return;
  const int64_t per_row = w.n_in / F::kGroup;
  const auto* const blocks = static_cast<const typename F::Block*>(w.blocks) + (pack.expert * w.n_out + row) * per_row;
  float sums[ExpertPack::kMost] = {};
  for (int64_t b = lane; b < per_row; b += 32) {
    float values[F::kGroup];
    F::decode(blocks[b], values);
#pragma unroll
    for (int t = 0; t < ExpertPack::kMost; ++t) {
      if (t >= pack.n) break;
      const float* const from = x + pack.slots[t] / share * w.n_in + b * F::kGroup;
      for (int i = 0; i < F::kGroup; ++i) sums[t] = fmaf(values[i], from[i], sums[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < ExpertPack::kMost; ++t) {
    if (t >= pack.n) break;
    const float sum = gpu::warp_sum(sums[t]);
    if (lane == 0) y[pack.slots[t] * w.n_out + row] = w.bias ? sum + w.bias[pack.expert * w.n_out + row] : sum;
  }
}

template <class F>
void run(gpu::StreamHandle stream, const ExpertRows& w, const ExpertCall& call, float* y) {
  constexpr int64_t kMostPacks = 32768;  // of gridDim.y
  for (int64_t first = 0; first < call.n_packs; first += kMostPacks) {
    const dim3 blocks(unsigned(gpu::ceil_div(w.n_out, kWarps)),
                      unsigned(call.n_packs - first < kMostPacks ? call.n_packs - first : kMostPacks));
    gpu::launch("rows of experts", rows_kernel<F>, {blocks, 32 * kWarps, 0, stream}, w, call.packs + first, call.x,
                call.share, y);
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
