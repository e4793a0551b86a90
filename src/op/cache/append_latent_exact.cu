// Latent rows and other rows too wide for a thread: a warp a row, in shared memory. Formats whose rows are blocks one after
// another are coded by all lanes, others by one, with the host's own code either way.
#include "op/cache/append_kernels.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/store_row.h"

namespace ridge {
namespace {

constexpr int kPiece = 32;  ///< values that a lane codes at a time

/// The row, and room for another.
size_t shared_bytes(int head_dim) { return 2 * sizeof(float) * size_t((head_dim + 3) / 4 * 4); }
__device__ float* room_behind(float* row, int head_dim) { return row + (head_dim + 3) / 4 * 4; }

template <class... F>
__device__ bool is_one_of(int format) {
  return ((format == number_of<F>(KvFormatTypes())) || ...);
}

/// code_row() by a warp. Returns how many values the lane has saturated.
__device__ int code_row_in_warp(const KvTiles& t, const StepRow& of, const int32_t* pages, int head, int position,
                                int lane, const float* row, float* room) {
  if (!is_one_of<KvF32, KvF16, KvBf16, KvQ8_0, KvQ4_0>(t.format))
    return lane == 0 ? code_row(t, of, pages, head, position, row, room) : 0;
  std::byte* const to = t.coded_row(pages, head, position);
  const KvCoding coding = t.coding(of.slot, head);
  int saturated = 0;
  float norm2 = 0, error2 = 0;
  for (int first = kPiece * lane; first < t.head_dim; first += 32 * kPiece) {
    const int n = min(kPiece, t.head_dim - first);
    std::byte* const piece = to + first * t.row_bytes / t.head_dim;
    saturated += encode_row(t.format, KvFormatTypes(), row + first, n, coding, piece);
    decode_row(t.format, KvFormatTypes(), piece, n, coding, room + first);
    for (int d = first; d < first + n; ++d) {
      const float error = row[d] - room[d];
      norm2 += row[d] * row[d];
      error2 += error * error;
    }
  }
  norm2 = gpu::warp_sum(norm2);
  error2 = gpu::warp_sum(error2);
  if (lane == 0) add_counts(t.counts[pages[position / kPagePositions]], norm2, error2);
  return saturated;
}

/// row[i] /= the root mean square of row [n], times weight[i].
__device__ void norm_in_warp(int n, const float* weight, float eps, int lane, float* row) {
  double sum = 0;
  for (int d = lane; d < n; d += 32) sum += double(row[d]) * row[d];
  const double factor = 1.0 / sqrt(gpu::warp_sum(sum) / n + eps);
  for (int d = lane; d < n; d += 32) row[d] = float(row[d] * factor * weight[d]);
}

/// Blocks: (query head, or K behind them; row of the step). A warp.
__global__ void __launch_bounds__(32) append_latent_kernel(const LatentAppend a) {
  const StepRow of = a.rows.rows[blockIdx.y];
  if (of.slot < 0) return;
  const KvTiles& t = a.tiles;
  float* const row = gpu::dynamic_shared<float>();
  const int lane = int(threadIdx.x), head = int(blockIdx.x), width = t.head_dim, rope_dim = width - a.rank;
  const bool is_query = head < a.n_heads;
  const int64_t of_head = int64_t(of.row) * a.n_heads + head;
  const float* const latent = is_query ? a.absorbed + of_head * a.rank : a.kv + int64_t(of.row) * width;
  const float* const turned = is_query ? a.q + (of_head + 1) * a.query_dim - rope_dim : latent + a.rank;
  for (int d = lane; d < width; d += 32) row[d] = d < a.rank ? latent[d] : turned[d - a.rank];
  __syncwarp();
  if (!is_query && a.norm) norm_in_warp(a.rank, a.norm, a.norm_eps, lane, row);
  for (int i = lane; i < a.n_pairs; i += 32) {
    float& first = row[a.rank + (a.rope_halves ? i : 2 * i)];
    float& second = row[a.rank + (a.rope_halves ? i + a.n_pairs : 2 * i + 1)];
    const int64_t at = int64_t(blockIdx.y) * a.n_pairs + i;
    const float x = first * a.cosines[at] - second * a.sines[at];
    second = first * a.sines[at] + second * a.cosines[at];
    first = x;
  }
  __syncwarp();
  rotate_shared_row(t.rotation, true, lane, row);
  if (is_query) {
    for (int d = lane; d < width; d += 32) a.q_out[of_head * width + d] = row[d];
    return;
  }
  const int32_t* const pages = a.rows.pages + int64_t(of.slot) * a.rows.page_pitch;
  float* const room = room_behind(row, width);
  if (t.ring_tiles == 0 && t.n_sinks == 0)  // nothing is exact
    add_saturated(t.saturated, code_row_in_warp(t, of, pages, 0, of.position, lane, row, room));
  else if (lane == 0) store_row(t, of, pages, 0, row, room);
}

/// Blocks: (row of the span, side and kv head, spans in turn). A warp.
__global__ void __launch_bounds__(32) leaving_wide_rows_kernel(const LeavingTiles a) {
  const int head = int(blockIdx.y) % a.n_kv_heads, side = int(blockIdx.y) / a.n_kv_heads, n_spans = *a.n_spans;
  const int lane = int(threadIdx.x);
  const KvTiles& t = a.sides ? a.sides[side] : a.pair[side];
  if (t.ring_tiles == 0) return;
  float* const row = gpu::dynamic_shared<float>();
  for (int i = int(blockIdx.z); i < n_spans; i += int(gridDim.z)) {
    const StepSpan span = a.spans[i];
    // Without a window rows leave one by one, and only when calibration lets them.
    if (span.slot < 0 || (t.retention.window == 0 && span.n_past >= t.retention.calibration)) continue;
    const int position = t.retention.coded_end(span.n_past) + int(blockIdx.x);
    if (position >= t.retention.coded_end(span.n)) continue;
    const StepRow of{.slot = span.slot, .ring = span.ring};
    const int32_t* const pages = a.pages + int64_t(span.slot) * a.page_pitch;
    __syncwarp();  // the row of the span before has been used
    if (lane == 0) read_exact_row<true>(t, of, head, position, row);
    __syncwarp();
    add_saturated(t.saturated, code_row_in_warp(t, of, pages, head, position, lane, row, room_behind(row, t.head_dim)));
  }
}

}  // namespace

void device_append_latent(gpu::StreamHandle stream, const LatentAppend& a) {
  if (a.rows.n == 0) return;
  gpu::launch("append of latent rows", append_latent_kernel,
              {dim3(unsigned(a.n_heads + 1), unsigned(a.rows.n)), 32, shared_bytes(a.tiles.head_dim), stream}, a);
}

void encode_leaving_wide_rows(gpu::StreamHandle stream, const LeavingTiles& a) {
  gpu::launch(
      "encode of leaving wide rows", leaving_wide_rows_kernel,
      {dim3(unsigned(a.most_tiles * kTilePositions), unsigned(a.n_sides * a.n_kv_heads), unsigned(a.most_spans)), 32,
       shared_bytes(a.head_dim), stream},
      a);
}

}  // namespace ridge
