// Several problems of one op in one run of its bench, in turns: A B C A B C, sample by sample, so that clocks that move
// and other tenants meet all alike. What run_op_bench() does with the kernels of a problem, for problems that differ in
// format, and for the same problem twice (the noise floor).
#pragma once

#include "lab/op/op_bench.h"

namespace ridge::lab {

struct OpTurn {
  OpProblem problem;
  std::vector<std::string> kernels;  ///< one name, or none: the best
};

struct OpTurnHooks {
  std::function<bool()> stop;
  std::function<void(const std::string& what)> on_status;
  std::function<void(size_t turn, const OpRow& row)> on_row;         ///< failed ones hold no times
  std::function<void(size_t turn, const std::string& why)> on_none;  ///< no kernel takes it
};

/// `params` are those of a single problem; max_seconds is that of a turn. Throws what run_op_bench() throws, but has
/// hooks for problems without a kernel.
void run_op_turns(OpBenchParams params, std::span<const OpTurn> turns, std::span<const OpKernel> table,
                  const OpTurnHooks& hooks);

}  // namespace ridge::lab
