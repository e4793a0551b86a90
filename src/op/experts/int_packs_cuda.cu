// A pack's four tokens in two planes each are the eight columns of the integer mma. The tiles of rows of all packs are
// one row of work, of which every block has an even share; some warps of a block share a tile and have every so many
// bricks of it, the others have other tiles. Bricks come through a ring of each warp, which goes on into the next pack
// while the activations of that are made int8.
#include <algorithm>

#include "op/experts/expert_sums_cuda.h"
#include "op/experts/int_packs_cuda.h"
#include "op/gemv/brick_matmul_cuda.h"

namespace ridge {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kStages = 3;        ///< bricks of a warp on their way from memory
constexpr int kLeastRoom = 8192;  ///< bytes for packs and what is not dynamic
constexpr int kLeastBricks = 4;   ///< of a tile, for each warp that shares it

template <IntKind kKind>
using Image = ExpertImage<kKind, ExpertPack::kMost>;
template <IntKind kKind>
using PackSums = ExpertSums<kKind, kStages, ExpertPack::kMost>;
/// Floats that a warp leaves of a tile.
template <IntKind kKind>
constexpr int kTileSums = PackSums<kKind>::kTokenPitch* ExpertPack::kMost*(PackSums<kKind>::kLowerAt > 8 ? 2 : 1);
/// Tiles of a warp between two barriers.
template <IntKind kKind>
constexpr int kBatch = is_brick_kind(kKind) ? 2 : 3;

struct Plan {
  const ExpertPack* packs;
  int n_packs;  ///< at most; those behind the last one have no slots
  const uint8_t* bricks;
  int64_t expert_bytes;
  int n_groups, n_row_tiles;         ///< of an expert
  int tile_warps;                    ///< that share a tile
  int images_at, sums_at, packs_at;  ///< in shared memory, behind the rings
  const float* x;
  int share, n_in, n_out;
  BrickGlu glu;
  bool packs_are_there;  ///< before the wait
  float* y;
};

template <IntKind kKind, bool kPaired>
__global__ void __launch_bounds__(kThreads, is_brick_kind(kKind) ? 1 : 2)
    pack_gemv_kernel(const __grid_constant__ Plan p) {
  constexpr int kBrickBytes = int_tile_bytes(kKind), kImageBytes = Image<kKind>::kBytes;
  constexpr int kTiles = kBatch<kKind>, kFloats = kTileSums<kKind>;
  using Sums = PackSums<kKind>;
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int part = warp % p.tile_warps, of_row = warp / p.tile_warps, n_rows = kWarps / p.tile_warps;  // of tiles
  if (!p.packs_are_there) gpu::wait_for_previous_grid();
  int n_packs = 0;
#pragma unroll 4
  for (int from = 0; from < p.n_packs; from += 32)
    n_packs += __popc(__ballot_sync(gpu::kAllLanes, from + lane < p.n_packs && __ldcg(&p.packs[from + lane].n) > 0));
  const int64_t n_tiles = int64_t(n_packs) * p.n_row_tiles;
  const auto begin = int(n_tiles * blockIdx.x / gridDim.x), end = int(n_tiles * (blockIdx.x + 1) / gridDim.x);
  const int first_pack = begin / p.n_row_tiles;
  auto* const packs = reinterpret_cast<ExpertPack*>(shared + p.packs_at) - first_pack;  // those of the block
  const int packs_end = (end + p.n_row_tiles - 1) / p.n_row_tiles;
  for (int i = thread; i < 2 * (packs_end - first_pack); i += kThreads)
    reinterpret_cast<uint4*>(packs + first_pack)[i] = __ldcg(reinterpret_cast<const uint4*>(p.packs + first_pack) + i);
  __syncthreads();

  // The ring of a warp, and the brick that comes into it next.
  uint8_t* const ring = shared + warp * kStages * kBrickBytes + 16 * lane;
  const auto end_of = [&](int pack) { return min(end, (pack + 1) * p.n_row_tiles); };
  int fed_pack = first_pack, fed_tile = begin + of_row, fed_brick = part, fed_end = end_of(fed_pack);
  const uint8_t* fed_expert = nullptr;
  const auto find_expert = [&] {
    while (fed_tile >= fed_end && fed_end < end) {
      ++fed_pack;
      fed_tile = fed_end + of_row;
      fed_end = end_of(fed_pack);
    }
    if (fed_tile < fed_end)
      fed_expert = p.bricks + packs[fed_pack].expert * p.expert_bytes -
                   int64_t(fed_pack) * p.n_row_tiles * p.n_groups * kBrickBytes + 16 * lane;
  };
  const auto feed = [&](uint8_t* to) {
    const bool wanted = fed_tile < fed_end;
    const uint8_t* const from =
        wanted ? fed_expert + (int64_t(fed_tile) * p.n_groups + fed_brick) * kBrickBytes : p.bricks;
#pragma unroll
    for (int i = 0; i < kBrickBytes; i += 512)
      gpu::copy_async16_if(wanted && (i + 512 <= kBrickBytes || 16 * lane + i < kBrickBytes), to + i, from + i);
    gpu::copy_commit();
    if (!wanted) return;
    fed_brick += p.tile_warps;
    if (fed_brick < p.n_groups) return;
    fed_brick = part;
    fed_tile += n_rows;
    if (fed_tile >= fed_end) find_expert();
  };
  find_expert();
#pragma unroll 1
  for (int i = 0; i < Sums::kAhead; ++i) feed(ring + i * kBrickBytes);
  if (p.packs_are_there) gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();

  // Rows of a tile come 8 and 8: of pairs those of gate, then those of up. A thread has the same place in every tile.
  constexpr int kOutputs = (kPaired ? 8 : 16) * ExpertPack::kMost;
  const int place = thread % kOutputs, token = place / 8 % ExpertPack::kMost, of_tile = place / 32 * 8 + place % 8;
  const int sum_at = token * Sums::kTokenPitch + of_tile % 8 + of_tile / 8 * Sums::kLowerAt;
  uint8_t* const images = shared + p.images_at;
  auto* const sums_at = reinterpret_cast<float*>(shared + p.sums_at);  // [2][kTiles][kWarps][kFloats], in turns
  Sums sums(lane);
  int ring_at = 0, turn = 0;
  for (int pack_number = first_pack, tile = begin; tile < end; ++pack_number) {
    const ExpertPack& pack = packs[pack_number];
    const int pack_end = end_of(pack_number);
    for (int item = warp; item < p.n_groups * pack.n; item += kWarps) {
      const int of_pack = item % pack.n, group = item / pack.n;
      Image<kKind>::make(Image<kKind>::load(p.x + int64_t(pack.slots[of_pack] / p.share) * p.n_in, group), of_pack,
                         images + group * kImageBytes);
    }
    __syncthreads();
    float* const y = p.y + int64_t(pack.slots[token]) * p.n_out;
    const bool has_slot = token < pack.n;
    for (; tile < pack_end; tile += kTiles * n_rows, turn ^= 1) {
      float* const sums_here = sums_at + turn * kTiles * kWarps * kFloats;
#pragma unroll 1
      for (int i = 0, mine = tile + of_row; i < kTiles && mine < pack_end; ++i, mine += n_rows) {
        sums.begin();
#pragma unroll 1
        for (int brick = part; brick < p.n_groups; brick += p.tile_warps)
          sums.add(ring, ring_at, lane, images + brick * kImageBytes, feed);
        sums.store(sums_here + (i * kWarps + warp) * kFloats, lane);
      }
      __syncthreads();
      const int n_here = has_slot ? min(kTiles * n_rows, pack_end - tile) : 0;
      for (int i = thread / kOutputs; i < n_here; i += kThreads / kOutputs) {
        const int row = (tile + i - pack_number * p.n_row_tiles) * (kPaired ? 8 : 16) + of_tile;
        const float* const parts = sums_here + (i / n_rows * kWarps + i % n_rows * p.tile_warps) * kFloats + sum_at;
        float sum = 0, up = 0;
#pragma unroll 4
        for (int w = 0; w < p.tile_warps; ++w) {
          sum += parts[w * kFloats];
          if (kPaired) up += parts[w * kFloats + Sums::kLowerAt];
        }
        if (row < p.n_out) y[row] = kPaired ? bricks::gated(p.glu, sum, up) : sum;
      }
    }
    tile = pack_end;
  }
  gpu::copy_wait<0>();
}

Plan make_plan(const BrickMatrix& w) {
  const IntKind kind = *find_int_kind(w.format);
  int image_bytes = 0, sum_bytes = 0;
  with_expert_kind(kind, [&](auto k) {
    image_bytes = Image<k()>::kBytes;
    sum_bytes = 4 * 2 * kBatch<k()> * kWarps * kTileSums<k()>;
  });
  Plan p{.expert_bytes = w.bytes(),
         .n_groups = int(w.n_in / int_group(kind)),
         .n_row_tiles = int(w.n_tiles()),
         .tile_warps = 1,
         .images_at = kWarps * kStages * int_tile_bytes(kind),
         .n_in = int(w.n_in),
         .n_out = int(w.n_out[0])};
  while (p.tile_warps < kWarps && 2 * p.tile_warps * kLeastBricks <= p.n_groups) p.tile_warps *= 2;
  p.sums_at = p.images_at + p.n_groups * image_bytes;
  p.packs_at = p.sums_at + sum_bytes;
  return p;
}

/// With room for the packs of a block where so many blocks share n_packs.
int shared_bytes_of(const Plan& p, int64_t n_packs, int64_t n_blocks) {
  return p.packs_at + int(gpu::ceil_div(n_packs, n_blocks) + 1) * int(sizeof(ExpertPack));
}

}  // namespace

bool has_int_packs(const BrickMatrix& w) {
  return is_int_expert(w) && shared_bytes_of(make_plan(w), 1, 1) + kLeastRoom <= gpu::most_shared_bytes();
}

void device_int_packs(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertCall& call, float* y) {
  bricks::expect(has_int_packs(w) && call.packs && call.n_packs > 0 && call.x && y && w.data.bytes() > 0,
                 "packs of integers: a matrix that they do not serve, or no packs, x or y");
  Plan p = make_plan(w);
  bricks::expect(call.n_packs * p.n_row_tiles <= INT32_MAX, "packs of integers: too many packs");
  p.packs = call.packs;
  p.n_packs = int(call.n_packs);
  p.bricks = w.data.as<uint8_t>();
  p.x = call.x;
  p.share = call.share;
  p.glu = call.glu;
  p.packs_are_there = call.packs_are_there;
  p.y = y;
  const IntKind kind = *find_int_kind(w.format);
  const auto shared_of = [&](int per_processor) {
    return shared_bytes_of(p, call.n_packs, per_processor * gpu::multiprocessors());
  };
  const int per_processor = !is_brick_kind(kind) && 2 * (shared_of(2) + 1024) <= gpu::most_shared_bytes() ? 2 : 1;
  const int shared = shared_of(per_processor);
  bricks::expect(shared <= gpu::most_shared_bytes(), "packs of integers: too many packs for a block's shared memory");
  with_expert_kind(kind, [&](auto k) {
    const auto kernel = w.paired ? pack_gemv_kernel<k(), true> : pack_gemv_kernel<k(), false>;
    gpu::allow_shared_bytes("shared memory of packs", kernel, size_t(shared));
    gpu::launch("integer packs of experts", kernel,
                {unsigned(per_processor * gpu::multiprocessors()), kThreads, size_t(shared), stream, call.overlap,
                 w.all_data()},
                p);
  });
}

}  // namespace ridge
