// The kernel tables of all ops, seen as names: the one list of ops that --kernel, `ridge info` and `ridge explain`
// know.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "op/cpu.h"

namespace ridge {

/// One row of a table.
struct KernelInfo {
  std::string_view name;
  Isa isa = Isa::scalar;  ///< of the CPU
};

struct KernelTable {
  std::string_view op;
  bool of_models;                   ///< models run the op, and --kernel chooses among its kernels
  std::vector<KernelInfo> kernels;  ///< worst to best
};
std::vector<KernelTable> kernel_tables();
/// Tables of a GPU's kernels, in every build. `launch` is how a recorded forward pass's kernels follow one another;
/// `router` (op/experts) and `delta` (op/delta) have two kernels of few tokens each.
std::vector<KernelTable> device_kernel_tables();

std::vector<std::string_view> op_names(std::span<const KernelTable> tables);

/// Notes a choice "op=name", or several names joined by '+'. Throws Error(usage) for an op that no model runs or a
/// kernel that is not in its table, naming those there are.
void force_kernel(std::span<const KernelTable> tables, const std::string& choice, ForcedKernels& forced);

}  // namespace ridge
