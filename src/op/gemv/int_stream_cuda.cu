#include <string>
#include <type_traits>

#include "op/gemv/int_brick_sums.h"
#include "op/gemv/int_kernels_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 32 * kIntMostWarps;

/// How a block's warps share its slots (one or two groups of a tile of rows).
struct Stretches {
  IntDivisor row_slots;     // of the block's part of a row
  IntShares slots, slots1;  // of warps, in a block of Work::rows.each, and of one more tiles of rows
};

/// A block sums some tiles of rows, of which it takes one part of the columns; of all its slots a warp takes a stretch.
/// The block of these rows that ends last adds the sums of the others to its own.
struct Work {
  IntJob job;
  IntShares rows;                     // of blocks
  IntShares parts;                    // of a row's slots
  Stretches of[2];                    // of a part of parts.each slots, and of one more
  IntDivisor split, n_tokens, quads;  // parts; kIntEnds tokens are a quad
};

/// A block copies an image of n_values and n_scales vectors. Its loads queue behind the block's weights, so as many as
/// there is room for are under way at a time.
__device__ void copy_image(const IntImage& from, const IntImage& to, int n_values, int n_scales, int n_tokens) {
  constexpr int kHeld = 8;
  const int thread = int(threadIdx.x), n_threads = int(blockDim.x);
  const auto* const values = reinterpret_cast<const uint4*>(from.values);
  const auto* const scales = reinterpret_cast<const float4*>(from.scales);
  const float factor = thread < n_tokens ? from.factors[thread] : 0.0f;
  const float4 scale = thread < n_scales ? scales[thread] : float4();
  for (int first = thread; first < n_values; first += kHeld * n_threads) {
    uint4 held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (first + i * n_threads < n_values) held[i] = values[first + i * n_threads];
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (first + i * n_threads < n_values) reinterpret_cast<uint4*>(to.values)[first + i * n_threads] = held[i];
  }
  if (thread < n_tokens) to.factors[thread] = factor;
  for (int i = thread + n_threads; i < n_tokens; i += n_threads) to.factors[i] = from.factors[i];
  if (thread < n_scales) reinterpret_cast<float4*>(to.scales)[thread] = scale;
  for (int i = thread + n_threads; i < n_scales; i += n_threads) reinterpret_cast<float4*>(to.scales)[i] = scales[i];
}

/// kColumns: eights of columns, 1, 2, 4 or 8; of bricks, the most tokens: 1, 2, 4, 8 or 16. kDepth: slots of a ring.
/// kOne: a single token, which every block quantises; kColumns is 1.
template <IntKind kKind, int kColumns, int kDepth, bool kOne>
__global__ void __launch_bounds__(kThreads, kColumns == 1 ? 2 : 1) int_stream_kernel(const __grid_constant__ Work w) {
  constexpr bool kBricks = is_brick_kind(kKind);
  // One eight of ternary columns has no registers for several tokens' ends at a time.
  constexpr bool kQuads = !kOne && (kKind != IntKind::ternary || kColumns > 1);
  constexpr int kTiles = kBricks ? 1 : kColumns;
  constexpr int kTileBytes = int_tile_bytes(kKind), kSlotGroups = int_slot_groups(kKind);
  constexpr int kSlotBytes = kSlotGroups * kTileBytes;
  using Sum = std::conditional_t<kKind == IntKind::ternary, int, float>;

  const IntTurn turn = w.job.tokens.turn;
  if (!kOne || turn != IntTurn::first) gpu::let_next_grid_start();
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), n_warps = int(blockDim.x / 32);
  const int all_groups = w.job.tokens.n_groups, split = kQuads ? int(w.split.divisor) : 1;
  const int block = kQuads ? w.split.quotient(int(blockIdx.x)) : int(blockIdx.x);
  [[maybe_unused]] const int part = kQuads ? int(blockIdx.x) - block * split : 0;
  const int first_group = kQuads ? w.parts.begin(part) * kSlotGroups : 0;
  const Stretches& stretches = w.of[kQuads && part < w.parts.longer];
  const int row_slots = int(stretches.row_slots.divisor);
  const int n_groups = kQuads ? min(row_slots * kSlotGroups, all_groups - first_group) : all_groups;
  const int first_row = w.rows.begin(block), n_rows = w.rows.count(block);
  const IntShares& slots = n_rows > w.rows.each ? stretches.slots1 : stretches.slots;
  const int begin = slots.begin(warp);
  int left = slots.count(warp), row = stretches.row_slots.quotient(begin), slot = begin - row * row_slots;

  // Every warp has its own ring of slots, of which a lane copies and reads its own bytes; only scales cross lanes.
  constexpr bool kCrossLanes = kKind != IntKind::ternary;
  uint8_t* const ring = shared + warp * kDepth * kSlotBytes + 16 * lane;
  const uint8_t* from =
      w.job.tiles + 16 * lane + (int64_t(first_row + row) * all_groups + first_group + slot * kSlotGroups) * kTileBytes;
  const int64_t to_next_row = int64_t(all_groups - n_groups) * kTileBytes;
  int to_feed = left, fed_slot = slot;
  const auto end_slot = [&] {
    if (++fed_slot == row_slots) fed_slot = 0, from += to_next_row;
  };
  const auto feed = [&](uint8_t* to) {
    if constexpr (kBricks) {
      const bool wanted = to_feed-- > 0;
#pragma unroll
      for (int i = 0; i < kSlotBytes; i += 512)
        gpu::copy_async16_if(wanted && (i + 512 <= kSlotBytes || 16 * lane + i < kSlotBytes), to + i, from + i);
      from += kSlotBytes;
      if constexpr (kQuads) end_slot();
    } else if constexpr (kKind == IntKind::int4_g128) {
      const bool wanted = to_feed-- > 0;
      gpu::copy_async16_if(wanted, to, from);
      gpu::copy_async16_if(wanted, to + 512, from + 512);
      gpu::copy_async16_if(wanted && lane < 2, to + 1024, from + 1024);
      from += kSlotBytes;
      if constexpr (kQuads) end_slot();
    } else if (to_feed > 0) {  // the last slot of a row may have one group
      --to_feed;
      const bool two = 2 * fed_slot + 1 < n_groups;
      gpu::copy_async16(to, from);
      if (two) gpu::copy_async16(to + 512, from + 512);
      from += two ? kSlotBytes : kTileBytes;
      end_slot();
    }
    gpu::copy_commit();
  };
  // Weights do not depend on the grid before. A tile is read into registers, then its slot fed again; of bricks the
  // slot that was used before.
  for (int i = 0; i < kDepth - kBricks; ++i) feed(ring + i * kSlotBytes);

  const IntImage mine = {shared + w.job.at.values, reinterpret_cast<float*>(shared + w.job.at.scales),
                         reinterpret_cast<float*>(shared + w.job.at.factors)};
  const int n_tokens = kOne ? 1 : w.job.tokens.n_tokens, column_pitch = w.job.tokens.column_pitch;
  if constexpr (kOne && kKind == IntKind::ternary) {
    quantize_ternary<true>(w.job.tokens, 0, mine, reinterpret_cast<double*>(shared + w.job.at.squares),
                           reinterpret_cast<unsigned*>(shared + w.job.at.tops));
  } else if constexpr (kOne) {
    auto* const squares = reinterpret_cast<float*>(shared + w.job.at.squares);
    if (w.job.tokens.norm) quantize_one<kKind, true>(w.job.tokens, mine, squares);
    else quantize_one<kKind, false>(w.job.tokens, mine, squares);
    w.job.tokens.wait();  // of warps that had nothing to quantise
    if (turn == IntTurn::first) gpu::let_next_grid_start();
  } else if (w.job.image.values) {
    gpu::wait_for_previous_grid();
    IntImage image = w.job.image;
    image.values += int64_t(first_group) * column_pitch * int_group(kKind);
    image.scales += int64_t(first_group) * w.job.tokens.scale_pitch;
    copy_image(image, mine, n_groups * column_pitch * (int_group(kKind) / 16),
               kKind == IntKind::ternary ? 0 : n_groups * w.job.tokens.scale_pitch / 4, n_tokens);
    __syncthreads();
  } else if constexpr (kKind != IntKind::ternary) {  // which a kernel before quantises
    quantize_steps<kKind>(w.job.tokens, mine, reinterpret_cast<float*>(shared + w.job.at.squares));
    gpu::wait_for_previous_grid();  // for warps that had nothing to quantise
  }

  // At the end half a warp adds up the 16 sums of a token in a tile of rows.
  const int n_items = n_rows * n_tokens, out_row = lane % 16;
  int item = 2 * warp + lane / 16, item_row = kOne ? item : w.n_tokens.quotient(item),
      token = kOne ? 0 : item - item_row * n_tokens;
  const auto ends_of_item = [&] {
    return item < n_items ? load_ends<kKind>(w.job.target, first_row + item_row, token, out_row) : Ends{};
  };
  Ends ends = ends_of_item();

  // Warp w's part of row r's sums lies at w + r: either grows by one where a stretch or a row ends.
  auto* const sums_at = reinterpret_cast<Sum*>(shared + w.job.at.sums);
  auto* const first_warp = reinterpret_cast<int*>(shared + w.job.at.spans);
  auto* const last_warp = first_warp + n_rows;
  const int n_columns = n_tokens * w.job.tokens.planes, n_tiles = (n_columns + 7) / 8;
  const Columns columns = Columns::of_lane<kTiles>(lane, n_columns);
  const int group_values = column_pitch * int_group(kKind);
  const int slot_scales = kBricks ? w.job.tokens.scale_pitch : 8 * kTiles;
  auto sums = [&] {
    if constexpr (kBricks) return Sums<kKind, kColumns>(lane, n_tokens);
    else return Sums<kKind, kColumns>();
  }();
  int ring_at = 0;
  while (left > 0) {
    sums.begin();
    const uint8_t* values = mine.values + slot * kSlotGroups * group_values;
    const float* scales = mine.scales + slot * slot_scales + (kBricks ? 0 : lane % 4 * 2);
    if (lane == 0 && slot == 0) first_warp[row] = warp;
    if (lane == 0 && slot + left >= row_slots) last_warp[row] = warp;
    const int end = min(slot + left, row_slots);
    left -= end - slot;
    for (; slot < end; ++slot) {
      gpu::copy_wait<kDepth - 1 - kBricks>();
      if constexpr (kCrossLanes) __syncwarp();
      if constexpr (kBricks) {
        feed(ring + (ring_at == 0 ? (kDepth - 1) * kSlotBytes : ring_at - kSlotBytes));
        sums.add(ring + ring_at - 16 * lane, values, scales, lane);
      } else {
        Tile<kKind> weights[kSlotGroups];
#pragma unroll
        for (int i = 0; i < kSlotGroups; ++i) weights[i].load(ring + ring_at + i * kTileBytes, lane);
        if constexpr (kCrossLanes) __syncwarp();
        feed(ring + ring_at);
        sums.add(weights[0], values, scales, columns, n_tiles);
        if constexpr (kSlotGroups == 2)
          if (2 * slot + 1 < n_groups) sums.add(weights[1], values + group_values, scales, columns, n_tiles);
      }
      ring_at = ring_at == (kDepth - 1) * kSlotBytes ? 0 : ring_at + kSlotBytes;
      values += kSlotGroups * group_values;
      scales += slot_scales;
    }
    sums.store(sums_at + (warp + row) * n_tokens * kIntSumPitch, w.job.tokens.planes, n_tokens, lane);
    slot = 0;
    ++row;
  }
  __syncthreads();

  // Several tokens at a time, in fewer rounds: an end is a chain of loads.
  if constexpr (kQuads)
    if (n_items > 2 * n_warps || split > 1) {
      const int n_quads = int(w.quads.divisor);
      /// body(row of the block, first token, how many tokens) for quads of half warps, some of no tokens.
      const auto for_quads = [&](const auto& body) {
        for (int first = 2 * warp; first < n_rows * n_quads; first += 2 * n_warps) {  // the same for all lanes
          const int quad = first + lane / 16, of_row = w.quads.quotient(quad);
          const int at = kIntEnds * (quad - of_row * n_quads);
          body(of_row, at, of_row < n_rows ? min(n_tokens - at, kIntEnds) : 0);
        }
      };
      const auto add_warps = [&](int of_row, int at, int n_here, Sum(&sum)[kIntEnds]) {
        if (n_here <= 0) return;
        const Sum* one = sums_at + ((first_warp[of_row] + of_row) * n_tokens + at) * kIntSumPitch + out_row;
        const int n_warps_here = last_warp[of_row] - first_warp[of_row] + 1;
#pragma unroll 2
        for (int i = 0; i < n_warps_here; ++i)
#pragma unroll
          for (int k = 0; k < kIntEnds; ++k)
            if (k < n_here) sum[k] += one[(i * n_tokens + k) * kIntSumPitch];
      };
      const auto part_sums = [&](int of_row, int at) {  // of the first part
        return static_cast<Sum*>(w.job.part_sums) +
               (int64_t(first_row + of_row) * split * n_tokens + at) * kIntTileRows + out_row;
      };
      const auto add_parts = [&](int of_row, int at, int n_here, Sum(&sum)[kIntEnds]) {
        const Sum* one = part_sums(of_row, at);
#pragma unroll 2
        for (int i = 0; i < split; ++i)
#pragma unroll
          for (int k = 0; k < kIntEnds; ++k)
            if (k < n_here) sum[k] += __ldcg(one + (i * n_tokens + k) * kIntTileRows);
      };
      const auto write_all = [&](const auto& add) {
        for_quads([&](int of_row, int at, int n_here) {
          Ends all[kIntEnds];
          Sum sum[kIntEnds] = {};
          const int tile = first_row + of_row;
#pragma unroll
          for (int k = 0; k < kIntEnds; ++k)
            all[k] = k < n_here ? load_ends<kKind>(w.job.target, tile, at + k, out_row) : Ends{};
          add(of_row, at, n_here, sum);
#pragma unroll
          for (int k = 0; k < kIntEnds; ++k) {
            const float p = k < n_here ? product(sum[k], mine.factors[at + k], all[k].row_scale) : 0.0f;
            write_outputs<kKind>(w.job.target, tile, k < n_here ? at + k : n_tokens, out_row, p, all[k]);
          }
        });
      };
      if (split == 1) return write_all(add_warps);
      for_quads([&](int of_row, int at, int n_here) {
        Sum sum[kIntEnds] = {};
        add_warps(of_row, at, n_here, sum);
        Sum* const to = part_sums(of_row, at) + part * n_tokens * kIntTileRows;
#pragma unroll
        for (int k = 0; k < kIntEnds; ++k)
          if (k < n_here) to[k * kIntTileRows] = sum[k];
      });
      __threadfence();
      __syncthreads();
      int* const is_last = first_warp;  // which nobody reads any more
      if (threadIdx.x == 0) {
        *is_last = atomicAdd(w.job.arrivals + block, 1u) == unsigned(split - 1);
        if (*is_last) w.job.arrivals[block] = 0;
      }
      __syncthreads();
      if (!*is_last) return;
      __threadfence();
      return write_all(add_parts);
    }

  for (int first = 2 * warp; first < n_items; first += 2 * n_warps) {  // the same for all lanes
    if (first != 2 * warp) {
      item = first + lane / 16, item_row = kOne ? item : w.n_tokens.quotient(item);
      token = kOne ? 0 : item - item_row * n_tokens;
      ends = ends_of_item();
    }
    float p = 0;
    if (item < n_items) {
      Sum sum = 0;
      const Sum* part = sums_at + ((first_warp[item_row] + item_row) * n_tokens + token) * kIntSumPitch + out_row;
      const int n_parts = last_warp[item_row] - first_warp[item_row] + 1;
      if constexpr (kOne) {
        for (int i = 0; i < n_parts; i += 8) {  // all reads of eight at once
          Sum of[8];
#pragma unroll
          for (int k = 0; k < 8; ++k) of[k] = i + k < n_parts ? part[(i + k) * kIntSumPitch] : 0;
#pragma unroll
          for (int k = 0; k < 8; ++k) sum += of[k];
        }
      } else {
#pragma unroll 4
        for (int i = 0; i < n_parts; ++i) sum += part[i * n_tokens * kIntSumPitch];
      }
      p = product(sum, mine.factors[token], ends.row_scale);
    }
    write_outputs<kKind>(w.job.target, first_row + item_row, item < n_items ? token : n_tokens, out_row, p, ends);
  }
  if (kOne && turn == IntTurn::second) gpu::wait_for_previous_grid();  // so that this grid's end is the end of both
}

template <IntKind kKind, int kColumns, int kDepth, bool kOne>
void launch_kernel(const Work& w, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  auto* const kernel = int_stream_kernel<kKind, kColumns, kDepth, kOne>;
  gpu::allow_shared_bytes("int_gemv", kernel, size_t(w.job.at.bytes));
  gpu::launch("int_gemv", kernel,
              {unsigned(plan.blocks * plan.split), unsigned(32 * plan.warps), size_t(w.job.at.bytes), stream, overlap,
               w.job.weights(kKind)},
              w);
}

template <IntKind kKind, int kColumns, bool kOne>
void launch_depth(const Work& w, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  if (plan.depth == 4) return launch_kernel<kKind, kColumns, int_ring_slots(kKind, 4), kOne>(w, plan, stream, overlap);
  if constexpr (kOne || !is_brick_kind(kKind))
    if (plan.depth == 6)
      return launch_kernel<kKind, kColumns, int_ring_slots(kKind, 6), kOne>(w, plan, stream, overlap);
  throw Error(ErrorKind::failure, "device_int_gemv: no kernel of depth " + std::to_string(plan.depth));
}

template <IntKind kKind>
void launch_tiles(const Work& w, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  if (plan.tiles_of_8 == 1 && w.job.tokens.n_tokens == 1 && plan.quantize_inside)
    return launch_depth<kKind, 1, true>(w, plan, stream, overlap);
  if (plan.tiles_of_8 == 1) return launch_depth<kKind, 1, false>(w, plan, stream, overlap);
  if (plan.tiles_of_8 == 2) return launch_depth<kKind, 2, false>(w, plan, stream, overlap);
  if (plan.tiles_of_8 == 4) return launch_depth<kKind, 4, false>(w, plan, stream, overlap);
  launch_depth<kKind, 8, false>(w, plan, stream, overlap);
}

template <IntKind kKind>
void launch_bricks(const Work& w, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  const int n_tokens = w.job.tokens.n_tokens;
  if (n_tokens == 1 && plan.quantize_inside) return launch_depth<kKind, 1, true>(w, plan, stream, overlap);
  if (n_tokens <= 2) return launch_depth<kKind, 2, false>(w, plan, stream, overlap);
  if (n_tokens <= 4) return launch_depth<kKind, 4, false>(w, plan, stream, overlap);
  if (n_tokens <= 8) return launch_depth<kKind, 8, false>(w, plan, stream, overlap);
  launch_depth<kKind, 16, false>(w, plan, stream, overlap);
}

}  // namespace

void launch_int_stream(IntKind kind, const IntJob& job, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  const IntShares rows(job.target.n_row_tiles, plan.blocks);
  const IntShares parts(int_row_slots(kind, job.tokens.n_groups), plan.split);
  const auto stretches = [&](int64_t row_slots) {
    return Stretches{IntDivisor(row_slots), IntShares(rows.each * row_slots, plan.warps),
                     IntShares((rows.each + 1) * row_slots, plan.warps)};
  };
  const Work w = {.job = job,
                  .rows = rows,
                  .parts = parts,
                  .of = {stretches(parts.each), stretches(parts.each + 1)},
                  .split = IntDivisor(plan.split),
                  .n_tokens = IntDivisor(job.tokens.n_tokens),
                  .quads = IntDivisor((job.tokens.n_tokens + kIntEnds - 1) / kIntEnds)};
  switch (kind) {
    case IntKind::int4_g128: return launch_tiles<IntKind::int4_g128>(w, plan, stream, overlap);
    case IntKind::ternary: return launch_tiles<IntKind::ternary>(w, plan, stream, overlap);
    case IntKind::q4_k: return launch_bricks<IntKind::q4_k>(w, plan, stream, overlap);
    case IntKind::q5_k: return launch_bricks<IntKind::q5_k>(w, plan, stream, overlap);
    case IntKind::q6_k: return launch_bricks<IntKind::q6_k>(w, plan, stream, overlap);
    case IntKind::q8_0: return launch_bricks<IntKind::q8_0>(w, plan, stream, overlap);
    case IntKind::q4_0: return launch_bricks<IntKind::q4_0>(w, plan, stream, overlap);
    case IntKind::q4_1: return launch_bricks<IntKind::q4_1>(w, plan, stream, overlap);
    case IntKind::q5_0: return launch_bricks<IntKind::q5_0>(w, plan, stream, overlap);
    case IntKind::q5_1: return launch_bricks<IntKind::q5_1>(w, plan, stream, overlap);
    case IntKind::iq4_nl: return launch_bricks<IntKind::iq4_nl>(w, plan, stream, overlap);
  }
}

}  // namespace ridge
