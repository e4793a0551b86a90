// The centres and the scales of heads of a sequence that has come to kCalibration positions.
#include "op/cache/exact_rows.h"
#include "op/cache/rotate_warp.h"

namespace ridge {
namespace {

/// The odd pitch keeps the threads on different banks.
__device__ int pitch_of(int head_dim) { return head_dim | 1; }

constexpr int kCalibrationTiles = kCalibration / kTilePositions, kCalibrationThreads = 512;
size_t calibration_bytes(const KvTiles& side) {
  return size_t(side.retention.calibration + kCalibrationTiles) * size_t(side.head_dim | 1) * sizeof(float);
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
