#include <cstdint>
#include <type_traits>

#include "format/weight_types.h"
#include "gpu/launch.h"
#include "op/gemv/rows_cuda.h"
#include "op/sample/rule.h"

namespace ridge {
namespace {

/// Blocks of a format that a warp decodes: 256 values or more.
template <class F>
constexpr int kBlocks = F::kGroup >= 32 ? 8 : 256 / F::kGroup;

/// A warp brings its blocks and takes their values away together, and a lane decodes a block in between: a store of a
/// value would make the next load of the block wait. No format's decode rounds but once, so that fused multiply-add
/// leaves its bits alone.
template <class F>
__global__ void __launch_bounds__(32) embed_kernel(int64_t n_blocks, int64_t blocks_per_row, const int32_t* tokens,
                                                   const typename F::Block* rows, float scale, float* x) {
  using Block = typename F::Block;
  using Unit = std::conditional_t<alignof(Block) % 4 == 0, uint32_t,
                                  std::conditional_t<alignof(Block) % 2 == 0, uint16_t, uint8_t>>;
  constexpr int kUnits = int(sizeof(Block) / sizeof(Unit));
  __shared__ Block blocks[kBlocks<F>];
  __shared__ float values[kBlocks<F> * (F::kGroup + 1)];
  const int lane = int(threadIdx.x);
  const int64_t first = int64_t(blockIdx.x) * kBlocks<F>;
  const int n = int(min(int64_t(kBlocks<F>), n_blocks - first));
  for (int i = lane; i < n * kUnits; i += 32) {
    const int64_t block = first + i / kUnits;
    const Block* const row = rows + int64_t(tokens[block / blocks_per_row] & ~kNotFiniteToken) * blocks_per_row;
    reinterpret_cast<Unit*>(blocks)[i] = reinterpret_cast<const Unit*>(row + block % blocks_per_row)[i % kUnits];
  }
  __syncwarp();
  for (int i = lane; i < n; i += 32) F::decode(blocks[i], values + i * (F::kGroup + 1));
  __syncwarp();
  for (int i = lane; i < n * F::kGroup; i += 32)
    x[first * F::kGroup + i] = values[i / F::kGroup * (F::kGroup + 1) + i % F::kGroup] * scale;
}

template <class F>
void embed(gpu::StreamHandle stream, int64_t n, const int32_t* tokens, const DeviceRows& table, float* x) {
  const int64_t per_row = table.n_cols / F::kGroup, n_blocks = n * per_row;
  gpu::launch("embed", embed_kernel<F>, {unsigned(gpu::ceil_div(n_blocks, kBlocks<F>)), 32, 0, stream}, n_blocks,
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
