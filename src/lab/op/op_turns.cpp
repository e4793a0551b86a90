#include "lab/op/op_turns.h"

#include <algorithm>

namespace ridge::lab {
namespace {

/// A turn dressed as a kernel of the run's one problem: it opens its own.
struct Dress {
  std::string name;
  const OpTurn* turn = nullptr;
  const OpKernel* kernel = nullptr;  ///< chosen when the run asks what it supports
  std::string why_none;

  OpKernel row(const OpBenchParams& params, std::span<const OpKernel> table) {
    OpKernel row;
    row.op = params.op;
    row.name = name;
    row.supports = [this, params, table](const OpProblem&, const OpDevice& device) -> Support {
      OpBenchParams own = params;
      own.kernels = turn->kernels;
      const KernelChoice choice = choose_kernels(own, turn->problem, table, device);
      why_none = choice.why_none;
      if (choice.kernels.empty()) return {false, why_none.c_str()};
      kernel = choice.kernels.back();
      return {};
    };
    row.set_bytes = [this](const OpProblem&) { return kernel->set_bytes(turn->problem); };
    if (params.device == OpDevice::kCpu)
      row.open_cpu = [this](const OpProblem&, CpuContext& context, int n_sets, uint64_t seed) {
        return kernel->open_cpu(turn->problem, context, n_sets, seed);
      };
    else
      row.open = [this](const OpProblem&, const gpu::Stream& stream, int n_sets, uint64_t seed) {
        return kernel->open(turn->problem, stream, n_sets, seed);
      };
    return row;
  }
};

}  // namespace

void run_op_turns(OpBenchParams params, std::span<const OpTurn> turns, std::span<const OpKernel> table,
                  const OpTurnHooks& hooks) {
  RIDGE_CHECK(!turns.empty(), "turns of nothing");
  params.max_seconds *= double(turns.size());
  std::vector<Dress> dresses;
  for (const OpTurn& turn : turns) dresses.push_back({.name = std::to_string(dresses.size()), .turn = &turn});
  std::vector<OpKernel> rows;
  for (Dress& dress : dresses) rows.push_back(dress.row(params, table));
  params.kernels = {"all"};

  OpBenchHooks inner;
  inner.stop = hooks.stop;
  inner.on_status = [&](const std::string& what, int, int) {
    if (hooks.on_status) hooks.on_status(what);
  };
  inner.on_row = [&](OpRow row) {
    const size_t turn = size_t(std::stoi(row.kernel));
    const Dress& dress = dresses[turn];
    row.problem = dress.turn->problem;
    row.kernel = dress.kernel->name;
    row.work = op_work(row.problem);
    row.moved_bytes = moved_bytes_of(*dress.kernel, row.problem);
    hooks.on_row(turn, row);
  };
  const auto none = [](const Dress& dress) { return !dress.kernel && !dress.why_none.empty(); };
  try {
    run_op_bench(params, rows, inner);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage || !std::all_of(dresses.begin(), dresses.end(), none)) throw;
  }
  for (size_t i = 0; i < dresses.size(); ++i)
    if (none(dresses[i])) hooks.on_none(i, dresses[i].why_none);
}

}  // namespace ridge::lab
