// Tiles in the order of tensor cores that leave their window: a block half a tile, a warp a row.
#include "gpu/tensor.h"
#include "op/cache/append_kernels.h"
#include "op/cache/exact_rows.h"
#include "op/cache/rotor_block.h"
#include "op/cache/write_row.h"

namespace ridge {
namespace {

/// Half h of a tile: positions p with p % 8 / 2 = 2 h or 2 h + 1, which share words of the tile with no others. Row of
/// a position, and back: rows 4..7 of eight are those of p >= 16.
__device__ int row_position(int half, int row) { return row % 8 / 2 * 8 + 4 * half + row / 8 * 2 + row % 2; }
__device__ int position_row(int p) { return p % 4 / 2 * 8 + p / 8 * 2 + p % 2; }

/// The lane's values of an exact row: channels lane + 32 j, which have the same place in groups four apart.
template <int kPer>
__device__ __forceinline__ void read_exact_lane(const KvTiles& t, const StepRow& of, int head, int position, int lane,
                                                float (&x)[kPer]) {
  const ExactTile from = exact_tile(t, of, head, position);
  const TileShape shape(from.kind, 32 * kPer);
  const std::byte* const code = from.tile + code_at(shape, tile_place(t.side, from.position, lane));
  if (from.kind == TileKind::f16) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] = gpu::f16_to_float(tile_rows::load16(code + 128 * 16 * j));
    return;
  }
  const float scale = gpu::f16_to_float(tile_rows::load16(from.tile + shape.scale_at(0, from.position)));
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = float(int8_t(code[128 * 8 * j])) * scale;
}

/// The words of half a tile from the codes of its rows, a thread a word.
template <int kBits, int kPer>
__device__ __forceinline__ void store_words(const uint8_t (&codes)[kRotorRows][32 * kPer + 4], KvSide side, int half,
                                            std::byte* tile) {
  constexpr TileShape kShape(kBits == 3 ? TileKind::rotor3 : TileKind::rotor4, 32 * kPer);
  static_assert(16 * kShape.lane_words <= kRotorThreads);
  const int unit = int(threadIdx.x);
  if (unit >= 16 * kShape.lane_words) return;
  // This half's lanes of the tile: K, r = 4 half .. 4 half + 3; V, columns 2 half and 2 half + 1.
  const int mine = unit / kShape.chunk_words % 16;
  const int w = unit / (16 * kShape.chunk_words) * kShape.chunk_words + unit % kShape.chunk_words;
  const int r = side == KvSide::k ? 4 * half + mine / 4 : mine / 2,
            c = side == KvSide::k ? mine % 4 : 2 * half + mine % 2;
  const uint32_t word = rotor_word<kBits>(w, [&](int group, int i) {
    return side == KvSide::k ? codes[position_row(group % 4 * 8 + r)][group / 4 * 32 + 8 * c + i]
                             : codes[position_row(i / 2 * 8 + 2 * c + i % 2)][8 * group + r];
  });
  *reinterpret_cast<uint32_t*>(tile + kShape.word_at(4 * r + c, w)) = word;
}

/// Codes half a tile of a rotor format from the rows x. Returns the square of what coding took from the lane's values.
template <int kBits, int kPer>
__device__ __forceinline__ float code_rotor(RotorScratch<kPer>& scratch, const KvTiles& side, const float* metric,
                                            int half, const float (&x)[kPer], std::byte* tile, int& saturated) {
  constexpr TileShape kShape(kBits == 3 ? TileKind::rotor3 : TileKind::rotor4, 32 * kPer);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  float level[kPer];
  const RotorWork<kPer> work{scratch.terms[warp], scratch.vectors + 2 * warp, scratch.inverse, metric};
  const uint16_t scale = encode_rotor<kBits>(work, side.scale, x, level, saturated, [&] {
    __syncthreads();
    times_metric<kPer>(scratch.vectors, metric);
  });
  if (lane == 0) tile_rows::store16(tile + kShape.scale_at(0, row_position(half, warp)), scale);
  float error2 = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    scratch.codes[warp][lane + 32 * j] = uint8_t(Rotor<kBits>::code(level[j]));
    const float error = x[j] - level[j] * gpu::f16_to_float(scale);
    error2 += error * error;
  }
  __syncthreads();
  store_words<kBits, kPer>(scratch.codes, side.side, half, tile);
  return error2;
}

/// Brings the metric of a head near, if it shall be there, and inverts its diagonal: there after copy_wait() and a
/// barrier.
template <int kPer>
__device__ __forceinline__ void fetch_metric(RotorScratch<kPer>& scratch, const float* metric, bool near) {
  for (int i = int(threadIdx.x); near && i < RotorScratch<kPer>::kMetricBytes / 16; i += kRotorThreads)
    gpu::copy_async16(scratch.near_metric() + 4 * i, metric + 4 * i);
  gpu::copy_commit();
  if (int(threadIdx.x) < 32 * kPer) scratch.inverse[threadIdx.x] = 1.0f / metric[int(threadIdx.x) * (32 * kPer + 1)];
}

/// Blocks: (half a tile and tile of the span, side and kv head, spans in turn).
template <int kPer>
__global__ void __launch_bounds__(kRotorThreads, kPer <= 4 ? 2 : 1) leaving_kernel(const LeavingTiles a) {
  constexpr int kDim = 32 * kPer;
  auto& scratch = *gpu::dynamic_shared<RotorScratch<kPer>>();
  gpu::wait_for_previous_grid();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, half = int(blockIdx.x) % 2;
  const int head = int(blockIdx.y) % a.n_kv_heads, i_side = int(blockIdx.y) / a.n_kv_heads, n_spans = *a.n_spans;
  const KvTiles& side = a.sides ? a.sides[i_side] : a.pair[i_side];
  if (side.retention.window == 0) return;
  const float* const far_metric = side.metric ? side.metric + int64_t(head) * kDim * kDim : nullptr;
  const bool near = RotorScratch<kPer>::kMetricBytes > 0 && a.near_metric;
  const float* const metric = far_metric && near ? scratch.near_metric() : far_metric;
  bool is_near = false;
  for (int i = int(blockIdx.z); i < n_spans; i += int(gridDim.z)) {
    const StepSpan span = a.spans[i];
    const int t = side.retention.coded_end(span.n_past) / kTilePositions + int(blockIdx.x) / 2;
    if (span.slot < 0 || t >= side.retention.coded_end(span.n) / kTilePositions) continue;
    if (metric && !is_near) fetch_metric<kPer>(scratch, far_metric, near);
    is_near = true;
    const int page = a.pages[int64_t(span.slot) * a.page_pitch + t / kPageTiles], p = row_position(half, warp);
    std::byte* const tile = side.coded_tile(page, head, t);
    float x[kPer], norm2 = 0, error2 = 0;
    read_exact_lane<kPer>(side, {.slot = span.slot, .ring = span.ring}, head, t * kTilePositions + p, lane, x);
#pragma unroll
    for (int j = 0; j < kPer; ++j) norm2 += x[j] * x[j];
    int saturated = 0;
    gpu::copy_wait<0>();
    __syncthreads();  // the scratch memory of the span before is free
    if (side.kind == TileKind::rotor3) {
      error2 = code_rotor<3, kPer>(scratch, side, metric, half, x, tile, saturated);
    } else if (side.kind == TileKind::rotor4) {
      error2 = code_rotor<4, kPer>(scratch, side, metric, half, x, tile, saturated);
    } else {
      saturated += saturate<kPer>(side.kind, x);
#pragma unroll 1
      for (int turn = 0; turn < 2; ++turn) {  // positions 16 apart share bytes of V's nibbles
        if (turn == p / 16) error2 = write_row<kPer>(side.kind, side.side, false, p, lane, x, tile);
        __syncthreads();
      }
    }
    saturated = gpu::warp_sum(saturated);
    norm2 = gpu::warp_sum(norm2);
    error2 = gpu::warp_sum(error2);
    if (lane > 0) continue;
    add_saturated(side.saturated, saturated);
    add_counts(side.counts[page], norm2, error2);
  }
}

}  // namespace

void encode_leaving_tiles(gpu::StreamHandle stream, const LeavingTiles& tiles) {
  const auto launch = [&]<int kPer>() {
    LeavingTiles a = tiles;
    size_t shared = sizeof(RotorScratch<kPer>) + size_t(a.weighs ? RotorScratch<kPer>::kMetricBytes : 0);
    if (shared > size_t(gpu::most_shared_bytes())) {
      a.near_metric = false;
      shared = sizeof(RotorScratch<kPer>);
    }
    gpu::allow_shared_bytes("encode of leaving tiles", leaving_kernel<kPer>, shared);
    gpu::launch("encode of leaving tiles", leaving_kernel<kPer>,
                {dim3(unsigned(2 * a.most_tiles), unsigned(a.n_sides * a.n_kv_heads), unsigned(a.most_spans)),
                 kRotorThreads, shared, stream, a.overlap},
                a);
  };
  if (tiles.head_dim == 64) launch.template operator()<2>();
  else if (tiles.head_dim == 128) launch.template operator()<4>();
  else launch.template operator()<8>();
}

}  // namespace ridge
