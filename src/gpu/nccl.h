// NCCL, NVIDIA's library of collectives, opened when it is wanted: a program that sums over no devices runs without it.
// Nothing of it is needed to build: the few functions are declared here by their C interface, which has been the same
// since NCCL 2.9. Its environment variables (NCCL_NVLS_ENABLE, NCCL_DEBUG ...) are left as they are.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"

struct ncclComm;

namespace ridge::gpu {

/// "2.28.3"; empty where the library is not found.
std::string nccl_version();
/// Why NCCL cannot be used, and what to do about it; empty when it can.
std::string why_no_nccl();

/// Devices of this process, one thread each. A call of a rank is matched by the same call of every other one, in the
/// same order; it is queued on the rank's stream and may be recorded into a graph.
class Nccl {
 public:
  /// Rank r is devices[r]; takes seconds, and some hundred MB of each device. Throws Error: no_device without the library,
  /// failure with NCCL's words.
  explicit Nccl(std::span<const int> devices);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  /// values [n] = sum over ranks, in an order of NCCL's choice, the same bits on every rank.
  void all_reduce(int rank, StreamHandle stream, float* values, int64_t n);
  /// parts[r] [counts[r]] = `own` [counts[rank]] of rank r, for every r.
  void gather(int rank, StreamHandle stream, const float* own, std::span<float* const> parts,
              std::span<const int64_t> counts);
  /// Throws Error(failure) when NCCL reports one on this rank.
  void check(int rank) const;
  /// Ends what is under way on all devices; nothing but the destructor may follow.
  void abort();

 private:
  ncclComm* comm(int rank) const;

  std::vector<ncclComm*> comms_;
  bool aborted_ = false;
  mutable std::mutex mutex_;  // of aborted_
};

}  // namespace ridge::gpu
