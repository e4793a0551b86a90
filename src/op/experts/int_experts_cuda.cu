// GEMVs of a few tokens, each with its own experts, in bricks, as integers. Blocks: (tiles, tokens); a
// token has the bits that it has alone. In gate and up a warp of every block chooses the experts (choice_cuda.h) while
// the others make integers of x, and one block leaves the choice for the sum. The warps of a block take the groups of
// a tile of rows in turn, and no block needs another one. Code is short where it runs once: a launch finds none of it
// near.
#include <algorithm>

#include "op/experts/choice_cuda.h"
#include "op/experts/expert_sums_cuda.h"
#include "op/experts/int_experts_cuda.h"
#include "op/gemv/brick_matmul_cuda.h"

namespace ridge {
namespace {

constexpr int kMostWarps = 16;
/// Bricks of a warp's ring: of int4_g128 kDepth where there is room.
constexpr int kDepth = 6, kShallow = 4, kOfSuperBlocks = 3;
constexpr int kBatch = 12;         ///< tiles of rows between two barriers
constexpr int kTileSums = 16 + 4;  ///< floats of a warp's sums; the warps of an addition meet different banks

/// How far one of equal parts of experts is from another: whole experts, and parts beyond.
struct Distance {
  int experts, parts;

  Distance(int64_t n, int n_parts) : experts(int(n / n_parts)), parts(int(n % n_parts)) {}
  Distance() = default;
  __device__ void add_to(int& slot, int& part, int n_parts, int sign) const {
    part += parts;
    const bool carries = part >= n_parts;
    slot += sign * (experts + carries);
    if (carries) part -= n_parts;
  }
};

struct Plan {
  ExpertChoice choice;
  ExpertRouter router;
  const uint8_t* bricks;  ///< of all experts
  uint32_t expert_bytes;
  int n_groups, n_row_tiles;          ///< of an expert
  int n_bricks, n_tiles;              ///< of a tile of rows, and how many of them there are in all
  Distance to_next;                   ///< from a block's tile to its next one; of a sum from a warp's brick to its next
  int warp_bricks;                    ///< of a tile, at most
  int images_at, sums_at, choice_at;  ///< in shared memory, behind the rings
  const float* x;
  const float* norm;
  float eps;
  int n_in, n_out;
  BrickGlu glu;
  bool add;
  float* y;
};

/// kSum: tiles of rows of all experts as one long row, each times its weight; otherwise tiles of gate and up, expert by
/// expert, the last one first: of a shared expert weights are asked for before the wait. The sum reads which experts
/// there are before its wait: gate and up let it start when they have been left.
/// kSegments: of choose_by_warp().
template <IntKind kKind, bool kSum, int kStages, int kSegments>
__global__ void __launch_bounds__(32 * kMostWarps, 2) expert_kernel(const __grid_constant__ Plan p) {
  constexpr int kBrickBytes = int_tile_bytes(kKind), kImageBytes = ExpertImage<kKind>::kBytes;
  // Groups of x that a warp asks for together.
  constexpr int kHeld = is_super_block_kind(kKind) ? 1 : kSum ? 3 : 2;
  constexpr int kAhead = ExpertSums<kKind, kStages>::kAhead;
  __shared__ int32_t experts[kMostUsedExperts + 1];
  __shared__ float squares_of[kMostWarps];
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warps = int(blockDim.x) / 32;
  const int n_mine = (p.n_bricks - warp + n_warps - 1) / n_warps;  // bricks of a tile, every n_warps-th
  const int n_tiles = (p.n_tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x);
  const bool chooses = !kSum && warp == n_warps - 1;
  const int64_t token = blockIdx.y, first_chosen = token * p.choice.n_chosen();
  const float* const scores = p.choice.scores + token * p.choice.n_scores();
  const float* const token_x = p.x + (kSum ? first_chosen : token) * p.n_in;
  float* const token_y = p.y + (kSum ? token : first_chosen) * p.n_out;
  // Whether this block stores the choice of gate and up. The block that does asked for a tile early, and so has time.
  const bool leaves_choice = int(blockIdx.x) == min(p.n_row_tiles, int(gridDim.x)) - 1;
  /// Gate and up: whose tile it is, and what number it has there.
  const auto slot_of = [&](int tile) { return p.choice.n_chosen() - 1 - tile / p.n_row_tiles; };

  IntValues<kKind> x[kHeld], norm[kHeld];
  // Expert and weight that a lane has in the sum.
  int expert_of_lane = 0;
  float weight_of_lane = 0;
  const auto each_held = [&](int of, int from, const auto& visit) {  // (number of those held, brick of a tile)
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int brick = of + (from + i) * n_warps; brick < p.n_bricks) visit(i, brick);
  };
  const auto load_x = [&](int of, int from) {
    // Counts the bricks of a sum through the experts' rows of x, one after another.
    each_held(of, from, [&](int i, int brick) { x[i] = ExpertImage<kKind>::load(token_x, brick); });
  };
  const auto load_norm = [&](int of, int from) {
    if (!kSum && p.norm)
      each_held(of, from, [&](int i, int brick) { norm[i] = ExpertImage<kKind>::load(p.norm, brick); });
  };

  // The ring of a warp, and the brick that comes into it next: all of a tile, then those of the next tile.
  uint8_t* const ring = shared + warp * kStages * kBrickBytes + 16 * lane;
  const int first_slot = kSum ? warp / p.n_groups : slot_of(int(blockIdx.x)),
            first_brick = kSum ? warp - first_slot * p.n_groups : warp;
  int fed_tile = kSum ? int(blockIdx.x) : int(blockIdx.x) % p.n_row_tiles,  // of an expert
      fed_slot = first_slot, fed_brick = first_brick, left = n_mine * n_tiles;
  int fed = 0;  // of the tile
  const auto feed = [&](uint8_t* to) {
    const bool wanted = left-- > 0;
    int expert = p.choice.n_experts;  // the shared one, the last of all
    if constexpr (kSum) expert = __shfl_sync(gpu::kAllLanes, expert_of_lane, fed_slot % 32);
    else if (fed_slot < p.choice.n_used) expert = experts[wanted ? fed_slot : 0];
    if (!wanted) expert = 0;
    const uint8_t* const from = p.bricks + uint64_t(uint32_t(expert)) * p.expert_bytes +
                                (uint32_t(fed_tile * p.n_groups + fed_brick) * kBrickBytes + 16 * lane);
#pragma unroll
    for (int i = 0; i < kBrickBytes; i += 512)
      gpu::copy_async16_if(wanted && (i + 512 <= kBrickBytes || 16 * lane + i < kBrickBytes), to + i, from + i);
    gpu::copy_commit();
    if (++fed < n_mine) {
      if constexpr (kSum) p.to_next.add_to(fed_slot, fed_brick, p.n_groups, 1);
      else fed_brick += n_warps;
      return;
    }
    fed = 0;
    fed_brick = first_brick;
    if constexpr (kSum) fed_tile += int(gridDim.x), fed_slot = first_slot;
    else p.to_next.add_to(fed_slot, fed_tile, p.n_row_tiles, -1);
  };

  // A warp makes int8 of what the bricks of warp `of` need, whose first values of x it has.
  const auto images_of = [&](int of) { return shared + p.images_at + of * p.warp_bricks * kImageBytes; };
  const auto make_images = [&](int of) {
    float square = 0;
    int slot = first_slot, part = first_brick;  // of the sum, whose warps make their own
#pragma unroll 1
    for (int from = 0; of + from * n_warps < p.n_bricks; from += kHeld) {
      if (from > 0) load_x(of, from), load_norm(of, from);
      each_held(of, from, [&](int i, int) {
        IntValues<kKind> v = x[i];
        if (!kSum && p.norm) square = add_squares(v, square), v = times(v, norm[i]);
        const float weight = kSum ? __shfl_sync(gpu::kAllLanes, weight_of_lane, slot) : 1.0f;
        uint8_t* const image = images_of(of) + (from + i) * kImageBytes;
        ExpertImage<kKind>::make(v, 0, image);
        ExpertImage<kKind>::weigh(image, weight);
        if constexpr (kSum) p.to_next.add_to(slot, part, p.n_groups, 1);
      });
    }
    if (!kSum && p.norm) {
      square = gpu::warp_sum(square);
      if (lane == 0) squares_of[of] = square;
    }
    __syncwarp();
  };

  int n_fed = 0;
  const auto fill_ring = [&] {
#pragma unroll 1
    for (; n_fed < kAhead; ++n_fed) feed(ring + n_fed * kBrickBytes);
  };
  if constexpr (kSum) {
    gpu::let_next_grid_start();
    if (lane < p.choice.n_chosen()) expert_of_lane = __ldcg(p.choice.experts + first_chosen + lane);
    fill_ring();
    gpu::wait_for_previous_grid();
    load_x(warp, 0);
    if (lane < p.choice.n_chosen()) weight_of_lane = __ldcg(p.choice.weights + first_chosen + lane);
    make_images(warp);
  } else {
    load_norm(warp, 0);
#pragma unroll 1
    for (; n_fed < kAhead && fed_slot == p.choice.n_used && left > 0; ++n_fed) feed(ring + n_fed * kBrickBytes);
    gpu::wait_for_previous_grid();
    float top_score = 0;
    if (chooses) {
      top_score = choose_by_warp<kSegments>(p.choice, p.router, scores, experts,
                                            reinterpret_cast<float*>(shared + p.choice_at));
      if (leaves_choice) {
        if (lane < p.choice.n_chosen()) p.choice.experts[first_chosen + lane] = experts[lane];
        __threadfence();
      }
    }
    // Meanwhile the others make integers, warp 0 also those of the warp that chooses.
#pragma unroll 1
    for (int of = chooses && n_warps > 1 ? n_warps : warp; of < n_warps; of += max(1, n_warps - 1)) {
      load_x(of, 0);
      if (of != warp) load_norm(of, 0);
      make_images(of);
    }
    __syncthreads();
    gpu::let_next_grid_start();
    fill_ring();
    if (chooses && leaves_choice)
      weigh_by_warp(p.choice, p.router, scores, top_score, experts, p.choice.weights + first_chosen);
  }

  // At the end of a batch half a warp adds up the sums of a tile.
  auto* const sums_at = reinterpret_cast<float*>(shared + p.sums_at);  // [kBatch][n_warps][kTileSums]
  const int row = lane % 16;
  ExpertSums<kKind, kStages> sums(lane);
  int ring_at = 0;
  for (int first = 0; first < n_tiles; first += kBatch) {
    const int n_here = min(kBatch, n_tiles - first);
    /// Address at which this lane's row of item `item` of the batch is stored; null: nowhere.
    const auto place_of = [&](int item) -> float* {
      const int tile = int(blockIdx.x) + (first + item) * int(gridDim.x);
      if (item >= n_here) return nullptr;
      if constexpr (kSum) return 16 * tile + row < p.n_out ? token_y + 16 * tile + row : nullptr;
      const int of_slot = 8 * (tile % p.n_row_tiles) + row;
      return row < 8 && of_slot < p.n_out ? token_y + int64_t(slot_of(tile)) * p.n_out + of_slot : nullptr;
    };
    float* place = place_of(2 * warp + lane / 16);
    float old = kSum && p.add && place ? *place : 0;
    for (int i = 0; i < n_here; ++i) {
      sums.begin();
      const uint8_t* image = images_of(warp);
#pragma unroll 1
      for (int j = 0; j < n_mine; ++j, image += kImageBytes) sums.add(ring, ring_at, lane, image, feed);
      sums.store(sums_at + (i * n_warps + warp) * kTileSums, lane);
    }
    __syncthreads();
    float factor = 1;
    if (!kSum && p.norm) {
      float all = 0;
      for (int w = 0; w < n_warps; ++w) all += squares_of[w];
      const float mean = all / float(p.n_in) + p.eps;
      factor = guarded_factor(mean, rsqrtf(mean));
    }
    for (int item = 2 * warp + lane / 16; item - lane / 16 < n_here; item += 2 * n_warps) {  // the same for a warp
      if (item >= 2 * n_warps) {
        place = place_of(item);
        old = kSum && p.add && place ? *place : 0;
      }
      float sum = 0;
      if (item < n_here) {
        const float* const parts = sums_at + item * n_warps * kTileSums + row;
#pragma unroll 4
        for (int w = 0; w < n_warps; ++w) sum += parts[w * kTileSums];
      }
      if constexpr (kSum) {
        if (place) *place = p.add ? old + sum : sum;
      } else {
        sum *= factor;
        const float up = __shfl_down_sync(gpu::kAllLanes, sum, 8);
        if (place) *place = bricks::gated(p.glu, sum, up);
      }
    }
    if (first + kBatch < n_tiles) __syncthreads();
  }
  gpu::copy_wait<0>();
}

/// n_chained: experts whose rows are one long row.
Plan make_plan(const BrickMatrix& w, const IntExpertsCall& call, int n_chained) {
  Plan p{.choice = call.choice,
         .router = call.router,
         .bricks = w.data.as<uint8_t>(),
         .expert_bytes = uint32_t(w.bytes()),
         .n_groups = int(w.n_in / w.brick_columns()),
         .n_row_tiles = int(w.n_tiles()),
         .x = call.x,
         .norm = call.norm_weight,
         .eps = call.norm_eps,
         .n_in = int(w.n_in),
         .n_out = int(w.n_out[0]),
         .glu = call.glu,
         .add = call.add,
         .y = call.y};
  p.n_bricks = n_chained * p.n_groups;
  p.n_tiles = w.paired ? call.choice.n_chosen() * p.n_row_tiles : p.n_row_tiles;
  p.warp_bricks = int(gpu::ceil_div(p.n_bricks, kMostWarps));
  return p;
}

/// Shared memory of a launch. Little of it lets the grid after start beside this one.
struct Launch {
  IntKind kind;
  Plan plan;
  std::span<const std::byte> weights;
  int n_warps, n_tokens;
  int n_blocks;  ///< of a token
  int stages, shared_bytes;

  Launch(const BrickMatrix& w, const IntExpertsCall& call)
      : kind(*find_int_kind(w.format)),
        plan(make_plan(w, call, w.paired ? 1 : call.choice.n_chosen())),
        weights(w.all_data()),
        n_warps(int(gpu::ceil_div(plan.n_bricks, plan.warp_bricks))),
        n_tokens(int(call.choice.n_tokens)),
        n_blocks(blocks_of(plan.n_tiles, n_warps, n_tokens)) {
    plan.to_next = w.paired ? Distance(n_blocks, plan.n_row_tiles) : Distance(n_warps, plan.n_groups);
    // A ring of kDepth leaves no room for the second block of several tokens.
    const bool is_short = plan.warp_bricks * gpu::ceil_div(plan.n_tiles, n_blocks) <= kShallow;
    lay_out(is_super_block_kind(kind)                         ? kOfSuperBlocks
            : is_short || n_tokens > 1 || is_brick_kind(kind) ? kShallow
                                                              : kDepth);
    if (stages == kDepth && !fits()) lay_out(kShallow);
  }
  /// One token's blocks leave room for the grid after; those of several fill the device once, two a multiprocessor.
  static int blocks_of(int n_tiles, int n_warps, int n_tokens) {
    const int most = gpu::multiprocessors() * std::max(1, kMostWarps / n_warps);
    return std::min({n_tiles, most, int(gpu::ceil_div(2 * most, std::max(1, n_tokens)))});
  }
  void lay_out(int n_stages) {
    stages = n_stages;
    int image_bytes = 0;
    with_expert_kind(kind, [&](auto k) { image_bytes = ExpertImage<k()>::kBytes; });
    plan.images_at = n_warps * stages * int_tile_bytes(kind);
    plan.sums_at = plan.images_at + n_warps * plan.warp_bricks * image_bytes;
    plan.choice_at = plan.sums_at + kBatch * n_warps * kTileSums * 4;
    shared_bytes = plan.choice_at + 4 * warp_choice_floats(plan.choice, plan.router.rule);
  }
  /// Beside what is not dynamic.
  bool fits() const { return shared_bytes + 2048 <= gpu::most_shared_bytes(); }

  template <IntKind kKind, bool kSum, int kStages, int kSegments>
  void run(gpu::StreamHandle stream, bool overlap) const {
    const auto kernel = expert_kernel<kKind, kSum, kStages, kSegments>;
    gpu::allow_shared_bytes("shared memory of integer experts", kernel, size_t(shared_bytes));
    gpu::launch(kSum ? "integer sum of experts" : "integer experts", kernel,
                {dim3(unsigned(n_blocks), unsigned(n_tokens)), unsigned(32 * n_warps), size_t(shared_bytes), stream,
                 overlap, weights},
                plan);
  }
  template <bool kSum, int kSegments>
  void run(gpu::StreamHandle stream, bool overlap) const {
    with_expert_kind(kind, [&](auto k) {
      if constexpr (is_super_block_kind(k())) return run<k(), kSum, kOfSuperBlocks, kSegments>(stream, overlap);
      if constexpr (k() == IntKind::int4_g128)
        if (stages == kDepth) return run<k(), kSum, kDepth, kSegments>(stream, overlap);
      if constexpr (!is_super_block_kind(k())) run<k(), kSum, kShallow, kSegments>(stream, overlap);
    });
  }
};

}  // namespace

bool has_int_experts(const BrickMatrix& w, const ExpertChoice& choice, const ExpertRule& rule) {
  return is_int_expert(w) && w.bytes() <= INT32_MAX && choice.n_chosen() <= 32 &&  // a lane of a warp each
         Launch(w, {.choice = choice, .router = {.rule = rule}}).fits();
}

void device_int_experts(gpu::StreamHandle stream, const BrickMatrix& w, const IntExpertsCall& call) {
  bricks::expect(call.x && call.y && call.choice.n_tokens >= 1 && call.choice.n_tokens <= kMostIntTokens &&
                     call.choice.scores && call.choice.experts && call.choice.weights && w.data.bytes() > 0,
                 "integer experts: one token to four, with a choice's memory, x and y");
  bricks::expect(
      has_int_experts(w, call.choice, call.router.rule) && (!w.paired || !call.add) && (w.paired || !call.norm_weight),
      "integer experts: a matrix or a call that they do not serve");
  const Launch launch(w, call);
  if (!w.paired) launch.run<true, kFewSegments>(stream, call.overlap);
  else if (call.choice.n_experts <= 32 * kFewSegments) launch.run<false, kFewSegments>(stream, call.overlap);
  else launch.run<false, kMostSegments>(stream, call.overlap);
}

}  // namespace ridge
