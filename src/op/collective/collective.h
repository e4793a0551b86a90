// Collectives of devices that hold a model together, as tables: sums (all_reduce) and columns put side by side
// (gather_columns). The tables need neither a device nor CUDA; collective_cuda.h runs the collectives.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "op/cpu.h"

namespace ridge {

/// Largest sum (1 MiB) that Ridge's kernels add; NCCL adds larger ones. By themselves packets are faster up to 4 MiB
/// between two H200s (`ridge bench collective`); in a model sums of 2 MiB made steps slower than NCCL's do
/// (docs/decisions/0012).
inline constexpr int64_t kPacketFloats = 1 << 18;
/// Floats (448 KiB) that a rank sends in all, up to which three or more ranks add in one shot, where every rank sends
/// all its values to each other rank. Two shots send fewer bytes and take one latency more (`ridge bench collective` on
/// four H200s).
inline constexpr int64_t kOneShotFloats = 7 << 14;

/// The links between the devices.
struct CollectiveProblem {
  std::string why_no_peers;  ///< why devices cannot write to each other's memory; empty when they can
  std::string why_no_nccl;   ///< why NCCL cannot be used; empty when it can
};

struct CollectiveVariant {
  std::string_view name;
  Support (*supports)(const CollectiveProblem& p);
};
/// Worst to best for a sum of so many floats over so many ranks.
std::span<const CollectiveVariant> all_reduce_variants(int64_t n_floats, int n_ranks);
std::span<const CollectiveVariant> gather_columns_variants();

}  // namespace ridge
