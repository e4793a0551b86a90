#include <type_traits>

#include "op/gemv/int_kernels_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 32 * kIntMostWarps, kSteps = kIntChunkSteps;

/// A block sums `rows` tiles of rows, row_warps at a time, each by k_warps warps that take turns at the slots of a row
/// (one or two groups). Activations pass by in chunks of kSteps slots for each of these warps.
struct Work {
  IntJob job;
  IntShares rows;
  IntDivisor row_warps;
  int k_warps, n_chunks, row_slots;
};

template <IntKind kKind, int kTiles>
__global__ void __launch_bounds__(kThreads, 1) int_chunks_kernel(const __grid_constant__ Work w) {
  constexpr int kTileBytes = int_tile_bytes(kKind), kSlotGroups = int_slot_groups(kKind);
  constexpr int kSlotBytes = kSlotGroups * kTileBytes;
  using Sum = std::conditional_t<kKind == IntKind::ternary, int, float>;

  gpu::let_next_grid_start();
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  const int n_groups = w.job.tokens.n_groups, row_slots = w.row_slots, k_warps = w.k_warps;
  const int row_warps = int(w.row_warps.divisor), k_warp = w.row_warps.quotient(warp);
  const int row_warp = warp - k_warp * row_warps;
  const int first_row = w.rows.begin(int(blockIdx.x)), n_rows = w.rows.count(int(blockIdx.x));

  // Every warp has its own ring of slots. All warps take the same number of steps, some without a slot.
  uint8_t* const ring = shared + warp * kSteps * kSlotBytes + 16 * lane;
  const int padded_slots = w.n_chunks * kSteps * k_warps;
  int fed_row = row_warp, fed_slot = k_warp;
  const auto address = [&](int row) {
    return w.job.tiles + (int64_t(first_row + row) * n_groups + k_warp * kSlotGroups) * kTileBytes + 16 * lane;
  };
  const uint8_t* from = address(fed_row);
  const auto feed = [&](uint8_t* to) {
    if (fed_row < n_rows && fed_slot < row_slots) {
      gpu::copy_async16(to, from);
      if constexpr (kKind == IntKind::int4_g128) {
        gpu::copy_async16(to + 512, from + 512);
        if (lane < 2) gpu::copy_async16(to + 1024, from + 1024);
      } else {
        if (2 * fed_slot + 1 < n_groups) gpu::copy_async16(to + 512, from + 512);
      }
    }
    gpu::copy_commit();
    fed_slot += k_warps;
    from += k_warps * kSlotBytes;
    if (fed_slot >= padded_slots) fed_slot = k_warp, fed_row += row_warps, from = address(fed_row);
  };
  for (int i = 0; i < kSteps; ++i) feed(ring + i * kSlotBytes);  // weights do not depend on the grid before

  gpu::wait_for_previous_grid();
  const int n_tokens = w.job.tokens.n_tokens, planes = w.job.tokens.planes, column_pitch = w.job.tokens.column_pitch;
  const int chunk_groups = kSteps * k_warps * kSlotGroups, group_values = column_pitch * kIntGroup;
  uint8_t* const chunk_values = shared + w.job.at.values;
  auto* const chunk_scales = reinterpret_cast<float*>(shared + w.job.at.scales);
  const auto copy_chunk = [&](int chunk, int buffer) {
    const int begin = chunk * chunk_groups, n = min(chunk_groups, n_groups - begin);
    const uint8_t* const values = w.job.image.values + int64_t(begin) * group_values;
    uint8_t* const to = chunk_values + buffer * chunk_groups * group_values;
    for (int i = 16 * int(threadIdx.x); i < n * group_values; i += 16 * int(blockDim.x))
      gpu::copy_async16(to + i, values + i);
    if constexpr (kKind == IntKind::int4_g128)
      for (int i = 4 * int(threadIdx.x); i < n * 8 * kTiles; i += 4 * int(blockDim.x))
        gpu::copy_async16(chunk_scales + buffer * chunk_groups * 8 * kTiles + i,
                          w.job.image.scales + begin * 8 * kTiles + i);
  };
  copy_chunk(0, 0);
  gpu::copy_commit();
  auto* const factors = reinterpret_cast<float*>(shared + w.job.at.factors);
  for (int t = int(threadIdx.x); t < n_tokens; t += int(blockDim.x)) factors[t] = w.job.image.factors[t];
  gpu::copy_wait<0>();

  auto* const sums_at = reinterpret_cast<Sum*>(shared + w.job.at.sums);
  const int n_columns = n_tokens * planes, n_tiles = (n_columns + 7) / 8;
  const Columns columns = Columns::of_lane<kTiles>(lane, n_columns);
  const int token_shift = planes == 2 ? 2 : 3;  // of the tokens in eight columns
  int buffer = 0;
  for (int row = 0; row < n_rows; row += row_warps) {
    // At the end, kIntEndTokens at a time, half a warp adds up the sums of four tokens in a tile of rows.
    const int out_row = lane % 16, rows_here = min(row_warps, n_rows - row);
    Ends ends[kIntEnds];
    const auto load_all = [&](int item, int first_token, int quad_bits) {
      const int token = first_token + kIntEnds * (item & ((1 << quad_bits) - 1));
#pragma unroll
      for (int i = 0; i < kIntEnds; ++i)
        ends[i] = item >> quad_bits < rows_here
                      ? load_ends<kKind>(w.job.target, first_row + row + (item >> quad_bits), token + i, out_row)
                      : Ends{};
    };
    load_all(2 * warp + lane / 16, 0, quad_bits_of(n_tokens));

    Sums<kKind, kTiles> sums;
    int slot = row + row_warp < n_rows ? k_warp : row_slots;  // none
    for (int chunk = 0; chunk < w.n_chunks; ++chunk) {
      gpu::copy_wait<kSteps - 1>();  // the chunk came with the first step of the one before
      __syncthreads();
      const bool last = chunk + 1 == w.n_chunks;
      if (!last || row + row_warps < n_rows) copy_chunk(last ? 0 : chunk + 1, buffer ^ 1);
      const uint8_t* values = chunk_values + (buffer * chunk_groups + k_warp * kSlotGroups) * group_values;
      const float* scales = chunk_scales + (buffer * chunk_groups + k_warp) * 8 * kTiles + lane % 4 * 2;
#pragma unroll 1
      for (int step = 0; step < kSteps; ++step) {
        gpu::copy_wait<kSteps - 1>();
        __syncwarp();
        const bool there = slot < row_slots;
        Tile<kKind> weights[kSlotGroups];
        if (there)
#pragma unroll
          for (int i = 0; i < kSlotGroups; ++i) weights[i].load(ring + step * kSlotBytes + i * kTileBytes, lane);
        __syncwarp();
        feed(ring + step * kSlotBytes);
        if (there) {
          sums.add(weights[0], values, scales, columns, n_tiles);
          if constexpr (kSlotGroups == 2)
            if (2 * slot + 1 < n_groups) sums.add(weights[1], values + group_values, scales, columns, n_tiles);
        }
        slot += k_warps;
        values += k_warps * kSlotGroups * group_values;
        scales += k_warps * 8 * kTiles;
      }
      buffer ^= 1;
    }

    for (int first_token = 0; first_token < n_tokens; first_token += kIntEndTokens) {
      if (first_token > 0) __syncthreads();  // in front of a row's first sums are those of its chunks
      const int n_here = min(kIntEndTokens, n_tokens - first_token), quad_bits = quad_bits_of(n_here);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int token = (i << token_shift) - first_token;
        if (token >= 0 && token < n_here)
          store_eight(sums.of[i], planes, n_here - token, lane,
                      sums_at + (warp * kIntEndTokens + token) * kIntSumPitch);
      }
      __syncthreads();
      for (int first = 2 * warp; first < rows_here << quad_bits;
           first += int(blockDim.x / 16)) {  // the same for a warp
        const int item = first + lane / 16, of = item >> quad_bits, at = kIntEnds * (item & ((1 << quad_bits) - 1));
        if (first != 2 * warp || first_token > 0) load_all(item, first_token, quad_bits);
        Sum sum[kIntEnds] = {};
        if (of < rows_here)
#pragma unroll 2
          for (int k = 0; k < k_warps; ++k)
#pragma unroll
            for (int i = 0; i < kIntEnds; ++i)  // of tokens that are not there, something
              sum[i] += sums_at[((k * row_warps + of) * kIntEndTokens + at + i) * kIntSumPitch + out_row];
#pragma unroll
        for (int i = 0; i < kIntEnds; ++i) {
          const bool real = of < rows_here && at + i < n_here;
          const int token = real ? first_token + at + i : n_tokens;
          const float p = real ? product(sum[i], factors[token], ends[i].row_scale) : 0.0f;
          write_outputs<kKind>(w.job.target, first_row + row + of, token, out_row, p, ends[i]);
        }
      }
    }
  }
  gpu::copy_wait<0>();
}

template <IntKind kKind, int kTiles>
void launch_kernel(const Work& w, const IntPlan& plan, gpu::StreamHandle stream) {
  auto* const kernel = int_chunks_kernel<kKind, kTiles>;
  gpu::allow_shared_bytes("int_gemv", kernel, size_t(w.job.at.bytes));
  gpu::launch(
      "int_gemv", kernel,
      {unsigned(plan.blocks), unsigned(32 * plan.warps), size_t(w.job.at.bytes), stream, true, w.job.weights(kKind)},
      w);
}

template <IntKind kKind>
void launch_tiles(const Work& w, const IntPlan& plan, gpu::StreamHandle stream) {
  switch (plan.tiles_of_8) {
    case 1: return launch_kernel<kKind, 1>(w, plan, stream);
    case 2: return launch_kernel<kKind, 2>(w, plan, stream);
    case 4: return launch_kernel<kKind, 4>(w, plan, stream);
    default: return launch_kernel<kKind, 8>(w, plan, stream);
  }
}

}  // namespace

void launch_int_chunks(IntKind kind, const IntJob& job, const IntPlan& plan, gpu::StreamHandle stream) {
  const int k_warps = plan.warps / plan.row_warps, groups = kSteps * k_warps * int_slot_groups(kind);
  const Work w = {.job = job,
                  .rows = IntShares(job.target.n_row_tiles, plan.blocks),
                  .row_warps = IntDivisor(plan.row_warps),
                  .k_warps = k_warps,
                  .n_chunks = (job.tokens.n_groups + groups - 1) / groups,
                  .row_slots = (job.tokens.n_groups + int_slot_groups(kind) - 1) / int_slot_groups(kind)};
  if (kind == IntKind::ternary) launch_tiles<IntKind::ternary>(w, plan, stream);
  else launch_tiles<IntKind::int4_g128>(w, plan, stream);
}

}  // namespace ridge
