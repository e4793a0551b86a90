// Latent rows and other rows too wide for a thread: a warp a row, in shared memory. Formats whose rows are blocks one
// after another and i8r are coded by all lanes, others by one with the host's own code.
#include "op/cache/append_kernels.h"
#include "op/cache/exact_rows.h"
#include "op/cache/rotate_warp.h"

namespace ridge {
namespace {

constexpr int kPiece = 32;  ///< values that a lane codes at a time

/// The row, and room for another.
size_t shared_bytes(int head_dim) { return 2 * sizeof(float) * size_t((head_dim + 3) / 4 * 4); }
__device__ float* scratch_behind(float* row, int head_dim) { return row + (head_dim + 3) / 4 * 4; }

template <class... F>
__device__ bool is_one_of(int format) {
  return ((format == number_of<F>(KvFormatTypes())) || ...);
}

/// Formats whose rows are blocks one after another.
__device__ bool is_in_blocks(int format) { return is_one_of<KvF32, KvF16, KvBf16, KvQ8_0, KvQ4_0>(format); }

/// encode_row() by a warp. Returns how many values the lane has saturated. The row is there for all lanes.
__device__ int encode_in_warp(int format, int dim, int64_t row_bytes, const KvCoding& coding, int lane,
                              const float* row, std::byte* to) {
  int saturated = 0;
  if (is_in_blocks(format)) {
    for (int first = kPiece * lane; first < dim; first += 32 * kPiece)
      saturated += encode_row(format, KvFormatTypes(), row + first, min(kPiece, dim - first), coding,
                              to + first * row_bytes / dim);
  } else if (format == kNumberOfI8r && coding.scale != KvScale::lsq) {  // as encode_int8() with rule absmax
    float top = 0;
    for (int d = lane; d < dim; d += 32) top = fmaxf(top, fabsf(saturate_f16(row[d], saturated)));
    const float scale = gpu::warp_max(top) / 127.0f, inverse = scale > 1e-38f ? 1.0f / scale : 0.0f;
    int counted = 0;
    for (int d = lane; d < dim; d += 32)
      to[d] = std::byte(int8_t(fminf(fmaxf(roundf(saturate_f16(row[d], counted) * inverse), -127.0f), 127.0f)));
    if (lane == 0) tile_rows::store16(to + dim, f32_to_f16(scale));
  } else if (lane == 0) {
    saturated = encode_row(format, KvFormatTypes(), row, dim, coding, to);
  }
  __syncwarp();
  return saturated;
}

/// decode_row() by a warp.
__device__ void decode_in_warp(int format, int dim, int64_t row_bytes, const KvCoding& coding, int lane,
                               const std::byte* from, float* row) {
  if (is_in_blocks(format)) {
    for (int first = kPiece * lane; first < dim; first += 32 * kPiece)
      decode_row(format, KvFormatTypes(), from + first * row_bytes / dim, min(kPiece, dim - first), coding,
                 row + first);
  } else if (format == kNumberOfI8r) {
    const float scale = f16_to_f32(tile_rows::load16(from + dim));
    for (int d = lane; d < dim; d += 32) row[d] = float(int8_t(from[d])) * scale;
  } else if (lane == 0) {
    decode_row(format, KvFormatTypes(), from, dim, coding, row);
  }
  __syncwarp();
}

/// Codes a row into its page. Returns how many values the lane has saturated.
__device__ int code_row_in_warp(const KvTiles& t, const StepRow& of, const int32_t* pages, int head, int position,
                                int lane, const float* row, float* scratch) {
  std::byte* const to = t.coded_row(pages, head, position);
  const KvCoding coding = t.coding(of.slot, head);
  const int saturated = encode_in_warp(t.format, t.head_dim, t.row_bytes, coding, lane, row, to);
  decode_in_warp(t.format, t.head_dim, t.row_bytes, coding, lane, to, scratch);
  float norm2 = 0, error2 = 0;
  for (int d = lane; d < t.head_dim; d += 32) {
    const float error = row[d] - scratch[d];
    norm2 += row[d] * row[d];
    error2 += error * error;
  }
  norm2 = gpu::warp_sum(norm2);
  error2 = gpu::warp_sum(error2);
  if (lane == 0) add_counts(t.counts[pages[position / kPagePositions]], norm2, error2);
  return saturated;
}

/// A format of exact rows, with the bytes of a row.
struct ExactFormat {
  int number;
  int64_t row_bytes;
  KvCoding coding;

  __device__ ExactFormat(const KvTiles& t, int position)
      : number(exact_format(t, position)),
        row_bytes(number == t.recent && position >= t.n_sinks ? t.recent_row_bytes : 2 * int64_t(t.head_dim)),
        coding{.scale = own_scale(number, KvFormatTypes())} {}
};

/// A row in cache space to its place, of kv head 0: as tiles of rows take it (append_rows_exact.cu), by a warp.
__device__ void store_row_in_warp(const KvTiles& t, const StepRow& of, const int32_t* pages, int lane, float* row,
                                  float* scratch) {
  const int position = of.position, dim = t.head_dim;
  const bool at_once = t.retention.window == 0 && position >= t.retention.calibration;
  const ExactFormat exact(t, position);
  const auto round = [&] {
    auto* const coded = reinterpret_cast<std::byte*>(scratch);
    const int saturated = encode_in_warp(exact.number, dim, exact.row_bytes, exact.coding, lane, row, coded);
    decode_in_warp(exact.number, dim, exact.row_bytes, {}, lane, coded, row);
    return saturated;
  };
  int saturated = 0;
  if (position < t.retention.calibration) round();
  if (t.ring_tiles > 0 || t.n_sinks > 0) saturated += round();
  if (position < t.n_sinks || (t.ring_tiles > 0 && !at_once))
    encode_in_warp(exact.number, dim, exact.row_bytes, exact.coding, lane, row, exact_row(t, of, 0, position));
  if (at_once) saturated += code_row_in_warp(t, of, pages, 0, position, lane, row, scratch);
  add_saturated(t.saturated, saturated);
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
  if (!is_query) move_shared_row({t, of.slot, 0, of.position / kTilePositions}, -1, lane, row);
  rotate_shared_row(t.rotation, true, lane, row);
  if (is_query) {
    for (int d = lane; d < width; d += 32) a.q_out[of_head * width + d] = row[d];
    return;
  }
  const int32_t* const pages = a.rows.pages + int64_t(of.slot) * a.rows.page_pitch;
  store_row_in_warp(t, of, pages, lane, row, scratch_behind(row, width));
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
    const ExactFormat exact(t, position);
    decode_in_warp(exact.number, t.head_dim, exact.row_bytes, {}, lane, exact_row(t, of, head, position), row);
    add_saturated(t.saturated,
                  code_row_in_warp(t, of, pages, head, position, lane, row, scratch_behind(row, t.head_dim)));
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
