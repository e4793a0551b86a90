#include "format/weight_types.h"
#include "gpu/launch.h"
#include "op/gemv/rows_cuda.h"
#include "op/sample/rule.h"

namespace ridge {
namespace {

constexpr int kThreads = 128;

/// A thread decodes a block. No format's decode rounds but once, so that fused multiply-add leaves its bits alone.
template <class F>
__global__ void embed_kernel(int64_t n_blocks, int64_t blocks_per_row, const int32_t* tokens,
                             const typename F::Block* rows, float scale, float* x) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n_blocks) return;
  float* const out = x + i * F::kGroup;
  F::decode(rows[int64_t(tokens[i / blocks_per_row] & ~kNotFiniteToken) * blocks_per_row + i % blocks_per_row], out);
  if (scale == 1) return;
  for (int k = 0; k < F::kGroup; ++k) out[k] *= scale;
}

template <class F>
void embed(gpu::StreamHandle stream, int64_t n, const int32_t* tokens, const DeviceRows& table, float* x) {
  const int64_t per_row = table.n_cols / F::kGroup, n_blocks = n * per_row;
  gpu::launch("embed", embed_kernel<F>, {unsigned(gpu::ceil_div(n_blocks, kThreads)), kThreads, 0, stream}, n_blocks,
              per_row, tokens, table.blocks.as<typename F::Block>(), table.scale, x);
}

template <class... Formats>
void embed_from(WeightTypes<Formats...>, gpu::StreamHandle stream, int64_t n, const int32_t* tokens,
                const DeviceRows& table, float* x) {
  static constexpr decltype(&embed<F32>) kEmbed[] = {embed<Formats>...};
  kEmbed[table.format](stream, n, tokens, table, x);
}

}  // namespace

void device_embed(gpu::StreamHandle stream, int64_t n, const int32_t* tokens, const DeviceRows& table, float* x) {
  if (n > 0) embed_from(WeightFormatTypes(), stream, n, tokens, table, x);
}

}  // namespace ridge
