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
constexpr int kBlocks = F::kGroup >= 256 ? 1 : 256 / F::kGroup;

/// Pieces of a block that lanes decode apart.
template <class F>
constexpr int kParts = 1;
template <class F>
requires requires(const typename F::Block& block, float* out) { F::decode_part(block, 0, out); }
constexpr int kParts<F> = F::kGroup / kDecodePart;

/// Blocks: (tokens, pieces of a row). A warp brings its blocks and takes their values away together, and a lane decodes
/// a part of a block in between: a store of a value would make the next load of the block wait. No format's decode
/// rounds but once, so that fused multiply-add leaves its bits alone.
template <class F>
__global__ void __launch_bounds__(32)
    embed_kernel(int blocks_per_row, const int32_t* tokens, const typename F::Block* rows, float scale, float* x) {
  using Block = typename F::Block;
  using Unit = std::conditional_t<alignof(Block) % 4 == 0, uint32_t,
                                  std::conditional_t<alignof(Block) % 2 == 0, uint16_t, uint8_t>>;
  constexpr int kUnits = int(sizeof(Block) / sizeof(Unit)), kPart = F::kGroup / kParts<F>;
  __shared__ Block blocks[kBlocks<F>];
  __shared__ float values[kBlocks<F> * kParts<F> * (kPart + 1)];  // lanes write to different banks
  const int lane = int(threadIdx.x), first = int(blockIdx.y) * kBlocks<F>;
  const int n = min(kBlocks<F>, blocks_per_row - first);
  const Block* const from = rows + int64_t(tokens[blockIdx.x] & ~kNotFiniteToken) * blocks_per_row + first;
  for (int i = lane; i < n * kUnits; i += 32)
    reinterpret_cast<Unit*>(blocks)[i] = reinterpret_cast<const Unit*>(from)[i];
  __syncwarp();
  for (int i = lane; i < n * kParts<F>; i += 32) {
    float* const out = values + i * (kPart + 1);
    if constexpr (kParts<F> == 1) F::decode(blocks[i], out);
    else F::decode_part(blocks[i / kParts<F>], i % kParts<F>, out);
  }
  __syncwarp();
  float* const to = x + (int64_t(blockIdx.x) * blocks_per_row + first) * F::kGroup;
  for (int i = lane; i < n * F::kGroup; i += 32) to[i] = values[i / kPart * (kPart + 1) + i % kPart] * scale;
}

template <class F>
void embed(gpu::StreamHandle stream, int64_t n, const int32_t* tokens, const DeviceRows& table, float* x) {
  const int64_t per_row = table.n_cols / F::kGroup;
  gpu::launch("embed", embed_kernel<F>,
              {dim3(unsigned(n), unsigned(gpu::ceil_div(per_row, kBlocks<F>))), 32, 0, stream}, int(per_row), tokens,
              table.blocks.as<typename F::Block>(), table.scale, x);
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
