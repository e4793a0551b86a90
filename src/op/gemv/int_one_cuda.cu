// The product of int4_g128 weights and one token, where a block has few slots: nothing but a warp's own activations comes
// between the grid before and its sums.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "op/gemv/int_kernels_cuda.h"

namespace ridge {
namespace {

constexpr int kMostSlots = 8;  // of a warp, all of which are on their way at once
constexpr int kSlotBytes = int_tile_bytes(IntKind::int4_g128), kSumRow = kIntTileRows;

/// A block sums some tiles of rows. Of each, warp w has groups w, w + n_warps and so on.
struct Work {
  IntJob job;
  IntShares rows;  // of blocks
  int slots;       // of a warp's ring
  int early;       // of them asked for before the grid before has ended
  int values, scales, sums, squares;  // offsets in shared memory
};

/// A warp has kOwn groups at most.
template <int kOwn>
__global__ void __launch_bounds__(32 * kIntMostWarps, kOwn <= 2 ? 2 : 1)
    int_one_kernel(const __grid_constant__ Work w) {
  gpu::let_next_grid_start();
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), n_warps = int(blockDim.x / 32);
  const IntTokens& in = w.job.tokens;
  const int n_groups = in.n_groups;
  const int first_row = w.rows.begin(int(blockIdx.x)), n_rows = w.rows.count(int(blockIdx.x));

  uint8_t* const ring = shared + warp * w.slots * kSlotBytes + 16 * lane;
  const uint8_t* const tiles = w.job.tiles + (int64_t(first_row) * n_groups + warp) * kSlotBytes + 16 * lane;
  const auto feed = [&](int slot) {
    const int row = slot / kOwn, group = warp + slot % kOwn * n_warps;
    const bool wanted = row < n_rows && group < n_groups;
    uint8_t* const to = ring + slot * kSlotBytes;
    const uint8_t* const from = tiles + (row * n_groups + slot % kOwn * n_warps) * kSlotBytes;
    gpu::copy_async16_if(wanted, to, from);
    gpu::copy_async16_if(wanted, to + 512, from + 512);
    gpu::copy_async16_if(wanted && lane < 2, to + 1024, from + 1024);
    gpu::copy_commit();
  };
#pragma unroll
  for (int slot = 0; slot < kMostSlots; ++slot)
    if (slot < w.early) feed(slot);  // weights do not depend on the grid before

  float4 x[kOwn], weight[kOwn];
  const float* const norm = in.norm;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (norm && warp + i * n_warps < n_groups) weight[i] = load_group(norm, warp + i * n_warps);
  gpu::wait_for_previous_grid();
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (warp + i * n_warps < n_groups) x[i] = load_group(in.x, warp + i * n_warps);
#pragma unroll
  for (int slot = 0; slot < kMostSlots; ++slot)
    if (slot >= w.early) feed(slot);

  // At the end half a warp adds up the 16 sums of a tile of rows.
  const int item = 2 * warp + lane / 16, out_row = lane % 16;
  const Ends ends =
      item < n_rows ? load_ends<IntKind::int4_g128>(w.job.target, first_row + item, 0, out_row) : Ends{};

  uint8_t* const values = shared + w.values;
  auto* const scales = reinterpret_cast<float*>(shared + w.scales);
  auto* const squares = reinterpret_cast<float*>(shared + w.squares);
  const int group_values = in.planes * kIntGroup;
  float square = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int group = warp + i * n_warps;
    if (group >= n_groups) break;
    float4 v = x[i];
    if (norm) {
      square = __fmaf_rn(v.x, v.x, __fmaf_rn(v.y, v.y, __fmaf_rn(v.z, v.z, __fmaf_rn(v.w, v.w, square))));
      v = make_float4(v.x * weight[i].x, v.y * weight[i].y, v.z * weight[i].z, v.w * weight[i].w);
    }
    quantize_group(v, 0, in.planes, values + group * group_values, scales + group * 8);
  }
  __syncwarp();

  const Columns columns = Columns::of_lane<1>(lane, in.planes);
  uint4 b0[kOwn <= 2 ? kOwn : 1], b1[kOwn <= 2 ? kOwn : 1];
  float2 step[kOwn <= 2 ? kOwn : 1];
  const auto load_columns = [&](int group, uint4& first, uint4& second, float2& steps) {
    first = *reinterpret_cast<const uint4*>(values + group * group_values + columns.first);
    second = *reinterpret_cast<const uint4*>(values + group * group_values + columns.second);
    steps = *reinterpret_cast<const float2*>(scales + group * 8 + lane % 4 * 2);
  };
  if constexpr (kOwn <= 2)
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (warp + i * n_warps < n_groups) load_columns(warp + i * n_warps, b0[i], b1[i], step[i]);

  auto* const sums_at = reinterpret_cast<float*>(shared + w.sums);
  const int row_sums = n_warps * kSumRow + kSumRow;  // half warps then read different banks
  Sums<IntKind::int4_g128, 1> sums;
#pragma unroll
  for (int slot = 0; slot < kMostSlots; ++slot) {
    const int row = slot / kOwn, i = slot % kOwn, group = warp + i * n_warps;
    if (row >= n_rows) break;
    if (i == 0) sums = {};
    if (group < n_groups) {
      if (slot == 0) gpu::copy_wait<kMostSlots - 1>();
      if (slot == 1) gpu::copy_wait<kMostSlots - 2>();
      if (slot == 2) gpu::copy_wait<kMostSlots - 3>();
      if (slot == 3) gpu::copy_wait<kMostSlots - 4>();
      if (slot == 4) gpu::copy_wait<kMostSlots - 5>();
      if (slot == 5) gpu::copy_wait<kMostSlots - 6>();
      if (slot == 6) gpu::copy_wait<kMostSlots - 7>();
      if (slot == 7) gpu::copy_wait<0>();
      __syncwarp();
      Tile<IntKind::int4_g128> tile;
      tile.load(ring + slot * kSlotBytes, lane);
      sums.add(tile, 1, [&](int, uint4& first, uint4& second, float2& steps) {
        if constexpr (kOwn <= 2) first = b0[i], second = b1[i], steps = step[i];
        else load_columns(group, first, second, steps);
      });
    }
    if (i == kOwn - 1) store_eight(sums.of[0], in.planes, 1, lane, sums_at + row * row_sums + warp * kSumRow);
  }
  if (norm) {
    square = gpu::warp_sum(square);
    if (lane == 0) squares[warp] = square;
  }
  __syncthreads();

  if (2 * warp >= n_rows) return;
  float part[kIntMostWarps], all_squares = 0, sum = 0;
#pragma unroll
  for (int k = 0; k < kIntMostWarps; ++k)
    part[k] = k < n_warps && item < n_rows ? sums_at[item * row_sums + k * kSumRow + out_row] : 0.0f;
  if (norm)
#pragma unroll
    for (int k = 0; k < kIntMostWarps; ++k) all_squares += k < n_warps ? squares[k] : 0.0f;
#pragma unroll
  for (int k = 0; k < kIntMostWarps; k += 4) sum += (part[k] + part[k + 1]) + (part[k + 2] + part[k + 3]);
  const float factor = norm ? rsqrtf(all_squares / float(n_groups * kIntGroup) + in.eps) : 1.0f;
  write_outputs<IntKind::int4_g128>(w.job.target, first_row + item, item < n_rows ? 0 : 1, out_row,
                                    product(sum, factor, 0.0f), ends);
}

template <int kOwn>
void launch_kernel(const Work& w, int blocks, int warps, size_t bytes, gpu::StreamHandle stream, bool overlap) {
  gpu::allow_shared_bytes("int_gemv", int_one_kernel<kOwn>, bytes);
  gpu::launch("int_gemv", int_one_kernel<kOwn>, {unsigned(blocks), unsigned(32 * warps), bytes, stream, overlap}, w);
}

int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

}  // namespace

bool launch_int_one(const IntJob& job, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  static const int wanted = from_environment("RIDGE_ONE", 1), early = from_environment("RIDGE_EARLY", kMostSlots);
  const int n_groups = job.tokens.n_groups, own = (n_groups + kIntMostWarps - 1) / kIntMostWarps;
  const int width = own <= 2 ? own : own <= 4 ? 4 : 8;
  if (!wanted || own > 8 || width * plan.rows > kMostSlots) return false;
  const int slots = width * (plan.rows - 1) + own;
  const int warps = (n_groups + own - 1) / own;
  if (plan.rows > 2 * warps) return false;  // half a warp adds up a tile of rows
  Work w = {.job = job, .rows = IntShares(job.target.n_row_tiles, plan.blocks), .slots = slots, .early = early};
  int at = warps * slots * kSlotBytes;
  const auto take = [&](int bytes) { return std::exchange(at, at + (bytes + 15) / 16 * 16); };
  w.values = take(n_groups * job.tokens.planes * kIntGroup);
  w.scales = take(n_groups * 32);
  w.sums = take(plan.rows * (warps + 1) * kSumRow * 4);
  w.squares = take(4 * kIntMostWarps);
  if (width == 1) launch_kernel<1>(w, plan.blocks, warps, size_t(at), stream, overlap);
  else if (width == 2) launch_kernel<2>(w, plan.blocks, warps, size_t(at), stream, overlap);
  else if (width == 4) launch_kernel<4>(w, plan.blocks, warps, size_t(at), stream, overlap);
  else launch_kernel<8>(w, plan.blocks, warps, size_t(at), stream, overlap);
  return true;
}

}  // namespace ridge
