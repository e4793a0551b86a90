// A device of this process whose model is held together with devices of other processes, on this machine or on others:
// sums and columns go through NCCL.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "op/collective/collective.h"
#include "op/collective/device_link.h"
#include "op/collective/step_watch_cuda.h"

namespace ridge {

struct ProcessRankOptions {
  int rank = 0, n_ranks = 1;
  int device = 0;                        ///< that this thread works on
  ForcedKernels forced;                  ///< of the ops all_reduce and gather_columns
  double timeout_s = 60;                 ///< longest wait for another rank in a step
  double start_s = 600;                  ///< the same while NCCL starts
  int64_t most_floats = 0;               ///< of a sum
  bool ends_together = true;             ///< all ranks destroy theirs at one time; else NCCL's ends with the process
  std::function<std::string(int)> name;  ///< of a rank, for messages
  std::function<int()> ended;            ///< a rank whose process is gone, -1: none is known; from any thread
};

/// Within a process ranks have no common memory and no common driver, so they need not meet in front of a step: an
/// allocation waits for this device's own work, and what that waits for moves on in the other processes meanwhile.
class ProcessRank final : public DeviceLink {
 public:
  /// All ranks make theirs at one time, with one id. Throws Error: usage when a forced kernel cannot serve, no_device
  /// without NCCL, failure with NCCL's words. When a rank does not come the process ends (StepWatch).
  ProcessRank(const gpu::NcclId& id, ProcessRankOptions options);
  ~ProcessRank() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.n_ranks; }
  void all_reduce(gpu::StreamHandle stream, float* values, int64_t n, bool overlap) override;
  void gather_columns(gpu::StreamHandle stream, const float* own, int64_t n_rows, std::span<const int64_t> borders,
                      float* whole, bool overlap) override;
  std::string_view all_reduce_kernel(int64_t n) const override;
  std::string_view gather_columns_kernel() const override;

  /// Calls queue(), which queues a step; its end is watched for.
  void step(const std::function<void()>& queue);
  /// Throws Error(failure) naming the rank that has ended or did not come in time, as far as that is known; all waits
  /// have ended then, and results of what was queued mean nothing. Also after end().
  void check();
  /// Ends all waits of this device: for a rank that fails. From any thread.
  void end();

 private:
  void start(const gpu::NcclId& id);
  std::string trouble();
  std::string late(std::string_view what, double seconds) const;
  /// Calls NCCL, while nobody can end it.
  void call(const std::function<void()>& of_nccl);

  const ProcessRankOptions options_;
  const CollectiveProblem links_;
  std::timed_mutex in_call_;         // of NCCL
  std::unique_ptr<gpu::Nccl> nccl_;  // set by the constructor
  std::atomic<bool> ended_ = false;
  gpu::StreamHandle stream_ = nullptr;  // of the calls
  NcclGather gather_;
  std::unique_ptr<StepWatch> watch_;
};

}  // namespace ridge
