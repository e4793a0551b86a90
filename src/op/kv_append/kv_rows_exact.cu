#include "gpu/launch.h"
#include "op/kv_append/exact_rows.h"
#include "op/kv_append/kv_rows_cuda.h"
#include "op/kv_append/rotate_warp.h"
#include "op/kv_append/round_warp.h"

namespace ridge {
namespace {

// Kernels that treat a row as a whole: a warp holds 32 rows in shared memory, loads and stores them together and works
// on one row per thread, with the host's own code. The odd pitch keeps the threads on different banks.
constexpr int kRows = 32;

int pitch_of(int head_dim) { return head_dim | 1; }
size_t shared_bytes(int head_dim) { return size_t(kRows) * size_t(pitch_of(head_dim)) * sizeof(float); }
unsigned row_blocks(int64_t n_rows) { return unsigned(gpu::ceil_div(n_rows, kRows)); }

/// Rows first .. first + 31 (below n_rows) of a matrix with contiguous rows, to or from shared memory.
__device__ void load_rows(const float* rows, int64_t first, int64_t n_rows, int dim, float* tile) {
  for (int r = 0; r < kRows && first + r < n_rows; ++r)
    for (int d = int(threadIdx.x); d < dim; d += kRows) tile[r * (dim | 1) + d] = rows[(first + r) * dim + d];
  __syncwarp();
}
__device__ void store_rows(const float* tile, int64_t first, int64_t n_rows, int dim, float* rows) {
  __syncwarp();
  for (int r = 0; r < kRows && first + r < n_rows; ++r)
    for (int d = int(threadIdx.x); d < dim; d += kRows) rows[(first + r) * dim + d] = tile[r * (dim | 1) + d];
}

__device__ void count_saturated(int saturated, unsigned long long* total) {
  saturated = gpu::warp_sum(saturated);
  if (threadIdx.x == 0 && saturated > 0) atomicAdd(total, (unsigned long long)(saturated));
}

__device__ float* batch_row(const KvRowBatch& b, int64_t seq, int head, int position) {
  return b.rows + ((seq * b.n_new + position - b.n_past) * b.n_kv_heads + head) * b.head_dim;
}

constexpr int kRowWarps = 8;  // of kernels with a warp a row, for head_dims of 64, 128 and 256
unsigned warp_blocks(int64_t n_rows) { return unsigned(gpu::ceil_div(n_rows, kRowWarps)); }
bool has_warp_rows(int head_dim) { return head_dim == 64 || head_dim == 128 || head_dim == 256; }

/// to_space_kernel with a warp a row.
template <int kPer>
__global__ void __launch_bounds__(32 * kRowWarps)
    to_space_warps_kernel(KvRowBatch b, KvExactStore e, bool rotate, RotationView rotation, int round_before,
                          const float* centre, bool round, unsigned long long* total) {
  constexpr int kDim = 32 * kPer;
  const int lane = int(threadIdx.x % 32);
  const int64_t r = int64_t(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  if (r >= int64_t(b.n_seq) * b.n_new * b.n_kv_heads) return;
  const int head = int(r % b.n_kv_heads), position = b.n_past + int(r / b.n_kv_heads % b.n_new);
  const int64_t seq = r / b.n_kv_heads / b.n_new;
  float* const row = b.rows + r * kDim + lane;
  float x[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = row[32 * j];
  if (rotate) rotate_row(rotation, RotationRow<kPer>(rotation, lane), true, lane, x);
  const bool is_half = position < e.n_sinks || e.ring_rows == 0 || !e.recent_i8r;  // as round_to_exact()
  const TileKind kind = is_half ? TileKind::f16 : TileKind::int8_row;
  if (position < round_before) round_as<kPer>(kind, x);
  if (centre != nullptr)
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] += -1.0f * centre[(seq * b.n_kv_heads + head) * kDim + lane + 32 * j];
  const int saturated = gpu::warp_sum(round ? round_as<kPer>(kind, x) : 0);
  if (lane == 0 && saturated > 0) atomicAdd(total, (unsigned long long)(saturated));
#pragma unroll
  for (int j = 0; j < kPer; ++j) row[32 * j] = x[j];
}

/// rotate_kernel with a warp a row.
template <int kPer>
__global__ void __launch_bounds__(32 * kRowWarps)
    rotate_warps_kernel(int64_t n_rows, RotationView rotation, float* rows) {
  const int lane = int(threadIdx.x % 32);
  const int64_t r = int64_t(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  if (r >= n_rows) return;
  float* const row = rows + r * 32 * kPer + lane;
  float x[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = row[32 * j];
  rotate_row(rotation, RotationRow<kPer>(rotation, lane), true, lane, x);
#pragma unroll
  for (int j = 0; j < kPer; ++j) row[32 * j] = x[j];
}

/// restore_kernel with a warp a row.
template <int kPer>
__global__ void __launch_bounds__(32 * kRowWarps)
    restore_warps_kernel(int64_t n_rows, int n_tokens, int n_heads, int n_kv_heads, RotationView rotation,
                         const float* centre, float* rows) {
  const int lane = int(threadIdx.x % 32);
  const int64_t r = int64_t(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  if (r >= n_rows) return;
  float* const row = rows + r * 32 * kPer + lane;
  float x[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) x[j] = row[32 * j];
  if (centre != nullptr) {
    const int64_t seq = r / n_heads / n_tokens, kv_head = r % n_heads / (n_heads / n_kv_heads);
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] += 1.0f * centre[(seq * n_kv_heads + kv_head) * 32 * kPer + lane + 32 * j];
  }
  rotate_row(rotation, RotationRow<kPer>(rotation, lane), false, lane, x);
#pragma unroll
  for (int j = 0; j < kPer; ++j) row[32 * j] = x[j];
}

__global__ void to_space_kernel(KvRowBatch b, KvExactStore e, bool rotate, RotationView rotation, int round_before,
                                const float* centre, bool round, unsigned long long* total) {
  float* const tile = gpu::dynamic_shared<float>();
  const int dim = b.head_dim;
  const int64_t n_rows = int64_t(b.n_seq) * b.n_new * b.n_kv_heads, first = int64_t(blockIdx.x) * kRows;
  load_rows(b.rows, first, n_rows, dim, tile);
  const int64_t r = first + threadIdx.x;
  int saturated = 0;
  if (r < n_rows) {
    float* row = tile + threadIdx.x * (dim | 1);
    const int head = int(r % b.n_kv_heads), position = b.n_past + int(r / b.n_kv_heads % b.n_new);
    const int64_t seq = r / b.n_kv_heads / b.n_new;
    if (rotate) rotation.forward(row);
    if (position < round_before) round_to_exact(e, position, dim, row);
    if (centre != nullptr) {
      const float* c = centre + (seq * b.n_kv_heads + head) * dim;
      for (int d = 0; d < dim; ++d) row[d] += -1.0f * c[d];
    }
    if (round) saturated = round_to_exact(e, position, dim, row);
  }
  store_rows(tile, first, n_rows, dim, b.rows);
  count_saturated(saturated, total);
}

/// One block a (sequence, kv head), one thread an element: the host's order of summation.
__global__ void calibrate_kernel(KvRowBatch b, KvExactStore e, int first, int last, float* centre, float* head_scale) {
  const int d = int(threadIdx.x), dim = b.head_dim, head = int(blockIdx.x) % b.n_kv_heads;
  const int64_t seq_head = blockIdx.x, seq = seq_head / b.n_kv_heads;
  const auto value = [&](int position, int i) {
    return position >= b.n_past ? batch_row(b, seq, head, position)[i] : read_exact(e, seq_head, position, dim, i);
  };
  const int n = last - first;
  if (head_scale != nullptr && d == 0) {  // one thread: the host's order, position by position
    double size2 = 0;
    for (int position = first; position < last; ++position)
      for (int i = 0; i < dim; ++i) size2 += double(value(position, i)) * value(position, i);
    if (centre != nullptr)
      for (int i = 0; i < dim; ++i) {
        double sum = 0;
        for (int position = first; position < last; ++position) sum += value(position, i);
        const double mean = sum / n;
        size2 -= n * mean * mean;
      }
    head_scale[seq_head] = float(sqrt(fmax(0.0, size2) / (double(n) * dim)));
  }
  if (centre == nullptr || d >= dim) return;
  double sum = 0;
  for (int position = first; position < last; ++position) sum += value(position, d);
  centre[seq_head * dim + d] = float(sum / n);
}

/// Moves the exact rows of positions [0, count) by the centre: one thread a row.
__global__ void shift_exact_kernel(int64_t n_heads, int count, int dim, KvExactStore e, const float* centre) {
  const int64_t r = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= n_heads * count) return;
  const int64_t seq_head = r / count;
  const int position = int(r % count);
  float row[kMaxDeviceHeadDim];
  for (int d = 0; d < dim; ++d) row[d] = read_exact(e, seq_head, position, dim, d) + -1.0f * centre[seq_head * dim + d];
  round_to_exact(e, position, dim, row);
  write_exact(e, seq_head, position, dim, row, 0, 1);
}

/// One block a row of `out`.
__global__ void gather_exact_kernel(KvRowBatch b, KvExactStore e, KvFloatRows out) {
  const int dim = b.head_dim, position = out.first + int(blockIdx.x % out.count);
  const int64_t seq_head = blockIdx.x / out.count, seq = seq_head / b.n_kv_heads;
  const int head = int(seq_head % b.n_kv_heads);
  float* to = out.rows + int64_t(blockIdx.x) * dim;
  if (position >= b.n_past) {
    const float* from = batch_row(b, seq, head, position);
    for (int d = int(threadIdx.x); d < dim; d += int(blockDim.x)) to[d] = from[d];
  } else {
    for (int d = int(threadIdx.x); d < dim; d += int(blockDim.x)) to[d] = read_exact(e, seq_head, position, dim, d);
  }
}

/// One block a row of the batch.
__global__ void keep_exact_kernel(KvRowBatch b, KvExactStore e) {
  const int head = int(blockIdx.x % b.n_kv_heads), token = int(blockIdx.x / b.n_kv_heads % b.n_new);
  const int64_t seq = blockIdx.x / b.n_kv_heads / b.n_new;
  const int position = b.n_past + token, n = b.n_past + b.n_new;
  const bool sink = position < e.n_sinks;
  if (!sink && (e.ring_rows == 0 || position < n - e.ring_rows)) return;
  const float* from = batch_row(b, seq, head, position);
  write_exact(e, seq * b.n_kv_heads + head, position, b.head_dim, from, int(threadIdx.x), int(blockDim.x));
}

/// Where the float row of (sequence, head, i-th position to code) is: element strides.
struct RowSource {
  const float* rows;
  int64_t seq_stride, head_stride, position_stride;
};

__device__ KvCoding coding_of(const KvDeviceCoding& c, int64_t seq_head, int n_kv_heads, int dim) {
  return {.scale = c.scale,
          .fixed = c.head_scale ? c.head_scale[seq_head] : 0.0f,
          .metric = c.metric ? c.metric + seq_head % n_kv_heads * dim * dim : nullptr};
}

template <class F>
__global__ void encode_kernel(int n_seq, int n_kv_heads, int dim, RowSource from, int first, int count,
                              KvDeviceCoding coding, KvCodedStore coded, unsigned long long* total) {
  float* const tile = gpu::dynamic_shared<float>();
  const int64_t n_rows = int64_t(n_seq) * n_kv_heads * count, first_row = int64_t(blockIdx.x) * kRows;
  for (int r = 0; r < kRows && first_row + r < n_rows; ++r) {
    const int64_t row = first_row + r, seq = row / count / n_kv_heads, head = row / count % n_kv_heads;
    const float* at = from.rows + seq * from.seq_stride + head * from.head_stride + row % count * from.position_stride;
    for (int d = int(threadIdx.x); d < dim; d += kRows) tile[r * (dim | 1) + d] = at[d];
  }
  __syncwarp();
  const int64_t row = first_row + threadIdx.x;
  int saturated = 0;
  if (row < n_rows) {
    const int64_t seq_head = row / count, position = first + row % count;
    saturated = F::encode(tile + threadIdx.x * (dim | 1), dim, coding_of(coding, seq_head, n_kv_heads, dim),
                          coded.rows + (seq_head * coded.n_ctx + position) * coded.row_bytes);
  }
  __syncwarp();
  count_saturated(saturated, total);
}

template <class F>
__global__ void decode_kernel(int n_seq, int n_kv_heads, int dim, KvDeviceCoding coding, KvCodedStore coded,
                              KvExactStore e, KvFloatRows out) {
  float* const tile = gpu::dynamic_shared<float>();
  const int64_t n_rows = int64_t(n_seq) * n_kv_heads * out.count, first_row = int64_t(blockIdx.x) * kRows;
  const int64_t row = first_row + threadIdx.x;
  if (row < n_rows) {
    float* to = tile + threadIdx.x * (dim | 1);
    const int64_t seq_head = row / out.count;
    const int position = int(row % out.count);
    if (position < e.n_sinks) {
      for (int d = 0; d < dim; ++d) to[d] = read_exact(e, seq_head, position, dim, d);
    } else {
      F::decode(coded.rows + (seq_head * coded.n_ctx + position) * coded.row_bytes, dim,
                coding_of(coding, seq_head, n_kv_heads, dim), to);
    }
  }
  store_rows(tile, first_row, n_rows, dim, out.rows);
}

constexpr int kTileThreads = 512;

size_t encode_tile_shared(int64_t row_bytes, int tile_bytes, int dim) {
  return size_t(kTilePositions) * size_t(4 * (dim | 1) + (row_bytes + 3) / 4 * 4) + size_t(tile_bytes);
}

/// Codes positions [first, first + count) into tiles: a block a tile, which it has to itself.
template <class F>
__global__ void encode_tile_kernel(int n_kv_heads, int dim, RowSource from, int first, int count, KvDeviceCoding coding,
                                   KvCodedStore coded, unsigned long long* total) {
  using Rows = TileRows<F>;
  const TileShape shape(Rows::kKind, dim);
  const int row_bytes = int(F::row_bytes(dim) + 3) / 4 * 4, pitch = dim | 1;
  auto* const values = gpu::dynamic_shared<float>();                                 // [32, pitch]
  auto* const rows = reinterpret_cast<std::byte*>(values + kTilePositions * pitch);  // [32, row_bytes]
  auto* const tile = rows + kTilePositions * row_bytes;
  const int n_tiles = (first + count - 1) / kTilePositions - first / kTilePositions + 1;
  const int64_t seq_head = blockIdx.x / n_tiles, seq = seq_head / n_kv_heads, head = seq_head % n_kv_heads;
  const int t = first / kTilePositions + int(blockIdx.x % n_tiles);
  const int begin = max(first - t * kTilePositions, 0), end = min(first + count - t * kTilePositions, kTilePositions);
  std::byte* const home = coded_tile(coded, Rows::kKind, seq_head, t * kTilePositions, dim);

  for (int i = int(threadIdx.x) * 4; i < shape.bytes; i += kTileThreads * 4)
    *reinterpret_cast<uint32_t*>(tile + i) = *reinterpret_cast<const uint32_t*>(home + i);
  for (int i = int(threadIdx.x); i < (end - begin) * dim; i += kTileThreads) {
    const int p = begin + i / dim;
    values[p * pitch + i % dim] = from.rows[seq * from.seq_stride + head * from.head_stride +
                                            (t * kTilePositions + p - first) * from.position_stride + i % dim];
  }
  __syncthreads();
  if (threadIdx.x < kTilePositions) {
    const int p = int(threadIdx.x);
    int saturated = 0;
    if (p >= begin && p < end)
      saturated =
          F::encode(values + p * pitch, dim, coding_of(coding, seq_head, n_kv_heads, dim), rows + p * row_bytes);
    __syncwarp();
    count_saturated(saturated, total);
  }
  __syncthreads();
  const auto load = [&](int at) { return *reinterpret_cast<const uint32_t*>(tile + at); };
  const auto store = [&](int at, uint32_t word) { *reinterpret_cast<uint32_t*>(tile + at) = word; };
  // Groups of a lane that share words with no others: codes of 3 bits go over the ends of words.
  constexpr int kGroups = Rows::kKind == TileKind::rotor3 ? 4 : 1;
  for (int unit = int(threadIdx.x); unit < 4 / kGroups * dim; unit += kTileThreads)
    for (int k = 0; k < 8 * kGroups; ++k) {
      const TilePlace at{unit % 32, unit / 32 * kGroups + k / 8, k % 8};
      const int r = at.lane / 4, c = at.lane % 4;
      const int p = coded.is_k ? 8 * (at.group % 4) + r : 8 * (at.i / 2) + 2 * c + at.i % 2;
      const int d = coded.is_k ? 32 * (at.group / 4) + 8 * c + at.i : 8 * at.group + r;
      if (p >= begin && p < end)
        set_tile_code(Rows::kKind, shape, at, Rows::code(rows + p * row_bytes, d), load, store);
    }
  for (int i = int(threadIdx.x); i < shape.scale_blocks * kTilePositions; i += kTileThreads) {
    const int p = i % kTilePositions, block = i / kTilePositions;
    if (p >= begin && p < end)
      tile_rows::store16(tile + shape.scale_at(block, p), Rows::scale(rows + p * row_bytes, dim, block));
  }
  __syncthreads();
  for (int i = int(threadIdx.x) * 4; i < shape.bytes; i += kTileThreads * 4)
    *reinterpret_cast<uint32_t*>(home + i) = *reinterpret_cast<const uint32_t*>(tile + i);
}

/// What F::decode gives for a code and its scale.
template <class F>
__device__ float tile_value(uint32_t code, uint16_t scale) {
  constexpr TileKind kKind = TileRows<F>::kKind;
  if constexpr (kKind == TileKind::f16) return f16_to_f32(uint16_t(code));
  else if constexpr (kKind == TileKind::bf16) return bf16_to_f32(uint16_t(code));
  else if constexpr (kKind == TileKind::q4) return float(int(code) - 8) * f16_to_f32(scale);
  else if constexpr (kKind == TileKind::rotor3 || kKind == TileKind::rotor4) {
    constexpr auto levels = F::kLevels;
    return levels.at[code] * f16_to_f32(scale);
  } else {
    return float(int8_t(code)) * f16_to_f32(scale);
  }
}

/// A block a tile; sinks come from the exact store.
template <class F>
__global__ void decode_tile_kernel(int dim, KvCodedStore coded, KvExactStore e, KvFloatRows out) {
  const TileShape shape(TileRows<F>::kKind, dim);
  const int n_tiles = (out.count + kTilePositions - 1) / kTilePositions, t = int(blockIdx.x % n_tiles);
  const int64_t seq_head = blockIdx.x / n_tiles;
  const std::byte* const tile = coded_tile(coded, TileRows<F>::kKind, seq_head, t * kTilePositions, dim);
  const auto load = [&](int at) { return *reinterpret_cast<const uint32_t*>(tile + at); };
  const int count = min(kTilePositions, out.count - t * kTilePositions);
  for (int i = int(threadIdx.x); i < count * dim; i += kTileThreads) {
    const int p = i / dim, d = i % dim, position = t * kTilePositions + p;
    float value;
    if (position < e.n_sinks) {
      value = read_exact(e, seq_head, position, dim, d);
    } else {
      const uint32_t code = tile_code(TileRows<F>::kKind, shape, tile_place(coded.is_k, p, d), load);
      const int block = shape.scale_blocks > 1 ? d / 32 : 0;
      value = tile_value<F>(code, shape.scale_blocks > 0 ? tile_rows::load16(tile + shape.scale_at(block, p)) : 0);
    }
    out.rows[(seq_head * out.count + position) * dim + d] = value;
  }
}

__global__ void rotate_kernel(int64_t n_rows, RotationView rotation, float* rows) {
  float* const tile = gpu::dynamic_shared<float>();
  const int64_t first = int64_t(blockIdx.x) * kRows;
  const int dim = rotation.head_dim;
  load_rows(rows, first, n_rows, dim, tile);
  if (first + threadIdx.x < n_rows) rotation.forward(tile + threadIdx.x * (dim | 1));
  store_rows(tile, first, n_rows, dim, rows);
}

__global__ void restore_kernel(int64_t n_rows, int n_tokens, int n_heads, int n_kv_heads, RotationView rotation,
                               const float* centre, float* rows) {
  float* const tile = gpu::dynamic_shared<float>();
  const int64_t first = int64_t(blockIdx.x) * kRows, r = first + threadIdx.x;
  const int dim = rotation.head_dim;
  load_rows(rows, first, n_rows, dim, tile);
  if (r < n_rows) {
    float* row = tile + threadIdx.x * (dim | 1);
    if (centre != nullptr) {
      const int64_t seq = r / n_heads / n_tokens, kv_head = r % n_heads / (n_heads / n_kv_heads);
      const float* c = centre + (seq * n_kv_heads + kv_head) * dim;
      for (int d = 0; d < dim; ++d) row[d] += 1.0f * c[d];
    }
    rotation.backward(row);
  }
  store_rows(tile, first, n_rows, dim, rows);
}

using EncodeKernel = void (*)(int, int, int, RowSource, int, int, KvDeviceCoding, KvCodedStore, unsigned long long*);
using DecodeKernel = void (*)(int, int, int, KvDeviceCoding, KvCodedStore, KvExactStore, KvFloatRows);

template <class... F>
EncodeKernel encode_kernel_of(int format, KvTypes<F...>) {
  static constexpr EncodeKernel kKernels[] = {encode_kernel<F>...};
  return kKernels[format];
}
template <class... F>
DecodeKernel decode_kernel_of(int format, KvTypes<F...>) {
  static constexpr DecodeKernel kKernels[] = {decode_kernel<F>...};
  return kKernels[format];
}

/// Kernels of a format in tiles; null for a format that is not held so.
struct TileKernels {
  void (*encode)(int, int, RowSource, int, int, KvDeviceCoding, KvCodedStore, unsigned long long*) = nullptr;
  void (*decode)(int, KvCodedStore, KvExactStore, KvFloatRows) = nullptr;
  TileKind kind = TileKind::f16;
};
template <class F>
TileKernels tile_kernels() {
  if constexpr (TileRows<F>::kHeld) return {encode_tile_kernel<F>, decode_tile_kernel<F>, TileRows<F>::kKind};
  else return {};
}
template <class... F>
TileKernels tile_kernels_of(int format, KvTypes<F...>) {
  const TileKernels kernels[] = {tile_kernels<F>()...};
  return kernels[format];
}

void launch_encode(gpu::StreamHandle stream, int format, int n_seq, int n_kv_heads, int head_dim, RowSource from,
                   int first, int count, const KvDeviceCoding& coding, const KvCodedStore& coded,
                   unsigned long long* saturated) {
  const int64_t n_rows = int64_t(n_seq) * n_kv_heads * count;
  if (n_rows == 0) return;
  if (coded.tiled) {
    const TileKernels kernels = tile_kernels_of(format, KvFormatTypes());
    const int n_tiles = (first + count - 1) / kTilePositions - first / kTilePositions + 1;
    const size_t shared = encode_tile_shared(coded.row_bytes, TileShape(kernels.kind, head_dim).bytes, head_dim);
    gpu::check(cudaFuncSetAttribute(kernels.encode, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)),
               "shared memory of kv encode");
    gpu::launch("kv encode", kernels.encode,
                {unsigned(int64_t(n_seq) * n_kv_heads * n_tiles), kTileThreads, shared, stream}, n_kv_heads, head_dim,
                from, first, count, coding, coded, saturated);
    return;
  }
  gpu::launch("kv encode", encode_kernel_of(format, KvFormatTypes()),
              {row_blocks(n_rows), kRows, shared_bytes(head_dim), stream}, n_seq, n_kv_heads, head_dim, from, first,
              count, coding, coded, saturated);
}

}  // namespace

void device_to_space(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact, const ToSpace& steps,
                     unsigned long long* saturated) {
  const bool turns = steps.rotate != nullptr && steps.rotate->kind != Rotation::none;
  if (!turns && steps.centre == nullptr && !steps.round && batch.n_past >= steps.round_before) return;
  const int64_t n_rows = int64_t(batch.n_seq) * batch.n_new * batch.n_kv_heads;
  if (has_warp_rows(batch.head_dim)) {
    const auto kernel = batch.head_dim == 64    ? to_space_warps_kernel<2>
                        : batch.head_dim == 128 ? to_space_warps_kernel<4>
                                                : to_space_warps_kernel<8>;
    gpu::launch("kv to space", kernel, {warp_blocks(n_rows), 32 * kRowWarps, 0, stream}, batch, exact, turns,
                turns ? *steps.rotate : RotationView{}, steps.round_before, steps.centre, steps.round, saturated);
    return;
  }
  gpu::launch("kv to space", to_space_kernel, {row_blocks(n_rows), kRows, shared_bytes(batch.head_dim), stream}, batch,
              exact, steps.rotate != nullptr, steps.rotate ? *steps.rotate : RotationView{}, steps.round_before,
              steps.centre, steps.round, saturated);
}

void device_calibrate(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact, int first, int last,
                      float* centre, float* head_scale) {
  const int threads = (batch.head_dim + 31) / 32 * 32;
  gpu::launch("kv calibrate", calibrate_kernel, {unsigned(batch.n_seq * batch.n_kv_heads), threads, 0, stream}, batch,
              exact, first, last, centre, head_scale);
  const int held = std::min(batch.n_past, last);
  if (centre == nullptr || held == 0) return;
  const int64_t n_heads = int64_t(batch.n_seq) * batch.n_kv_heads;
  gpu::launch("kv shift", shift_exact_kernel, {unsigned(gpu::ceil_div(n_heads * held, 64)), 64, 0, stream}, n_heads,
              held, batch.head_dim, exact, centre);
}

void device_gather_exact(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact,
                         const KvFloatRows& out) {
  if (out.count == 0) return;
  gpu::launch("kv gather", gather_exact_kernel,
              {unsigned(int64_t(batch.n_seq) * batch.n_kv_heads * out.count), 128, 0, stream}, batch, exact, out);
}

void device_keep_exact(gpu::StreamHandle stream, const KvRowBatch& batch, const KvExactStore& exact) {
  gpu::launch("kv keep", keep_exact_kernel,
              {unsigned(int64_t(batch.n_seq) * batch.n_new * batch.n_kv_heads), 128, 0, stream}, batch, exact);
}

void device_encode(gpu::StreamHandle stream, int format, int n_seq, int n_kv_heads, int head_dim,
                   const KvFloatRows& from, int first, int count, const KvDeviceCoding& coding,
                   const KvCodedStore& coded, unsigned long long* saturated) {
  const int64_t head_stride = int64_t(from.count) * head_dim;
  launch_encode(stream, format, n_seq, n_kv_heads, head_dim,
                {from.rows + int64_t(first - from.first) * head_dim, n_kv_heads * head_stride, head_stride, head_dim},
                first, count, coding, coded, saturated);
}

void device_encode(gpu::StreamHandle stream, int format, const KvRowBatch& batch, const KvDeviceCoding& coding,
                   const KvCodedStore& coded, unsigned long long* saturated) {
  const int64_t position_stride = int64_t(batch.n_kv_heads) * batch.head_dim;
  launch_encode(stream, format, batch.n_seq, batch.n_kv_heads, batch.head_dim,
                {batch.rows, batch.n_new * position_stride, batch.head_dim, position_stride}, batch.n_past, batch.n_new,
                coding, coded, saturated);
}

void device_decode(gpu::StreamHandle stream, int format, int n_seq, int n_kv_heads, int head_dim,
                   const KvDeviceCoding& coding, const KvCodedStore& coded, const KvExactStore& exact,
                   const KvFloatRows& out) {
  const int64_t n_rows = int64_t(n_seq) * n_kv_heads * out.count;
  if (n_rows == 0) return;
  if (coded.tiled) {
    const int64_t n_tiles = gpu::ceil_div(out.count, kTilePositions);
    gpu::launch("kv decode", tile_kernels_of(format, KvFormatTypes()).decode,
                {unsigned(int64_t(n_seq) * n_kv_heads * n_tiles), kTileThreads, 0, stream}, head_dim, coded, exact,
                out);
    return;
  }
  gpu::launch("kv decode", decode_kernel_of(format, KvFormatTypes()),
              {row_blocks(n_rows), kRows, shared_bytes(head_dim), stream}, n_seq, n_kv_heads, head_dim, coding, coded,
              exact, out);
}

void device_rotate(gpu::StreamHandle stream, int64_t n_rows, const RotationView& rotation, float* rows) {
  if (rotation.kind == Rotation::none) return;
  if (has_warp_rows(rotation.head_dim)) {
    const auto kernel = rotation.head_dim == 64    ? rotate_warps_kernel<2>
                        : rotation.head_dim == 128 ? rotate_warps_kernel<4>
                                                   : rotate_warps_kernel<8>;
    gpu::launch("rotate", kernel, {warp_blocks(n_rows), 32 * kRowWarps, 0, stream}, n_rows, rotation, rows);
    return;
  }
  gpu::launch("rotate", rotate_kernel, {row_blocks(n_rows), kRows, shared_bytes(rotation.head_dim), stream}, n_rows,
              rotation, rows);
}

void device_restore(gpu::StreamHandle stream, int n_seq, int n_tokens, int n_heads, int n_kv_heads,
                    const RotationView& rotation, const float* centre, float* rows) {
  if (rotation.kind == Rotation::none && centre == nullptr) return;
  const int64_t n_rows = int64_t(n_seq) * n_tokens * n_heads;
  if (has_warp_rows(rotation.head_dim)) {
    const auto kernel = rotation.head_dim == 64    ? restore_warps_kernel<2>
                        : rotation.head_dim == 128 ? restore_warps_kernel<4>
                                                   : restore_warps_kernel<8>;
    gpu::launch("kv restore", kernel, {warp_blocks(n_rows), 32 * kRowWarps, 0, stream}, n_rows, n_tokens, n_heads,
                n_kv_heads, rotation, centre, rows);
    return;
  }
  gpu::launch("kv restore", restore_kernel, {row_blocks(n_rows), kRows, shared_bytes(rotation.head_dim), stream},
              n_rows, n_tokens, n_heads, n_kv_heads, rotation, centre, rows);
}

}  // namespace ridge
