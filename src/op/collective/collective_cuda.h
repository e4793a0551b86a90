// Several devices of one process that hold a model together: a thread each, sums and columns of all of them by the rows
// of collective.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/device.h"
#include "gpu/nccl.h"
#include "op/collective/collective.h"
#include "op/collective/device_link.h"
#include "op/collective/one_shot_cuda.h"

namespace ridge {

struct DeviceGroupOptions {
  ForcedKernels forced;  ///< of the ops all_reduce and gather_columns
  /// Longest wait for another rank, on the device; also for NCCL, where the host waits by DeviceRank::synchronize().
  double timeout_s = 60;
  int64_t most_floats = 0;  ///< of a sum: NCCL is started when one of so many may take it
};

class DeviceGroup;

/// One device of this process, seen from its own thread.
class DeviceRank final : public DeviceLink {
 public:
  int rank() const override { return one_shot_.rank; }
  int size() const override { return one_shot_.n_ranks; }
  int device() const { return device_; }

  /// One-shot and two-shot add in the order of ranks: ((v0 + v1) + v2) + ...
  void all_reduce(gpu::StreamHandle stream, float* values, int64_t n, bool overlap) override;
  void gather_columns(gpu::StreamHandle stream, const float* own, int64_t n_rows, std::span<const int64_t> borders,
                      float* whole, bool overlap) override;
  std::string_view all_reduce_kernel(int64_t n) const override;
  std::string_view gather_columns_kernel() const override;

  /// Throws Error(failure) naming the rank that did not come, if a wait of any rank ran out of time; all ranks' waits
  /// have ended then, and results of what was queued mean nothing. Also when NCCL reports a failure, and after
  /// DeviceGroup::end().
  void check() const;
  /// Waits for the stream, then check(). Where NCCL is in use, whose waits do not end, it waits no longer than
  /// timeout_s and a second, and ends all ranks then.
  void synchronize(const gpu::Stream& stream) const;

 private:
  friend class DeviceGroup;
  DeviceRank() = default;

  DeviceGroup* group_ = nullptr;
  int device_ = 0;
  OneShotRank one_shot_;
  gpu::Buffer state_, inbox_;
  NcclGather nccl_gather_;
};

/// One process, one thread a device.
class DeviceGroup {
 public:
  /// Rank r is devices[r], 2 to kMostDeviceRanks different ones. Opens their memory to each other, makes staging
  /// memory, and starts NCCL where it may be needed. Throws Error: no_device for a device that is not there, usage when
  /// a forced kernel cannot serve or no kernel can, with the reasons.
  DeviceGroup(std::span<const int> devices, const DeviceGroupOptions& options);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  /// Two or more of its ranks, in this order, as a group of their own, which this one keeps: other sums and columns by
  /// the same kernels, of at most so many floats a sum. Their waits end together with all others, and messages have the
  /// numbers of this group.
  DeviceGroup& part(std::span<const int> ranks, int64_t most_floats);

  int size() const { return int(devices_.size()); }
  DeviceRank& rank(int r) { return *ranks_.at(size_t(r)); }
  /// "rank 1 (cuda:3)".
  std::string name(int r) const;

  /// Ends all waits on all devices soon: for a rank that fails and will not come. From any thread. The ranks can only
  /// be destroyed then; their check() throws.
  void end();

 private:
  friend class DeviceRank;
  DeviceGroup(DeviceGroup& whole, std::span<const int> ranks, int64_t most_floats);
  void open();
  const CollectiveVariant& all_reduce_row(int64_t n_floats) const;
  const CollectiveVariant& gather_row() const;
  void check() const;

  std::vector<int> devices_, numbers_;  // numbers_: of its ranks in whole_
  DeviceGroupOptions options_;
  DeviceGroup* const whole_;  // itself, if it is no part
  CollectiveProblem links_;
  gpu::PinnedBuffer end_words_;  // OneShotEnd; of whole_
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
  std::unique_ptr<gpu::Nccl> nccl_;
  std::vector<std::unique_ptr<DeviceGroup>> parts_;
};

}  // namespace ridge
