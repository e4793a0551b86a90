// A device's way to the others that hold a model together, in this process (collective_cuda.h) or in others
// (process_rank_cuda.h).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/device.h"
#include "gpu/nccl.h"

namespace ridge {

/// One of several ranks, seen from the thread that works on its device (gpu::use_device()).
///
/// All ranks make the same calls in the same order, each on one stream. Calls are queued, and may be recorded into a
/// graph. The grid before may still run where `overlap` says so (gpu::Grid).
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// values [n] = sum over ranks, in place; the same bits on every rank. n is at most most_floats of the options that
  /// the link was made with.
  virtual void all_reduce(gpu::StreamHandle stream, float* values, int64_t n, bool overlap) = 0;
  /// whole [n_rows, borders.back()] on every rank: columns [borders[r], borders[r + 1]) are `own` [n_rows, ..] of rank
  /// r, bit by bit. borders has size() + 1 entries, from 0 on; fewer than 2^31 floats in all. With NCCL a call that is
  /// recorded must have been made once before by as many rows.
  virtual void gather_columns(gpu::StreamHandle stream, const float* own, int64_t n_rows,
                              std::span<const int64_t> borders, float* whole, bool overlap) = 0;

  /// Names of collective.h.
  virtual std::string_view all_reduce_kernel(int64_t n) const = 0;
  virtual std::string_view gather_columns_kernel() const = 0;
};

/// Columns by NCCL: parts by rank first, then in their places.
class NcclGather {
 public:
  /// As DeviceLink::gather_columns() of rank `rank`.
  void run(gpu::Nccl& nccl, int rank, gpu::StreamHandle stream, const float* own, int64_t n_rows,
           std::span<const int64_t> borders, float* whole);

 private:
  std::vector<gpu::Buffer> parts_;  // each twice as large as the one before; the last one is in use, and older ones are
                                    // in graphs that were recorded with them
};

}  // namespace ridge
