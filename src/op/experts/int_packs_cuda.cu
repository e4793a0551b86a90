// A pack's four tokens in two planes each are the eight columns of the integer mma. The tiles of rows of all packs are
// one row of work, of which every block has an even share; some warps of a block share a tile and have every so many
// bricks of it, the others have other tiles. Bricks come through a ring of each warp, which goes on into the next pack
// while the activations of that are made int8.
#include <algorithm>

#include "op/experts/expert_brick_cuda.h"
#include "op/experts/int_packs_cuda.h"
#include "op/gemv/brick_matmul_cuda.h"

namespace ridge {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kStages = 3;  ///< bricks of a warp on their way from memory
constexpr int kBatch = 3;   ///< tiles of a warp between two barriers
constexpr int kPlanes = 2, kColumns = kPlanes * ExpertPack::kMost;
constexpr int kImageBytes = kColumns * (kIntGroup + 4);  ///< of a group: int8, then scales
constexpr int kTileSums = 16 * ExpertPack::kMost;        ///< floats that a warp leaves of a tile
constexpr int kLeastRoom = 8192;                         ///< bytes for packs and what is not dynamic
constexpr int kLeastBricks = 4;                          ///< of a tile, for each warp that shares it

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

template <bool kPaired>
__global__ void __launch_bounds__(kThreads, 2) pack_gemv_kernel(const __grid_constant__ Plan p) {
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
  uint8_t* const ring = shared + warp * kStages * kExpertBrickBytes + 16 * lane;
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
                   int64_t(fed_pack) * p.n_row_tiles * p.n_groups * kExpertBrickBytes + 16 * lane;
  };
  const auto feed = [&](uint8_t* to) {
    const bool wanted = fed_tile < fed_end;
    const uint8_t* const from =
        wanted ? fed_expert + (int64_t(fed_tile) * p.n_groups + fed_brick) * kExpertBrickBytes : p.bricks;
    gpu::copy_async16_if(wanted, to, from);
    gpu::copy_async16_if(wanted, to + 512, from + 512);
    gpu::copy_async16_if(wanted && lane < 2, to + 1024, from + 1024);
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
  for (int i = 0; i < kStages; ++i) feed(ring + i * kExpertBrickBytes);
  if (p.packs_are_there) gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();

  // Rows of a tile come 8 and 8: of pairs those of gate, then those of up. A thread has the same place in every tile.
  constexpr int kOutputs = kPaired ? kTileSums / 2 : kTileSums;
  const int place = thread % kOutputs, token = place / 8 % ExpertPack::kMost, of_tile = place / 32 * 8 + place % 8;
  uint8_t* const images = shared + p.images_at;
  auto* const sums_at = reinterpret_cast<float*>(shared + p.sums_at);  // [2][kBatch][kWarps][kTileSums], in turns
  const int r = lane / 4, c = lane % 4;
  int ring_at = 0, turn = 0;
  for (int pack_number = first_pack, tile = begin; tile < end; ++pack_number) {
    const ExpertPack& pack = packs[pack_number];
    const int pack_end = end_of(pack_number);
    for (int item = warp; item < p.n_groups * pack.n; item += kWarps) {
      const int of_pack = item % pack.n, group = item / pack.n;
      uint8_t* const image = images + group * kImageBytes;
      quantize_group<IntKind::int4_g128>(brick_columns_of(p.x + int64_t(pack.slots[of_pack] / p.share) * p.n_in, group),
                                         of_pack, kPlanes, image,
                                         reinterpret_cast<float*>(image + kColumns * kIntGroup));
    }
    __syncthreads();
    float* const y = p.y + int64_t(pack.slots[token]) * p.n_out;
    const bool has_slot = token < pack.n;
    for (; tile < pack_end; tile += kBatch * n_rows, turn ^= 1) {
      float* const sums_here = sums_at + turn * kBatch * kWarps * kTileSums;
#pragma unroll 1
      for (int i = 0, mine = tile + of_row; i < kBatch && mine < pack_end; ++i, mine += n_rows) {
        float sums[4] = {};
#pragma unroll 1
        for (int brick_at = part; brick_at < p.n_groups; brick_at += p.tile_warps) {
          const ExpertBrick brick = take_brick<kStages>(ring, ring_at, lane, feed);
          const uint8_t* const image = images + brick_at * kImageBytes;
          brick.add_to(sums, image, r, c, reinterpret_cast<const float2*>(image + kColumns * kIntGroup)[c]);
        }
        float* const to = sums_here + (i * kWarps + warp) * kTileSums + 8 * c + r;
        to[0] = sums[0] + sums[1];
        to[kTileSums / 2] = sums[2] + sums[3];
      }
      __syncthreads();
      const int n_here = has_slot ? min(kBatch * n_rows, pack_end - tile) : 0;
      for (int i = thread / kOutputs; i < n_here; i += kThreads / kOutputs) {
        const int row = (tile + i - pack_number * p.n_row_tiles) * (kPaired ? 8 : 16) + of_tile;
        const float* const parts = sums_here + (i / n_rows * kWarps + i % n_rows * p.tile_warps) * kTileSums + place;
        float sum = 0, up = 0;
#pragma unroll 4
        for (int w = 0; w < p.tile_warps; ++w) {
          sum += parts[w * kTileSums];
          if (kPaired) up += parts[w * kTileSums + kTileSums / 2];
        }
        if (row < p.n_out) y[row] = kPaired ? bricks::gated(p.glu, sum, up) : sum;
      }
    }
    tile = pack_end;
  }
  gpu::copy_wait<0>();
}

Plan make_plan(const BrickMatrix& w) {
  Plan p{.expert_bytes = w.bytes(),
         .n_groups = int(w.n_in / kIntGroup),
         .n_row_tiles = int(w.n_tiles()),
         .tile_warps = 1,
         .images_at = kWarps * kStages * kExpertBrickBytes,
         .n_in = int(w.n_in),
         .n_out = int(w.n_out[0])};
  while (p.tile_warps < kWarps && 2 * p.tile_warps * kLeastBricks <= p.n_groups) p.tile_warps *= 2;
  p.sums_at = p.images_at + p.n_groups * kImageBytes;
  p.packs_at = p.sums_at + 2 * kBatch * kWarps * kTileSums * 4;
  return p;
}

/// With room for the packs of a block where so many blocks share n_packs.
int shared_bytes_of(const Plan& p, int64_t n_packs, int64_t n_blocks) {
  return p.packs_at + int(gpu::ceil_div(n_packs, n_blocks) + 1) * int(sizeof(ExpertPack));
}

}  // namespace

bool has_int_packs(const BrickMatrix& w) {
  return w.format == BrickFormat::int4_g128 && w.n_parts == 1 &&
         shared_bytes_of(make_plan(w), 1, 1) + kLeastRoom <= gpu::most_shared_bytes();
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
  const auto kernel = w.paired ? pack_gemv_kernel<true> : pack_gemv_kernel<false>;
  const auto shared_of = [&](int per_processor) {
    return shared_bytes_of(p, call.n_packs, per_processor * gpu::multiprocessors());
  };
  const int per_processor = 2 * (shared_of(2) + 1024) <= gpu::most_shared_bytes() ? 2 : 1;
  const int shared = shared_of(per_processor);
  bricks::expect(shared <= gpu::most_shared_bytes(), "packs of integers: too many packs for a block's shared memory");
  gpu::allow_shared_bytes("shared memory of packs", kernel, size_t(shared));
  gpu::launch(
      "integer packs of experts", kernel,
      {unsigned(per_processor * gpu::multiprocessors()), kThreads, size_t(shared), stream, call.overlap, w.all_data()},
      p);
}

}  // namespace ridge
