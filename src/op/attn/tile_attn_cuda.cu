// Host side of decode attention, and the second of its two kernels: parts of a list to the result.
#include <algorithm>
#include <bit>
#include <string>

#include "op/attn/tile_split_cuda.h"
#include "op/cache/rotate_warp.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using namespace tiles;

constexpr int kJoinWarps = 8;

/// out[row, head] from the parts of its list, in the order of positions: kJoinWarps sums, each of every kJoinWarps-th
/// part, are added in their order. A block has a head, and each of its warps a sum; or, with many rows, a warp has a
/// head and all its sums (kWarpEach), and the result has the same bits.
template <int kDim, bool kWarpEach>
__global__ void __launch_bounds__(32 * kJoinWarps) attn_join_kernel(const DeviceAttention a, const Cut cut) {
  constexpr int kPer = kDim / 32, kChunks = kMostParts / 32, kBatch = 8, kStep = kWarpEach ? 1 : kJoinWarps;
  constexpr int kSums = kWarpEach ? kJoinWarps : 1;  // of a warp
  static_assert(!kWarpEach || kBatch == kJoinWarps);
  __shared__ float sums[kJoinWarps][kDim];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int head = kWarpEach ? int(blockIdx.x) * kJoinWarps + warp : int(blockIdx.x), row = int(blockIdx.y);
  if (kWarpEach && head >= a.n_heads) return;
  const int kv_head = head / cut.group, in_group = head - kv_head * cut.group;
  const int list = kv_head * cut.head_groups + in_group / kHeads;

  gpu::let_next_grid_start();  // positions are older
  const Parts parts =
      find_parts(a, cut, true, [&](const Parts& p) { return p.row <= row && row < p.row + p.n_tokens; });
  if (parts.of.slot < 0) return;
  const int token = row - parts.row, of_pass = token * cut.group + in_group % kHeads, r = of_pass % kHeads;
  const RotationRow<kPer> table(a.v.rotation, lane);
  gpu::wait_for_previous_grid();
  const int64_t stride = int64_t(cut.lists) * cut.packs * part_floats(kDim);
  const float* const first =
      cut.parts + ((int64_t(parts.first) * cut.lists + list) * cut.packs + of_pass / kHeads) * part_floats(kDim);

  // Values of the first parts are asked for before it is known what they are worth.
  float value[kBatch][kPer], own_top[kBatch];
  const auto load = [&](int from) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = from + j * kStep;
      if (i >= parts.n) break;
      own_top[j] = __ldcg(first + i * stride + r);
      load_row(first + i * stride + 2 * kHeads + r * kDim, lane, value[j]);
    }
  };
  const int first_part = kWarpEach ? 0 : warp;
  load(first_part);
  float tops[kChunks], totals[kChunks], top = kNever, total = 0;
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    const int i = lane + 32 * j;
    tops[j] = i < parts.n ? __ldcg(first + i * stride + r) : kNever;
    totals[j] = i < parts.n ? __ldcg(first + i * stride + kHeads + r) : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kChunks; ++j) top = fmaxf(top, tops[j]);
  top = gpu::warp_max(top);
  const float sink = a.sink_logits ? a.sink_logits[head] * kLog2E : kNever;
  top = fmaxf(top, sink);
#pragma unroll
  for (int j = 0; j < kChunks; ++j) total = fmaf(gpu::fast_exp2(tops[j] - top), totals[j], total);
  total = gpu::warp_sum(total) + (a.sink_logits ? gpu::fast_exp2(sink - top) : 0.0f);

  float own[kSums][kPer] = {};
  for (int from = first_part; from < parts.n; from += kBatch * kStep) {
    if (from > first_part) load(from);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (from + j * kStep >= parts.n) break;
      const float worth = gpu::fast_exp2(own_top[j] - top);
      float(&sum)[kPer] = own[kWarpEach ? j : 0];
#pragma unroll
      for (int i = 0; i < kPer; ++i) sum[i] = fmaf(worth, value[j][i], sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    float sum = own[0][i];
#pragma unroll
    for (int w = 1; w < kSums; ++w) sum += own[w][i];
    sums[warp][lane * kPer + i] = sum;
  }
  if constexpr (kWarpEach) __syncwarp();
  else __syncthreads();
  if (!kWarpEach && warp > 0) return;

  // Out of cache space, where lanes have channels lane + 32 j.
  float x[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    float sum = sums[kWarpEach ? warp : 0][lane + 32 * j];
    if constexpr (!kWarpEach)
#pragma unroll
      for (int w = 1; w < kJoinWarps; ++w) sum += sums[w][lane + 32 * j];
    x[j] = sum / total;
  }
  rotate_row(a.v.rotation, table, false, lane, x);
  if (a.v.centre)
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] += a.v.centre_of(parts.of.slot, kv_head)[lane + 32 * j];
  float* const out = a.out + (int64_t(parts.of.row + token) * a.n_heads + head) * kDim;
#pragma unroll
  for (int j = 0; j < kPer; ++j) out[lane + 32 * j] = x[j];
}

/// How shared memory is used: queries, then a ring of stages for each warp, in whose place the warps' results follow.
struct Rings {
  int warps = 0, stages = 2, stage_bytes = 0, head_dim = 0;

  static constexpr int kBytes = 200 << 10;
  /// For a device whose blocks have most_bytes for the rings; those of Hopper have room for kBytes.
  Rings(const SplitKernel& kernel, const DeviceAttention& a, const TileAttnPlan& plan, int most_bytes)
      : stage_bytes(kernel.tiles_at_a_time * pair_bytes(a.k.kind, a.v.kind, a.k.head_dim)), head_dim(a.k.head_dim) {
    const int bytes = std::min(kBytes, most_bytes);
    warps = kernel.most_warps;
    while (warps > 1 && 2 * warps * stage_bytes > bytes) --warps;
    if (plan.warps > 0) warps = std::min(plan.warps, kernel.most_warps);
    if (plan.stages > 0) stages = plan.stages;
  }
  int bytes() const {
    const int results = head_dim == 64    ? WarpResults<64>::bytes(warps)
                        : head_dim == 128 ? WarpResults<128>::bytes(warps)
                                          : WarpResults<256>::bytes(warps);
    return std::max(warps * stages * stage_bytes, results);
  }
  /// Halves the warps where two blocks then run on a multiprocessor at once, query_bytes of each included: one reads
  /// tiles while the other begins or ends.
  void make_room_for_two(int query_bytes) {
    constexpr int kReserved = 1024;  // of every block, by the device
    Rings half = *this;
    half.warps = warps / 2;
    if (warps >= 4 && 2 * (query_bytes + half.bytes() + kReserved) <= gpu::most_shared_bytes() + kReserved)
      *this = half;
  }
};

/// Bytes of shared memory in front of the rings: queries, and what the terms of a turning centre take.
int query_bytes(const SplitKernel& kernel, const KvTiles& k) {
  const auto bytes = [&]<int kDim>() {
    const int terms = CentreTerms<kDim>::kWeightBytes + TermRounds(kernel.most_warps, kernel.tiles_at_a_time).bytes();
    return kernel.packs * Queries<kDim>::kBytes + (k.turn.n_pairs > 0 ? terms : 0);
  };
  return k.head_dim == 64    ? bytes.template operator()<64>()
         : k.head_dim == 128 ? bytes.template operator()<128>()
                             : bytes.template operator()<256>();
}
/// Bytes of rings at most: 1 KiB is left for variables that are not dynamic.
int most_ring_bytes(const SplitKernel& kernel, const KvTiles& k) {
  return gpu::most_shared_bytes() - 1024 - query_bytes(kernel, k);
}

const SplitKernel& kernel_for(const KvTiles& k, TileKind v) {
  const int head_dim = k.head_dim;
  const auto kernels = head_dim == 64    ? split_kernels_64()
                       : head_dim == 128 ? split_kernels_128()
                                         : split_kernels_256();
  if (k.attention_window > 0) return kernels.back();
  const bool turns = k.turn.n_pairs > 0;
  return *std::find_if(kernels.begin(), kernels.end() - 2, [&](const SplitKernel& kernel) {
    return kernel.may_turn == turns && kernel.k == k.kind && kernel.v == v;
  });
}

int lists_of(int n_heads, int n_kv_heads) { return n_kv_heads * int(gpu::ceil_div(n_heads / n_kv_heads, kHeads)); }

/// Parts of a list when there is one row: so many that all blocks have one.
int budget_of(int n_rows, int lists, int blocks) {
  const int64_t rounds = gpu::ceil_div(int64_t(n_rows) * lists, blocks);
  return int(std::clamp<int64_t>(rounds * blocks / lists, 1, kMostParts));
}
/// Rows of blocks, each as many as there are lists. Shares of several rows are rounded down, but to one at least; alone
/// each row may take the budget.
int64_t block_rows(int n_rows, int budget, bool alone) {
  if (alone) return int64_t(n_rows) * budget;
  return n_rows == 1 ? budget : budget + n_rows;
}

}  // namespace

int tile_attn_blocks() { return gpu::multiprocessors(); }

int64_t tile_attn_scratch_bytes(int n_rows, int n_heads, int n_kv_heads, int head_dim, int blocks, bool alone) {
  // Fewer rows may have more parts of a list.
  int64_t most = 0;
  const int lists = lists_of(n_heads, n_kv_heads);
  for (int n = alone ? n_rows : 1; n <= n_rows; ++n)
    most = std::max(most, block_rows(n, budget_of(n, lists, blocks), alone));
  return most * lists * kMostPacks * part_floats(head_dim) * 4;
}

bool can_run_tile_attn(const KvTiles& k, const KvTiles& v) {
  const SplitKernel& kernel = kernel_for(k, v.kind);
  return 2 * kernel.tiles_at_a_time * pair_bytes(k.kind, v.kind, k.head_dim) <= most_ring_bytes(kernel, k);
}

void tile_attn(gpu::StreamHandle stream, const DeviceAttention& a, std::byte* scratch, const TileAttnPlan& plan) {
  if (a.rows.n == 0) return;
  const int head_dim = a.k.head_dim;
  const SplitKernel& kernel = kernel_for(a.k, a.v.kind);
  Cut cut;
  cut.lists = lists_of(a.n_heads, a.k.n_kv_heads);
  Rings rings(kernel, a, plan, most_ring_bytes(kernel, a.k));
  constexpr int kManyBlocks = 3;  // one after another on a multiprocessor
  if (plan.warps == 0 && !plan.alone && cut.lists * a.rows.n >= kManyBlocks * gpu::multiprocessors())
    rings.make_room_for_two(query_bytes(kernel, a.k));
  cut.budget = budget_of(a.rows.n, cut.lists, plan.blocks > 0 ? plan.blocks : tile_attn_blocks());
  cut.group = a.group();
  cut.head_groups = int(gpu::ceil_div(cut.group, kHeads));
  cut.packs = kernel.packs;
  cut.alone = plan.alone;
  if (plan.long_rows > 0) cut.long_rows = plan.long_rows;
  if (a.k.attention_window == 0) {
    cut.pass = std::max(1, kHeads / cut.group);
    cut.long_pass = std::max(1, cut.packs * kHeads / cut.group);
    if (cut.group > kHeads) cut.long_pass = 1;  // a list has a part of a token's heads
  }
  // A part keeps all warps busy, unless the plan says otherwise; where warps take single tiles of short parts, four: at
  // 512 positions more blocks gain more than sums of more parts cost.
  const int busy = kernel.tiles_at_a_time > 1 ? 4 : rings.warps;
  const int least = plan.least_tiles > 0 ? plan.least_tiles : busy;
  cut.least_shift = std::bit_width(unsigned(least)) - 1;
  cut.stages = rings.stages;
  cut.parts = reinterpret_cast<float*>(scratch);
  kernel.launch({dim3(unsigned(cut.lists), unsigned(block_rows(a.rows.n, cut.budget, plan.alone))),
                 unsigned(32 * rings.warps), size_t(query_bytes(kernel, a.k) + rings.bytes()), stream, plan.overlap},
                a, cut);
  // A warp a head where blocks of a head would not all run at once.
  const bool warp_each = a.n_heads * a.rows.n > kJoinWarps / 2 * gpu::multiprocessors();
  const auto join_of = [&]<int kDim>() {
    return warp_each ? attn_join_kernel<kDim, true> : attn_join_kernel<kDim, false>;
  };
  const auto join = head_dim == 64    ? join_of.template operator()<64>()
                    : head_dim == 128 ? join_of.template operator()<128>()
                                      : join_of.template operator()<256>();
  const int blocks = warp_each ? int(gpu::ceil_div(a.n_heads, kJoinWarps)) : a.n_heads;
  gpu::launch("attention parts", join, {dim3(unsigned(blocks), unsigned(a.rows.n)), 32 * kJoinWarps, 0, stream, true},
              a, cut);
}

}  // namespace ridge
