// Device code of GEMMs by warpgroups (gpu/warpgroup.h): areas as areas_cuda.h cuts them, of 256 rows.
// For *.cu files only.
//
// Weights are A of the wgmmas, as f16 in registers; tokens are B, in shared memory. Two warpgroups multiply: a warp
// has two tiles. While the wgmmas of one set of registers run, the other set is made of the next 32 columns of k. One
// more warp fills two rings: tiles, some steps of all tiles of the area at a time, and x, 64 or 128 columns of k at a
// time. A bulk copy of 1 KB takes 55 clocks, a longer one not much more: short tiles of several steps come in one.
//
// Where there are fewer areas than processors the blocks of a cluster share one: each takes a range of k, and in the
// end each adds up some columns of all their sums, which it reads from the others' shared memory.
//
// A kind of weights F has
//   kBytes, kColumns         of a tile of one step
//   Codes, load(tile, chunk, lane)   what a lane keeps of 64 columns of a tile; may point into it
//   fragments(codes, part, a)        their first or second 32 columns as A of two wgmmas of 16 columns
// x is an image of f16, [column area][64 columns of k][S::kAreaColumns] times 128 bytes, as shared_columns() takes
// them and store_units() writes them. The order of columns is that of F's wgmmas.
#pragma once

#include <type_traits>

#include "gpu/warpgroup.h"
#include "op/gemm/areas_cuda.h"

namespace ridge::areas {

/// Areas of 256 rows times 32, 64 or 128 columns.
template <int kColumns>
struct WideShape : Shape<8, 2, kColumns / 8> {};
template <class S>
inline constexpr bool kIsWide = false;
template <int kColumns>
inline constexpr bool kIsWide<WideShape<kColumns>> = true;

inline constexpr int kImageAlignment = 1024;  // of x in shared memory

/// Sizes of the rings.
template <class F, class S>
struct WideSizes {
  static constexpr int kXColumns = std::min(128, F::kColumns), kXOfStep = F::kColumns / kXColumns;
  static constexpr int kXBytes = kXColumns * 2 * S::kAreaColumns;
  static constexpr int kFreeBytes = gpu::kHopperSharedBytes - 1024 - kImageAlignment - 256;
  /// Steps of a stage of tiles, which a bulk copy brings of each.
  static constexpr int kSteps = F::kColumns != 128 || F::kBytes >= 1600       ? 1
                                : S::kAreaColumns >= 128 || F::kBytes >= 1200 ? 2
                                                                              : 4;
  static constexpr int kTileBytes = S::kAreaTiles * F::kBytes * kSteps;
  static constexpr int kTileStages = kXOfStep * kSteps > 1 ? 2 : std::min(6, kFreeBytes / (kXBytes + kTileBytes));
  static constexpr int kXStages = std::min(6, (kFreeBytes - kTileStages * kTileBytes) / kXBytes);
  static_assert(kTileStages >= 2 && kXStages >= 3 && F::kColumns % 64 == 0);
  /// More than half of a multiprocessor's, as kSharedBytes.
  static constexpr size_t kBytes =
      std::max(kTileStages * kTileBytes + kXStages * kXBytes + kImageAlignment + 256, 115 << 10);
};

/// Bytes of the image of x.
template <class F, class S>
int64_t wide_image_bytes(const Plan& p) {
  return int64_t(p.n_column_areas) * p.steps_per_area * F::kColumns * 2 * S::kAreaColumns;
}
/// Bytes of x in the order in which a matmul with either kind of areas reads it.
template <class F, class S>
int64_t x_bytes(const Plan& p) {
  if constexpr (kIsWide<S>) return wide_image_bytes<F, S>(p);
  else return word_bytes<S>(p);
}
/// Threads of a block. Of a wide one the last warpgroup's first warp fills the rings.
template <class S>
inline constexpr int kBlockThreads = kThreads + (kIsWide<S> ? 128 : 0);
/// The launch of a plan's areas, whose blocks may start while the grid before them makes x.
template <class S>
gpu::Grid areas_grid(const Plan& p, int n_blocks, size_t shared_bytes, gpu::StreamHandle stream) {
  return {.blocks = unsigned(n_blocks),
          .threads = kBlockThreads<S>,
          .shared_bytes = shared_bytes,
          .stream = stream,
          .overlap = true,
          .cluster = unsigned(p.cluster)};
}
/// Bytes of a block's shared memory.
template <class F, class S, int kMost>
constexpr size_t block_bytes() {
  if constexpr (kIsWide<S>) return WideSizes<F, S>::kBytes;
  else return kSharedBytes<F, S, kMost>;
}

/// Four lanes c = 0 .. 3 have word c of four units of eight columns of k each, of which unit i is words[i] of the four.
/// Afterwards lane c has the four words of unit c.
inline __device__ uint4 exchange_units(uint32_t (&words)[4]) {
  const int c = int(threadIdx.x) % 4;
  const auto exchange = [&](int step, int low, int high) {  // what lanes with and without the bit have for each other
    const bool upper = (c & step) != 0;
    const uint32_t got = __shfl_xor_sync(gpu::kAllLanes, upper ? words[low] : words[high], step);
    (upper ? words[low] : words[high]) = got;
  };
  exchange(1, 0, 1), exchange(1, 2, 3);
  exchange(2, 0, 2), exchange(2, 1, 3);
  return make_uint4(words[0], words[1], words[2], words[3]);
}
/// Where a column of the image has a unit of eight columns of k, of n_units.
inline __device__ int64_t unit_at(int64_t column, int unit, int n_units, int area_columns) {
  const int64_t of_area = column % area_columns;
  return ((column / area_columns * (n_units / 8) + unit / 8) * area_columns + of_area) * 8 + (unit ^ int(of_area)) % 8;
}
/// Four lanes write units from first_unit on, which they have as exchange_units() takes them, where a token has them in
/// the image.
inline __device__ void store_units(void* image, int64_t token, int first_unit, int n_units, int area_columns,
                                   uint32_t (&words)[4], bool exist) {
  const uint4 unit = exchange_units(words);
  if (exist)
    static_cast<uint4*>(image)[unit_at(token, first_unit + int(threadIdx.x) % 4, n_units, area_columns)] = unit;
}

/// Whether blocks of a cluster may share areas: their sums must fit where the rings were.
template <class S, bool kGrouped>
inline constexpr bool kMayCluster = !kGrouped && S::kAreaColumns <= 64;

/// Columns up to which costs differ from those of prompts, and up to which clusters are considered.
inline constexpr int kFewColumns = 64, kClusterColumns = 256;

/// Clocks of a block's areas when they are shared among the blocks, when they are not, and when a cluster has each.
struct WideCost {
  int64_t shared, whole, clusters;
  int cluster;  ///< blocks of a cluster that take least; 1: none fits
  int64_t least() const { return std::min({shared, whole, clusters}); }
};
template <class F, class S>
WideCost wide_cost(const Plan& p, int64_t n_blocks) {
  constexpr int64_t kPart = S::kAreaColumns * 150, kStore = S::kAreaColumns * 110;
  const int columns = p.n_column_areas * S::kAreaColumns;
  const bool few = columns <= kFewColumns;  // steps wait for memory
  const int64_t step = int64_t(F::kColumns) * (S::kAreaColumns >= 128  ? 18
                                               : S::kAreaColumns >= 64 ? (few ? 16 : 11)
                                                                       : (few ? 13 : 10));
  const int64_t waves = gpu::ceil_div(p.n_areas, n_blocks);
  const int64_t steps = gpu::ceil_div(int64_t(p.n_areas) * p.steps_per_area, n_blocks);
  WideCost cost{.shared = steps * step + 2 * kPart + waves * kStore,
                .whole = waves * (p.steps_per_area * step + kStore),
                .clusters = INT64_MAX,
                .cluster = 1};
  if constexpr (kMayCluster<S, false>)
    for (int cluster = 2; columns <= kClusterColumns && cluster <= std::min(gpu::kMostCluster, p.steps_per_area);
         ++cluster) {
      if (p.n_areas > std::min<int64_t>(n_blocks / cluster, gpu::most_clusters(cluster))) continue;
      const int64_t gather = 1000 + 1100 * cluster + kStore / cluster;
      const int64_t clocks = gpu::ceil_div(p.steps_per_area, cluster) * step + gather;
      if (clocks < cost.clusters) cost.clusters = clocks, cost.cluster = cluster;
    }
  return cost;
}
/// Blocks of a launch, and whether they share areas, all or those of a cluster. cluster: its blocks, or 0 for what is
/// fastest.
template <class F, class S>
int choose_wide_blocks(Plan& p, int64_t most_blocks, int cluster = 0) {
  const WideCost cost = wide_cost<F, S>(p, most_blocks);
  p.cluster = cluster > 0 ? cluster : cost.clusters == cost.least() ? cost.cluster : 1;
  if (p.cluster > 1) return p.n_areas * p.cluster;
  p.whole = cost.whole <= cost.shared;
  return int(std::min<int64_t>(most_blocks, p.whole ? p.n_areas : int64_t(p.n_areas) * p.steps_per_area));
}

template <class F, class S>
struct WideRings {
  using Sizes = WideSizes<F, S>;
  gpu::Ring<Sizes::kXStages, Sizes::kXBytes> x;
  gpu::Ring<Sizes::kTileStages, Sizes::kTileBytes> tiles;

  __device__ WideRings() {
    auto* const shared = gpu::dynamic_shared<uint8_t>();
    x.data = shared + (kImageAlignment - reinterpret_cast<uintptr_t>(shared) % kImageAlignment) % kImageAlignment;
    tiles.data = x.at(Sizes::kXStages);
    x.filled = reinterpret_cast<gpu::Arrival*>(tiles.at(Sizes::kTileStages));
    x.used = x.filled + Sizes::kXStages;
    tiles.filled = x.used + Sizes::kXStages;
    tiles.used = tiles.filled + Sizes::kTileStages;
  }
  __device__ void set_up(int lane) const {
    gpu::set_up_counts(x.used, Sizes::kXStages, kThreads / 32, lane);
    gpu::set_up_counts(tiles.used, Sizes::kTileStages, kThreads / 32, lane);
    gpu::set_up_arrivals(x.filled, Sizes::kXStages, lane);
    gpu::set_up_arrivals(tiles.filled, Sizes::kTileStages, lane);
  }
};

/// Runs the warp that fills the rings.
template <class F, class S, bool kGrouped>
__device__ void fill_rings(const Plan& p, const WideRings<F, S>& rings, int start, int end) {
  using Sizes = WideSizes<F, S>;
  const int lane = int(threadIdx.x) % 32;
  Step<kGrouped> of_tiles(p, start), of_x = of_tiles;
  gpu::RingPlace<Sizes::kTileStages> tile_place;
  gpu::RingPlace<Sizes::kXStages> x_place;
  int filled_to = start;
  const auto fill_tiles = [&] {
    const int first = of_tiles.row_area() * S::kAreaTiles, n = min(S::kAreaTiles, p.n_tiles - first);
    const int steps =
        min(min(Sizes::kSteps - of_tiles.brick % Sizes::kSteps, p.steps_per_area - of_tiles.brick), end - filled_to);
    const uint8_t* from = p.tiles;
    if constexpr (kGrouped) from += p.groups.experts[of_tiles.column_area()] * p.groups.expert_bytes;
    gpu::Arrival* const filled = rings.tiles.filled + tile_place.stage;
    if (lane == 0) gpu::expect_pieces(filled, n * F::kBytes * steps);
    __syncwarp();
    if (lane < n)
      gpu::add_piece(filled, rings.tiles.at(tile_place.stage) + lane * F::kBytes * Sizes::kSteps,
                     from + (int64_t(first + lane) * p.steps_per_area + of_tiles.brick) * F::kBytes, F::kBytes * steps);
    tile_place.advance();
    filled_to += steps;
    for (int i = 0; i < steps; ++i) of_tiles.advance(p);
  };
  // Weights may come while the grid before this one still makes x.
  for (int i = 0; i < Sizes::kTileStages && filled_to < end; ++i) fill_tiles();
  if constexpr (!kGrouped) gpu::wait_for_previous_grid();
  for (int step = start; step < end; ++step, of_x.advance(p)) {
    if (step == filled_to) {
      gpu::wait_until_used(rings.tiles, tile_place);
      fill_tiles();
    }
    const auto* x = reinterpret_cast<const uint8_t*>(p.words) +
                    (int64_t(of_x.column_area()) * p.steps_per_area + of_x.brick) * Sizes::kXOfStep * Sizes::kXBytes;
    for (int i = 0; i < Sizes::kXOfStep; ++i, x_place.advance()) {
      gpu::wait_until_used(rings.x, x_place);
      gpu::start_piece(rings.x.filled + x_place.stage, rings.x.at(x_place.stage), x + i * Sizes::kXBytes,
                       Sizes::kXBytes, lane);
    }
  }
}

/// Adds the sums that the blocks of a cluster have of one area. Each block has some of the column tiles, for which it
/// calls store(column tile, sums of a warp). `shared`: of every block, S::kValues floats a thread.
template <class S, class Store>
__device__ void store_cluster(int cluster, float4* shared, const float (&sum)[S::kTiles][S::kColumnTiles][4],
                              const Store& store) {
  const auto at = [&](int m, int n) { return shared + (m * S::kColumnTiles + n) * kThreads + threadIdx.x; };
  gpu::sync_threads(1, kThreads);  // all have read the rings
#pragma unroll
  for (int m = 0; m < S::kTiles; ++m)
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n)
      *at(m, n) = make_float4(sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]);
  gpu::sync_cluster();
  const int rank = gpu::cluster_rank();
#pragma unroll 1
  for (int n = rank * S::kColumnTiles / cluster; n < (rank + 1) * S::kColumnTiles / cluster; ++n) {
    float part[S::kTiles][1][4] = {};
#pragma unroll
    for (int block = 0; block < gpu::kMostCluster; ++block)
      if (block < cluster)
#pragma unroll
        for (int m = 0; m < S::kTiles; ++m) {
          const float4 of = gpu::load_peer(at(m, n), block);
          part[m][0][0] += of.x, part[m][0][1] += of.y, part[m][0][2] += of.z, part[m][0][3] += of.w;
        }
    store(n, part);
  }
  gpu::sync_cluster();  // no block ends while others read its sums
}

/// Runs a warp of the multiplying warpgroups; store() as run_areas() has it.
template <class F, class S, bool kGrouped, class Store>
__device__ void multiply_wide(const Plan& p, const WideRings<F, S>& rings, int start, int end, const Store& store) {
  using Sizes = WideSizes<F, S>;
  constexpr int kParts = Sizes::kXColumns / 32, kChunks = F::kColumns / 64, kColumns = S::kAreaColumns;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  gpu::RingPlace<Sizes::kXStages> x_place;
  gpu::RingPlace<Sizes::kTileStages> tile_place;

  float sum[S::kTiles][S::kColumnTiles][4] = {};
  typename F::Codes codes[S::kTiles];
  uint32_t a[2][2][S::kTiles][4];  // [set][16 columns of k][tile]
  const auto release = [&](gpu::Arrival* used) {
    __syncwarp();
    if (lane == 0) gpu::arrive(used);
  };
  // Of the chunk that is fetched next: its step, that step's place in a stage, and its place in the step.
  int brick = start % p.steps_per_area, in_stage = 0, chunk = 0, chunks_left = (end - start) * kChunks;
  const auto fetch = [&] {  // the codes of the next chunk, if there is one
    if (chunks_left == 0) return;
    --chunks_left;
    if (chunk == kChunks) {
      chunk = 0;
      ++in_stage;
      if (++brick == p.steps_per_area) brick = 0;
      if (brick % Sizes::kSteps == 0) {
        in_stage = 0;
        release(rings.tiles.used + tile_place.stage);
        tile_place.advance();
      }
    }
    if (chunk == 0 && in_stage == 0) gpu::wait_until_filled(rings.tiles, tile_place);
    const uint8_t* tiles = rings.tiles.at(tile_place.stage) + (warp * S::kTiles * Sizes::kSteps + in_stage) * F::kBytes;
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) codes[m] = F::load(tiles + m * Sizes::kSteps * F::kBytes, chunk, lane);
    ++chunk;
  };
  const auto make = [&](uint32_t(&set)[2][S::kTiles][4], int part) {
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      uint32_t of[2][4];
      F::fragments(codes[m], part, of);
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) set[k16][m][i] = of[k16][i];
        gpu::keep_words(set[k16][m]);
      }
    }
  };
  // A wgmma under way still reads its registers, which the compiler holds for free once it has been issued.
  const auto keep = [&](uint32_t(&set)[2][S::kTiles][4]) {
#pragma unroll
    for (int k16 = 0; k16 < 2; ++k16)
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) gpu::keep_words(set[k16][m]);
  };
  int last_stage = 0;
  // A stage of x. The second of two leaves its first wgmmas under way beside the last ones of the first.
  const auto multiply = [&](auto second) {
    constexpr bool kSecond = decltype(second)::value;
    gpu::wait_until_filled(rings.x, x_place);
    __syncwarp();
    const uint64_t x = gpu::shared_columns(rings.x.at(x_place.stage));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      gpu::warpgroup_fence();
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16)
#pragma unroll
        for (int m = 0; m < S::kTiles; ++m)
          gpu::warpgroup_mma_f16(sum[m], a[part % 2][k16][m],
                                 gpu::columns_behind(x, part / 2 * (128 * kColumns) + (part % 2 * 2 + k16) * 32));
      gpu::warpgroup_commit();
      if (part % 2 == 1) fetch();
      if (kSecond || part > 0) {
        gpu::warpgroup_wait<1>();  // the other set is free again
        keep(a[(part + 1) % 2]);
      }
      if (kSecond && part == 0) release(rings.x.used + last_stage);
      make(a[(part + 1) % 2], (part + 1) % 2);
    }
    last_stage = x_place.stage;
    x_place.advance();
  };
  const auto end_products = [&] {
    gpu::warpgroup_wait<0>();
    keep(a[1]);
    release(rings.x.used + last_stage);
  };

  if constexpr (!kGrouped) gpu::wait_for_previous_grid();  // whose sums the stores may add to
  fetch();
  make(a[0], 0);
  for (int step = start; step < end;) {
    const Step<kGrouped> now(p, step);
    const int n_steps = min(end - step, p.steps_per_area - now.brick);
    int n = n_steps * Sizes::kXOfStep;
    for (; n >= 2; n -= 2) {
      multiply(std::false_type());
      multiply(std::true_type());
      end_products();
    }
    if (Sizes::kXOfStep == 1 && n == 1) {
      multiply(std::false_type());
      end_products();
    }
    const auto store_here = [&](int column_tile, auto& sums) {
      store(now, warp * S::kTiles + now.row_area() * S::kAreaTiles, now.column_area() * kColumns + 8 * column_tile,
            sums);
    };
    bool in_cluster = false;
    if constexpr (kMayCluster<S, kGrouped>) {
      in_cluster = p.cluster > 1;
      if (in_cluster) store_cluster<S>(p.cluster, reinterpret_cast<float4*>(rings.x.data), sum, store_here);
    }
    if (!in_cluster && (n_steps == p.steps_per_area ||
                        gather_parts<S>(p, now.area(p), start, sum, [] { gpu::sync_threads(1, kThreads); })))
      store_here(0, sum);
#pragma unroll
    for (int i = 0; i < S::kValues; ++i) (&sum[0][0][0])[i] = 0;
    step += n_steps;
  }
}

/// run_areas() of areas_cuda.h by kBlockThreads<S> threads; a block has WideSizes::kBytes.
template <class F, class S, bool kGrouped, class Store>
__device__ void run_wide_areas(const Plan& of, const Store& store) {
  if constexpr (gpu::kWarpgroups) {
    Plan p = of;
    p.n_blocks = int(gridDim.x);
    if constexpr (kGrouped) {
      gpu::let_next_grid_start();
      gpu::wait_for_previous_grid();
      if (!take_groups(p)) return;
    }
    const WideRings<F, S> rings;
    const int warp = int(threadIdx.x) / 32;
    const int start = p.first_step(blockIdx.x), end = p.first_step(blockIdx.x + 1);
    if (warp == kThreads / 32) rings.set_up(int(threadIdx.x) % 32);
    if constexpr (!kGrouped) gpu::let_next_grid_start();
    __syncthreads();
    if (warp >= kThreads / 32) {
      gpu::give_registers<40>();
      if (warp == kThreads / 32) fill_rings<F, S, kGrouped>(p, rings, start, end);
    } else {
      gpu::take_registers<232>();
      multiply_wide<F, S, kGrouped>(p, rings, start, end, store);
    }
  }
}

/// The areas of one matrix; product as store_sums() takes it.
template <class F, class S, class Product>
__device__ void run_wide(const Plan& p, const Outputs& out, const Product& product) {
  run_wide_areas<F, S, false>(p, [&](const Step<false>&, int first_tile, int first_column, auto& sum) {
    store_sums(out, p.n_tiles, first_tile, first_column, sum, product);
  });
}

}  // namespace ridge::areas
