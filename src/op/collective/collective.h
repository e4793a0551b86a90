// What devices that hold a model together do with one another's results, as tables: sums (all_reduce) and columns put
// side by side (gather_columns). What the rows say of themselves needs neither a device nor CUDA; collective_cuda.h
// runs them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "op/cpu.h"

namespace ridge {

/// Floats (1 MiB) that a rank sends in all, up to which a sum is one-shot: every rank then sends all its values to each
/// other rank. By itself one-shot is faster up to 4 MiB between two H200s (`ridge bench collective`); in a model sums
/// of 2 MiB made steps slower than NCCL's do (docs/decisions/0012).
inline constexpr int64_t kOneShotFloats = 1 << 18;

/// The links between the devices.
struct CollectiveProblem {
  std::string why_no_peers;  ///< why devices cannot write to each other's memory; empty when they can
  std::string why_no_nccl;   ///< why NCCL cannot be used; empty when it can
};

struct CollectiveVariant {
  std::string_view name;
  Support (*supports)(const CollectiveProblem& p);
};
/// Worst to best for so many floats that a one-shot sum would send: the sum's, times the ranks but one.
std::span<const CollectiveVariant> all_reduce_variants(int64_t n_floats);
std::span<const CollectiveVariant> gather_columns_variants();

}  // namespace ridge
