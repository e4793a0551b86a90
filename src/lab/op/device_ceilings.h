// A GPU's ceilings, measured by our own kernels: read, write, copy and triad bandwidth of its memory, read bandwidth of
// its L2, multiply-adds in registers, and what a graph costs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/device_query.h"
#include "lab/op/ceilings.h"

namespace ridge::lab {

struct DeviceCeilingOptions {
  int device = 0;
  int64_t bytes = 0;  ///< of one buffer; 0 chooses
  int replays = 30;
  double max_seconds = 10;  ///< of all streams together
  bool read_only = false;   ///< only memory bandwidth ...
  bool rates = false;       ///< ... and the rates
  int rate_rounds = 8192;   ///< of a rate's kernel: one or two milliseconds
  std::function<bool()> stop;
};

/// Microseconds of something that moves no bytes.
struct EdgeResult {
  std::string name;
  std::string what;
  Spread us;
  int repeats = 0;
};

/// A GPU and its driver, as rows name them.
struct GpuPlace {
  gpu::Device device;
  int driver_version = 0, runtime_version = 0;  ///< 1000 * major + 10 * minor
};
Columns<GpuPlace> gpu_columns();

struct DeviceCeilings : Bandwidths, GpuPlace {
  int index = 0;
  std::vector<EdgeResult> edges;  ///< "graph-edge", "graph-edge-overlap", "graph-launch", "graph-round-trip"

  /// The fastest reading kernel; nullptr when none was measured.
  const StreamResult* best_read() const;
  /// The memory bandwidth of read-mostly work, GB/s (10^9): best replay of the fastest kernel.
  double read_gb_s() const;
};

/// 4 GiB and at least 16 x the last-level cache, cut down to an eighth of the free memory.
StreamSize choose_device_stream_size(int64_t cache_bytes, int64_t free_bytes);

/// Measures. Every kernel's result is checked first: a wrong sum, copy or triad throws Error(gate). Throws no_device in
/// a build without CUDA or without this device, no_memory when the buffers do not fit.
DeviceCeilings measure_device_ceilings(const DeviceCeilingOptions& options);

Columns<EdgeResult> edge_columns();
Columns<DeviceCeilings> device_ceiling_columns();
/// A version of gpu::DeviceReport as "13.0".
std::string runtime_version_text(int version);

}  // namespace ridge::lab
