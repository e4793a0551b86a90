// The kernel tables of all ops, seen as names.
#pragma once

#include <string_view>
#include <vector>

#include "op/cpu.h"

namespace ridge::cli {

struct KernelTable {
  std::string_view op;
  std::vector<KernelInfo> kernels;  ///< worst to best
};
std::vector<KernelTable> kernel_tables();

}  // namespace ridge::cli
