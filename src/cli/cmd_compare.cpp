// ridge compare: is B faster than A on this machine, beyond the noise?
#include <memory>

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/options.h"
#include "engine/device_name.h"
#include "lab/op/op_turns.h"
#include "lab/sweep/compare.h"
#include "lab/sweep/sweep_spec.h"

namespace ridge::cli {
namespace {

struct CompareFlags {
  ModelFlags device;
  OutputFlags output;
  std::string op = "gemv", shape = "8960x1536", weights = "f16", heads = "12/2", kv = "f16", against, kernel = "best",
              against_kernel;
  int head_dim = 128, batch = 1, depth = 4096;
  lab::SweepSpec spec{.samples = 60, .max_seconds = 10};
  double budget_percent = 100 * lab::kEffectBudget;
};

/// A, as a cell of a sweep.
lab::SweepCell cell_of(const CompareFlags& flags) {
  lab::SweepCell cell{.bench = flags.op};
  const bool gemv = flags.op == "gemv";
  if (!gemv && flags.op != "attention" && flags.op != "append")
    bad_flag("--op", fmt::format("expects gemv, attention or append, found '{}'", flags.op));
  const auto shapes =
      gemv ? lab::parse_op_shapes("--shape", flags.shape, 'x') : lab::parse_op_shapes("--heads", flags.heads, '/');
  if (!shapes) throw Error(shapes.error().kind, shapes.error().message);
  if (shapes->size() != 1) bad_flag(gemv ? "--shape" : "--heads", "expects one shape", "run the command once for each");
  cell.shape = shapes->at(0);
  cell.batch = flags.batch;
  cell.format = gemv ? flags.weights : flags.kv;
  cell.kernel = flags.kernel;
  if (gemv) return cell;
  cell.head_dim = flags.head_dim;
  cell.depth = flags.depth;
  cell.n_new = flags.op == "append" ? 1 : 0;
  return cell;
}

int compare(const CompareFlags& flags) {
  check_device(flags.device.device);
  const lab::SweepCell a = cell_of(flags);
  lab::SweepCell b = a;
  if (!flags.against.empty()) b.format = flags.against;
  if (!flags.against_kernel.empty()) b.kernel = flags.against_kernel;
  lab::OpBenchParams params = lab::op_params(flags.spec, a);
  params.device = parse_device(flags.device.device).value_or(lab::OpDevice::kCpu);
  params.n_threads = flags.device.n_threads;
  params.isa = flags.device.isa;
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();

  constexpr const char* kNames[] = {"A", "B", "A'"};
  std::vector<lab::OpTurn> turns;
  for (const lab::SweepCell& cell : {a, b, a})
    turns.push_back({lab::op_problem(flags.spec, cell), lab::op_params(flags.spec, cell).kernels});
  lab::OpRow rows[3];
  lab::Row fields[3];
  bool failed = false;
  Progress progress("compare", !flags.output.quiet);
  lab::OpTurnHooks hooks;
  hooks.stop = interrupted;
  hooks.on_status = [&](const std::string& what) { progress.set(0, 0, what); };
  hooks.on_none = [&](size_t i, const std::string& why) {
    throw_error(ErrorKind::usage, "{}: no kernel for {}: {}", kNames[i], lab::SweepCell(i == 1 ? b : a).text(), why);
  };
  hooks.on_row = [&](size_t i, const lab::OpRow& row) {
    failed |= row.failed();
    rows[i] = row;
    fields[i] = lab::op_columns().fields(row);
  };
  lab::run_op_turns(params, turns, lab::op_kernels(), hooks);
  progress.clear();
  if (interrupted()) return int(ErrorKind::interrupted);

  const lab::Verdict verdict =
      lab::judge(rows[0].seconds, rows[2].seconds, rows[1].seconds, flags.budget_percent / 100);
  lab::Row row{{"kind", "compare"}};
  row.update(lab::verdict_columns().fields(verdict));
  row["a"] = fields[0];
  row["again"] = fields[2];
  row["b"] = fields[1];
  if (flags.output.json) fmt::print("{}\n", lab::json_text(row, 2));
  else {
    fmt::print("{}\n", lab::op_columns().head());
    for (const int i : {0, 2, 1}) fmt::print("{}\n", lab::op_columns().line(rows[i]));
    if (!failed)
      fmt::print("\nB ({} {}) against A ({} {}): {}\n", b.format, rows[1].kernel, a.format, rows[0].kernel,
                 lab::verdict_text(verdict));
  }
  if (failed) {
    fmt::print(stderr, "error: a result failed its check: there is nothing to compare\n");
    return int(ErrorKind::gate);
  }
  results.add(row);
  return 0;
}

}  // namespace

static Action declare_compare(CLI::App& app) {
  const auto flags = std::make_shared<CompareFlags>();
  CompareFlags& f = *flags;
  in_group(app, "A and B");
  add_text(app, "--op", f.op, "NAME", "gemv, attention or append");
  add_text(app, "--shape", f.shape, "N_OUTxN_IN", "of the weights (gemv)");
  add_text(app, "--weights", f.weights, "FORMAT", "weight format of A (gemv)");
  add_text(app, "--heads", f.heads, "HEADS/KV_HEADS", "(attention, append)");
  add_whole(app, "--head-dim", f.head_dim, 1, 256, "width of a head (attention, append)");
  add_text(app, "--kv", f.kv, "FORMAT", "cache format of A, K/V where they differ (attention, append)");
  add_whole(app, "--seq", f.depth, 1, 1 << 24, "cached positions (attention, append)");
  add_whole(app, "--batch", f.batch, 1, 65535, "tokens (gemv) or equal sequences (attention, append)");
  add_text(app, "--kernel", f.kernel, "NAME", "kernel of A");
  add_text(app, "--against", f.against, "FORMAT", "format of B; left out: the format of A");
  add_text(app, "--against-kernel", f.against_kernel, "NAME", "kernel of B; left out: as --kernel");
  in_group(app, "Run");
  add_whole(app, "-r,--repeat", f.spec.samples, lab::kFewestSamples, 100000, "samples of A, of B and of A again");
  add_whole(app, "--max-seconds", f.spec.max_seconds, 1, 3600, "samples end after this long each, five at least");
  add_real(app, "--budget", f.budget_percent, 0, 1000, "effects of up to so many percent do not matter");
  in_group(app, "Model");
  add_place_flags(app, f.device);
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::op_columns().texts()));
  return [flags] { return compare(*flags); };
}

extern const Command compare_command = {
    "compare", "is B faster than A here, beyond the noise",
    R"(Times an op in two formats or by two kernels, and A a second time, in turns. The difference between the two
runs of A, or three times the spread of single samples, is the noise: an effect inside it gets NO VERDICT.
Without --against and --against-kernel B is A too.)",
    R"(ridge compare --op gemv --shape 8960x1536 --weights f16 --against int4_g128
ridge compare --op attention --heads 12/2 --seq 32768 --kv f16 --against rotor-3)",
    declare_compare};

}  // namespace ridge::cli
