// Scratch of CPU kernels against what the rows of their tables tell.
#pragma once

#include <gtest/gtest.h>

#include "op/cpu.h"

namespace ridge {

/// Calls run() with empty scratch, of which it takes `told`.
template <class Run>
void expect_scratch(CpuContext& context, const ScratchBytes& told, const Run& run) {
  context.scratch = {};
  run();
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(context.scratch[i].bytes(), told[i]) << "scratch " << i;
}

}  // namespace ridge
