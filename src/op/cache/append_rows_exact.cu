// New rows into tiles of rows, and rows that leave their window: a thread a row, with the host's own code. For formats
// and head sizes that have no order for tensor cores.
#include "op/cache/append_kernels.h"
#include "op/cache/exact_rows.h"
#include "op/cache/rotate_warp.h"

namespace ridge {
namespace {

/// A block is a warp that holds 32 rows in shared memory, loads and stores them together and works on one row per
/// thread. The odd pitch keeps the threads on different banks.
constexpr int kRows = 32;
__device__ int pitch_of(int head_dim) { return head_dim | 1; }
size_t shared_bytes(int head_dim) { return size_t(kRows) * size_t(head_dim | 1) * sizeof(float); }

constexpr int kCalibrationTiles = kCalibration / kTilePositions, kCalibrationThreads = 512;
size_t calibration_bytes(const KvTiles& side) {
  return size_t(side.retention.calibration + kCalibrationTiles) * size_t(side.head_dim | 1) * sizeof(float);
}

__device__ void norm_row(int dim, const float* weight, float eps, float* row) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += double(row[d]) * row[d];
  const double factor = 1.0 / sqrt(sum / dim + eps);
  for (int d = 0; d < dim; ++d) row[d] = float(row[d] * factor * weight[d]);
}
__device__ void turn_row(int n_pairs, bool halves, const float* cosines, const float* sines, float* row) {
  for (int i = 0; i < n_pairs; ++i) {
    float &a = row[halves ? i : 2 * i], &b = row[halves ? i + n_pairs : 2 * i + 1];
    const float turned = a * cosines[i] - b * sines[i];
    b = a * sines[i] + b * cosines[i];
    a = turned;
  }
}

/// Codes a row into its page. Returns how many values were saturated.
__device__ int code_row(const KvTiles& t, const StepRow& of, const int32_t* pages, int head, int position,
                        const float* row) {
  std::byte* const to = t.coded_row(pages, head, position);
  const KvCoding coding = t.coding(of.slot, head);
  const int saturated = encode_row(t.format, KvFormatTypes(), row, t.head_dim, coding, to);
  float decoded[kMaxDeviceHeadDim], norm2 = 0, error2 = 0;
  decode_row(t.format, KvFormatTypes(), to, t.head_dim, coding, decoded);
  for (int d = 0; d < t.head_dim; ++d) {
    const float error = row[d] - decoded[d];
    norm2 += row[d] * row[d];
    error2 += error * error;
  }
  add_counts(t.counts[pages[position / kPagePositions]], norm2, error2);
  return saturated;
}

/// A row of K or V in cache space to its place.
__device__ void store_row(const KvTiles& t, const StepRow& of, const int32_t* pages, int head, float* row) {
  const int position = of.position;
  const bool at_once = t.retention.window == 0 && position >= t.retention.calibration;
  int saturated = 0;
  if (position < t.retention.calibration) round_to_exact(t, position, row);
  if (t.ring_tiles > 0 || t.n_sinks > 0) saturated += round_to_exact(t, position, row);
  if (position < t.n_sinks || (t.ring_tiles > 0 && !at_once)) write_exact_row(t, of, head, position, row);
  if (at_once) saturated += code_row(t, of, pages, head, position, row);
  add_saturated(t.saturated, saturated);
}

/// Blocks: (32 rows of the step, head of Q, K and V).
__global__ void __launch_bounds__(kRows) append_rows_kernel(const DeviceAppend a) {
  float* const shared_floats = gpu::dynamic_shared<float>();
  const int dim = a.k_tiles.head_dim, pitch = pitch_of(dim), n_kv_heads = a.k_tiles.n_kv_heads;
  const int block = int(blockIdx.y), role = int(block >= a.n_heads) + int(block >= a.n_heads + n_kv_heads);
  const int head = role == 0 ? block : role == 1 ? block - a.n_heads : block - a.n_heads - n_kv_heads;
  const float* const from = role == 0 ? a.q : role == 1 ? a.k : a.v;
  const int64_t from_pitch = role == 0 ? a.q_pitch : role == 1 ? a.k_pitch : a.v_pitch;
  const int first = int(blockIdx.x) * kRows, n = min(kRows, a.rows.n - first);
  for (int i = 0; i < n; ++i)
    for (int d = int(threadIdx.x); d < dim; d += kRows)
      shared_floats[i * pitch + d] = from[a.rows.rows[first + i].row * from_pitch + int64_t(head) * dim + d];
  __syncwarp();

  const int i = int(threadIdx.x);
  if (i < n && a.rows.rows[first + i].slot >= 0) {
    const StepRow of = a.rows.rows[first + i];
    float* const row = shared_floats + i * pitch;
    const float* const norm = role == 0 ? a.q_norm : role == 1 ? a.k_norm : nullptr;
    if (norm) norm_row(dim, norm, a.norm_eps, row);
    const int64_t angles = int64_t(first + i) * a.n_pairs;
    if (role != 2) turn_row(a.n_pairs, a.rope_halves, a.cosines + angles, a.sines + angles, row);
    const KvTiles& t = role == 2 ? a.v_tiles : a.k_tiles;
    if (role != 0) t.move_row(of.slot, head, of.position / kTilePositions, -1, row);  // by nothing until it is set
    t.rotation.forward(row);
    if (role != 0) store_row(t, of, a.rows.pages + int64_t(of.slot) * a.rows.page_pitch, head, row);
  }
  __syncwarp();
  if (role != 0) return;
  for (int j = 0; j < n; ++j)
    for (int d = int(threadIdx.x); d < dim; d += kRows)
      a.q_out[(int64_t(a.rows.rows[first + j].row) * a.n_heads + head) * dim + d] = shared_floats[j * pitch + d];
}

/// Blocks: (tile of the span, side and kv head, spans in turn); a thread a row.
__global__ void __launch_bounds__(kTilePositions) leaving_rows_kernel(const LeavingTiles a) {
  const int head = int(blockIdx.y) % a.n_kv_heads, n_spans = *a.n_spans;
  const int side = int(blockIdx.y) / a.n_kv_heads;
  const KvTiles& t = a.sides ? a.sides[side] : a.pair[side];
  if (t.ring_tiles == 0) return;
  for (int i = int(blockIdx.z); i < n_spans; i += int(gridDim.z)) {
    const StepSpan span = a.spans[i];
    // Without a window rows leave one by one, and only when calibration lets them.
    if (span.slot < 0 || (t.retention.window == 0 && span.n_past >= t.retention.calibration)) continue;
    const int position = t.retention.coded_end(span.n_past) + int(blockIdx.x) * kTilePositions + int(threadIdx.x);
    if (position >= t.retention.coded_end(span.n)) continue;
    const StepRow of{.slot = span.slot, .ring = span.ring};
    float row[kMaxDeviceHeadDim];
    read_exact_row(t, of, head, position, row);
    add_saturated(t.saturated, code_row(t, of, a.pages + int64_t(span.slot) * a.page_pitch, head, position, row));
  }
}

/// A block a (kv head, sequence). A warp takes a row, and a thread where it is coded as its format defines.
template <bool kInRows>
__global__ void __launch_bounds__(kCalibrationThreads) calibrate_kernel(const KvTiles t, const StepRow* step) {
  const int dim = t.head_dim, pitch = pitch_of(dim), head = int(blockIdx.x), thread = int(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const StepRow of = step[blockIdx.y];
  const int last = t.retention.calibration, first = min(t.n_sinks, last - 1), n = last - first;
  float* const rows = gpu::dynamic_shared<float>();  // [calibration, pitch]
  float* const centres = rows + last * pitch;        // [kCalibrationTiles, pitch]
  const int64_t slot_head = int64_t(of.slot) * t.n_kv_heads + head;
  const auto each_row = [&](const auto& act) {  // act(position, row) by a warp
    for (int p = warp; p < last; p += kCalibrationThreads / 32) act(p, rows + p * pitch);
    __syncthreads();
  };
  const auto read = [&] {
    if constexpr (kInRows) {
      for (int p = thread; p < last; p += kCalibrationThreads) read_exact_row(t, of, head, p, rows + p * pitch);
      __syncthreads();
    } else {
      each_row([&](int p, float* row) { read_exact_row(t, of, head, p, lane, row); });
    }
  };
  read();
  if (t.centre) {
    each_row([&](int p, float* row) {
      rotate_shared_row(t.rotation, false, lane, row);
      turn_shared_row_back(t.turn, t.turn.position(p), lane, row);
    });
    for (int d = thread; d < dim; d += kCalibrationThreads) {
      double sum = 0;
      for (int p = first; p < last; ++p) sum += rows[p * pitch + d];
      t.centre[slot_head * dim + d] = float(sum / n);
    }
    __syncthreads();
    if (warp < kCalibrationTiles) put_centre({t, of.slot, head, warp}, lane, centres + warp * pitch);
    read();
    each_row([&](int p, float* row) {
      for (int d = lane; d < dim; d += 32) row[d] -= centres[p / kTilePositions * pitch + d];
    });
  }
  if (t.head_scale && thread == 0) {  // one thread: the host's order
    double size2 = 0;
    for (int p = first; p < last; ++p)
      for (int d = 0; d < dim; ++d) size2 += double(rows[p * pitch + d]) * rows[p * pitch + d];
    t.head_scale[slot_head] = float(sqrt(size2 / (double(n) * dim)));
  }
  if (!t.centre) return;
  if constexpr (kInRows) {
    for (int p = thread; p < last; p += kCalibrationThreads) write_exact_row(t, of, head, p, rows + p * pitch);
  } else {
    each_row([&](int p, const float* row) { write_exact_row(t, of, head, p, lane, row); });
  }
}

}  // namespace

void append_rows(gpu::StreamHandle stream, const DeviceAppend& a) {
  const int heads = a.n_heads + 2 * a.k_tiles.n_kv_heads;
  gpu::launch("append of rows", append_rows_kernel,
              {dim3(unsigned(gpu::ceil_div(a.rows.n, kRows)), unsigned(heads)), kRows, shared_bytes(a.k_tiles.head_dim),
               stream},
              a);
}

void encode_leaving_rows(gpu::StreamHandle stream, const LeavingTiles& a) {
  gpu::launch("encode of leaving rows", leaving_rows_kernel,
              {dim3(unsigned(a.most_tiles), unsigned(a.n_sides * a.n_kv_heads), unsigned(a.most_spans)), kTilePositions,
               0, stream},
              a);
}

bool can_calibrate(const KvTiles& side) { return calibration_bytes(side) <= size_t(gpu::most_shared_bytes()); }

void device_calibrate(gpu::StreamHandle stream, const KvTiles& side, const StepRows& rows) {
  if (side.retention.calibration == 0 || rows.n == 0 || side.n_kv_heads == 0) return;
  const size_t shared = calibration_bytes(side);
  const auto kernel = side.kind == TileKind::rows ? calibrate_kernel<true> : calibrate_kernel<false>;
  gpu::allow_shared_bytes("calibration", kernel, shared);
  gpu::launch("calibration", kernel,
              {dim3(unsigned(side.n_kv_heads), unsigned(rows.n)), kCalibrationThreads, shared, stream}, side,
              rows.rows);
}

}  // namespace ridge
