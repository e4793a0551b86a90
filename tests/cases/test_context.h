// A context of two threads for tests of operations.
#pragma once

#include "op/cpu.h"

namespace ridge {

inline CpuContext& test_context() {
  static CpuContext context(2);
  return context;
}

}  // namespace ridge
