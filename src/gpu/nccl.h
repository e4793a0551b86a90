// NCCL, NVIDIA's library of collectives, opened when it is wanted: a program that sums over no devices runs without it.
// Nothing of it is needed to build (nccl_library.h). Its environment variables (NCCL_NVLS_ENABLE, NCCL_DEBUG ...) are
// left as they are.
#pragma once

#include <array>
#include <cstddef>
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

/// Identifier by which processes find each other.
using NcclId = std::array<std::byte, 128>;
/// A new one, which the processes of one Nccl must all have. Throws Error: no_device without the library.
NcclId make_nccl_id();

/// Devices of this process, one thread each, or one device of this process and those of others. A call of a rank is
/// matched by the same call of every other one, in the same order; it is queued on the rank's stream and may be
/// recorded into a graph.
class Nccl {
 public:
  /// Rank r is devices[r]; takes seconds, and some hundred MB of each device. Throws Error: no_device without the
  /// library, failure with NCCL's words.
  explicit Nccl(std::span<const int> devices);
  /// Rank `rank` of n_ranks processes, on this thread's device. Waits for all of them, without a limit. Throws as the
  /// other.
  Nccl(const NcclId& id, int rank, int n_ranks);
  /// Waits for the other processes of this machine, which must come here too: or call leave() first, or abort().
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
  /// The process's end will free what this has: the destructor waits for nobody.
  void leave() { left_ = true; }
  /// Ends what is under way on all devices of this process; nothing but the destructor may follow.
  void abort();

 private:
  ncclComm* comm(int rank) const;

  std::vector<ncclComm*> comms_;  // by rank; null: of another process
  bool aborted_ = false, left_ = false;
  mutable std::mutex mutex_;  // of aborted_
};

}  // namespace ridge::gpu
