// New rows into tiles of rows, and rows that leave their window: a warp a row, in shared memory. For latent rows, and
// for formats and head sizes that have no order for tensor cores. Formats whose rows are blocks one after another, i8r
// and rotor rows are coded by all lanes, others by one with the host's own code.
#include "op/cache/append_kernels.h"
#include "op/cache/exact_rows.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/rotor_block.h"

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

/// Packs the codes of a row.
template <int kBits>
__device__ void store_row_codes(int dim, const uint8_t* codes, uint16_t scale, int lane, std::byte* to) {
  for (int g = lane; g < dim / 8; g += 32) {
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i) word |= uint32_t(codes[8 * g + i]) << (kBits * i);
    for (int i = 0; i < kBits; ++i) to[kBits * g + i] = std::byte(word >> (8 * i) & 255u);
  }
  if (lane == 0) tile_rows::store16(to + kBits * dim / 8, scale);
}

/// Head sizes of rotor rows that all lanes code.
__device__ bool is_coded_by_a_warp(int dim) { return dim == 64 || dim == 128 || dim == 256 || dim == 512; }

template <int kPer>
struct RotorRoom {
  double terms[3][34];
  float vectors[2][32 * kPer], inverse[32 * kPer];
  uint8_t codes[32 * kPer];
};

template <int kBits, int kPer>
__device__ __noinline__ int encode_rotor_in_warp(RotorRoom<kPer>& room, const KvCoding& coding, int lane,
                                                 const float* row, std::byte* to) {
  constexpr int kDim = 32 * kPer;
  float x[kPer], level[kPer];
  int saturated = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int d = lane + 32 * j;
    x[j] = row[d];
    if (coding.metric) room.inverse[d] = 1.0f / coding.metric[d * (kDim + 1)];
  }
  const RotorWork<kPer> work{room.terms, room.vectors, room.inverse, coding.metric};
  const uint16_t scale = encode_rotor<kBits>(work, coding.scale, x, level, saturated,
                                             [&] { times_metric_of_row<kPer>(room.vectors, coding.metric, lane); });
#pragma unroll
  for (int j = 0; j < kPer; ++j) room.codes[lane + 32 * j] = uint8_t(Rotor<kBits>::code(level[j]));
  __syncwarp();
  store_row_codes<kBits>(kDim, room.codes, scale, lane, to);
  return saturated;
}
template <int kBits>
__device__ int encode_rotor_in_warp(int dim, const KvCoding& coding, int lane, const float* row, std::byte* to) {
  __shared__ RotorRoom<16> room;
  if (dim == 64) return encode_rotor_in_warp<kBits>(reinterpret_cast<RotorRoom<2>&>(room), coding, lane, row, to);
  if (dim == 128) return encode_rotor_in_warp<kBits>(reinterpret_cast<RotorRoom<4>&>(room), coding, lane, row, to);
  if (dim == 256) return encode_rotor_in_warp<kBits>(reinterpret_cast<RotorRoom<8>&>(room), coding, lane, row, to);
  return encode_rotor_in_warp<kBits>(room, coding, lane, row, to);
}
template <int kBits>
__device__ void decode_rotor_in_warp(int dim, int lane, const std::byte* from, float* row) {
  const float scale = f16_to_f32(tile_rows::load16(from + kBits * dim / 8));
  for (int g = lane; g < dim / 8; g += 32) RotorCodes<kBits>::decode(from + kBits * g, 8, scale, row + 8 * g);
}

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
  } else if (is_coded_by_a_warp(dim) && (is_one_of<KvRotor3, KvRotor4>(format))) {
    saturated = is_one_of<KvRotor3>(format) ? encode_rotor_in_warp<3>(dim, coding, lane, row, to)
                                            : encode_rotor_in_warp<4>(dim, coding, lane, row, to);
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
  } else if (is_one_of<KvRotor3>(format)) {
    decode_rotor_in_warp<3>(dim, lane, from, row);
  } else if (is_one_of<KvRotor4>(format)) {
    decode_rotor_in_warp<4>(dim, lane, from, row);
  } else if (lane == 0) {
    decode_row(format, KvFormatTypes(), from, dim, coding, row);
  }
  __syncwarp();
}

// For functions that are given dynamic shared memory. Where clang 19 leaves one as a call, its kernel on AMD does not
// pass the number by which the function looks up the memory's address.
#ifdef __HIP__
#define RIDGE_INLINE_FOR_SHARED __forceinline__
#else
#define RIDGE_INLINE_FOR_SHARED
#endif

/// Codes a row into its page. Returns how many values the lane has saturated.
__device__ RIDGE_INLINE_FOR_SHARED int code_row_in_warp(const KvTiles& t, const StepRow& of, const int32_t* pages,
                                                        int head, int position, int lane, const float* row,
                                                        float* scratch) {
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

/// A row in cache space to its place; behind it is room for another. A warp.
__device__ RIDGE_INLINE_FOR_SHARED void store_row_in_warp(const KvTiles& t, const StepRow& of, const int32_t* pages,
                                                          int head, int lane, float* row) {
  float* const scratch = scratch_behind(row, t.head_dim);
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
    encode_in_warp(exact.number, dim, exact.row_bytes, exact.coding, lane, row, exact_row(t, of, head, position));
  if (at_once) saturated += code_row_in_warp(t, of, pages, head, position, lane, row, scratch);
  add_saturated(t.saturated, saturated);
}

/// row[i] /= the root mean square of row [n], times weight[i].
__device__ void norm_in_warp(int n, const float* weight, float eps, int lane, float* row) {
  double sum = 0;
  for (int d = lane; d < n; d += 32) sum += double(row[d]) * row[d];
  const double factor = 1.0 / sqrt(gpu::warp_sum(sum) / n + eps);
  for (int d = lane; d < n; d += 32) row[d] = float(row[d] * factor * weight[d]);
}

/// RoPE of pairs of a row that begins with them.
__device__ void turn_in_warp(int n_pairs, bool halves, const float* cosines, const float* sines, int lane, float* row) {
  for (int i = lane; i < n_pairs; i += 32) {
    float &first = row[halves ? i : 2 * i], &second = row[halves ? i + n_pairs : 2 * i + 1];
    const float x = first * cosines[i] - second * sines[i];
    second = first * sines[i] + second * cosines[i];
    first = x;
  }
}

/// Blocks: (head of Q, K and V; row of the step). A warp.
__global__ void __launch_bounds__(32) append_rows_kernel(const DeviceAppend a) {
  const StepRow of = a.rows.rows[blockIdx.y];
  if (of.slot < 0) return;
  float* const row = gpu::dynamic_shared<float>();
  const int lane = int(threadIdx.x), block = int(blockIdx.x), n_kv_heads = a.k_tiles.n_kv_heads;
  const int role = int(block >= a.n_heads) + int(block >= a.n_heads + n_kv_heads), dim = a.k_tiles.head_dim;
  const int head = role == 0 ? block : role == 1 ? block - a.n_heads : block - a.n_heads - n_kv_heads;
  const float* const from = role == 0   ? a.q + of.row * a.q_pitch
                            : role == 1 ? a.k + of.row * a.k_pitch
                                        : a.v + of.row * a.v_pitch;
  for (int d = lane; d < dim; d += 32) row[d] = from[int64_t(head) * dim + d];
  const float* const norm = role == 0 ? a.q_norm : role == 1 ? a.k_norm : nullptr;
  if (norm) norm_in_warp(dim, norm, a.norm_eps, lane, row);
  __syncwarp();
  const int64_t angles = int64_t(blockIdx.y) * a.n_pairs;
  if (role != 2) turn_in_warp(a.n_pairs, a.rope_halves, a.cosines + angles, a.sines + angles, lane, row);
  __syncwarp();
  const KvTiles& t = role == 2 ? a.v_tiles : a.k_tiles;
  if (role != 0) move_shared_row({t, of.slot, head, of.position / kTilePositions}, -1, lane, row);
  rotate_shared_row(t.rotation, true, lane, row);
  if (role != 0) return store_row_in_warp(t, of, a.rows.pages + int64_t(of.slot) * a.rows.page_pitch, head, lane, row);
  for (int d = lane; d < dim; d += 32) a.q_out[(int64_t(of.row) * a.n_heads + head) * dim + d] = row[d];
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
  const int64_t angles = int64_t(blockIdx.y) * a.n_pairs;
  turn_in_warp(a.n_pairs, a.rope_halves, a.cosines + angles, a.sines + angles, lane, row + a.rank);
  __syncwarp();
  if (!is_query) move_shared_row({t, of.slot, 0, of.position / kTilePositions}, -1, lane, row);
  rotate_shared_row(t.rotation, true, lane, row);
  if (is_query) {
    for (int d = lane; d < width; d += 32) a.q_out[of_head * width + d] = row[d];
    return;
  }
  const int32_t* const pages = a.rows.pages + int64_t(of.slot) * a.rows.page_pitch;
  store_row_in_warp(t, of, pages, 0, lane, row);
}

/// Blocks: (row of the span, side and kv head, spans in turn). A warp.
__global__ void __launch_bounds__(32) leaving_rows_kernel(const LeavingTiles a) {
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

void append_rows(gpu::StreamHandle stream, const DeviceAppend& a) {
  const int n_kv_heads = a.queries_only ? 0 : a.k_tiles.n_kv_heads;
  gpu::launch(
      "append of rows", append_rows_kernel,
      {dim3(unsigned(a.n_heads + 2 * n_kv_heads), unsigned(a.rows.n)), 32, shared_bytes(a.k_tiles.head_dim), stream},
      a);
}

void device_append_latent(gpu::StreamHandle stream, const LatentAppend& a) {
  if (a.rows.n == 0) return;
  gpu::launch("append of latent rows", append_latent_kernel,
              {dim3(unsigned(a.n_heads + 1), unsigned(a.rows.n)), 32, shared_bytes(a.tiles.head_dim), stream}, a);
}

void encode_leaving_rows(gpu::StreamHandle stream, const LeavingTiles& a) {
  gpu::launch(
      "encode of leaving rows", leaving_rows_kernel,
      {dim3(unsigned(a.most_tiles * kTilePositions), unsigned(a.n_sides * a.n_kv_heads), unsigned(a.most_spans)), 32,
       shared_bytes(a.head_dim), stream},
      a);
}

}  // namespace ridge
