// ridge sweep: a grid of measurements into a file of rows, resumable, and the crossovers of what the file has.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/options.h"
#include "lab/sweep/crossover.h"
#include "lab/sweep/sweep.h"

namespace ridge::cli {
namespace {

struct SweepFlags {
  OutputFlags output;
  std::string spec, devices = "cpu", isa, baseline = "f16";
  int n_threads = 0;
  double budget_percent = 100 * lab::kEffectBudget;
  bool dry_run = false, crossovers = false;
};

std::vector<lab::Crossover> crossovers_of(const SweepFlags& flags, const lab::Store& store) {
  return lab::find_crossovers(store.rows(), {.baseline = flags.baseline, .budget = flags.budget_percent / 100});
}

int show_crossovers(const SweepFlags& flags) {
  if (!std::filesystem::exists(flags.output.results))
    bad_flag("--results", fmt::format("no such file '{}'", flags.output.results), "ridge sweep makes one");
  const lab::Store store = lab::Store::open(flags.output.results).or_throw();
  const std::vector<lab::Crossover> crossovers = crossovers_of(flags, store);
  if (flags.output.json) fmt::print("{}\n", lab::json_text(lab::list_of(crossovers, lab::crossover_columns()), 2));
  else
    for (const lab::Crossover& crossover : crossovers) fmt::print("{}\n", lab::sentence(crossover));
  if (crossovers.empty() && !flags.output.quiet)
    fmt::print(stderr,
               "no crossovers: {} has no {} beside another format at two batches or depths (`ridge sweep` adds "
               "them, --baseline names another)\n",
               flags.output.results, flags.baseline);
  return 0;
}

/// The plan of every device, in the order they run.
std::vector<lab::SweepPlan> plans_of(const SweepFlags& flags, const lab::SweepSpec& spec,
                                     const std::vector<lab::Row>& stored) {
  std::vector<lab::SweepPlan> plans;
  for (const std::string& device : split(flags.devices, ',')) {
    check_device(device);
    plans.push_back(lab::plan_sweep(spec, {.device = device, .n_threads = flags.n_threads, .isa = flags.isa}, stored));
  }
  return plans;
}

std::string bytes_text(const std::optional<double>& bytes) {
  return bytes ? fmt::format("{:.2f} MB", *bytes / 1e6) : std::string("known when it is loaded");
}

void print_plan(const lab::SweepPlan& plan) {
  fmt::print("| cell on {} | bytes of a call | time | |\n| --- | ---: | ---: | --- |\n", plan.target.device);
  for (const lab::PlannedCell& c : plan.cells)
    fmt::print("| {} | {} | {} | {} |\n", c.cell.text(), bytes_text(c.read_bytes),
               c.is_done ? "" : short_duration(c.seconds), c.is_done ? "stored" : "");
}

lab::Row planned_row(const lab::PlannedCell& c) {
  return {{"cell", c.identity},
          {"bytes", c.read_bytes ? lab::number(*c.read_bytes) : lab::Row(nullptr)},
          {"seconds", c.is_done ? lab::Row(0) : lab::number(c.seconds)},
          {"stored", c.is_done}};
}

struct Total {
  int n_cells = 0, n_left = 0;
  double seconds = 0;
};
Total total_of(const std::vector<lab::SweepPlan>& plans) {
  Total total;
  for (const lab::SweepPlan& plan : plans) {
    total.n_cells += int(plan.cells.size());
    total.n_left += plan.n_left();
    total.seconds += plan.seconds_left();
  }
  return total;
}

std::string total_text(const Total& total) {
  return fmt::format("{} cells, {} stored, {} to measure, about {}", total.n_cells, total.n_cells - total.n_left,
                     total.n_left, short_duration(total.seconds));
}

int dry_run(const SweepFlags& flags, const std::vector<lab::SweepPlan>& plans) {
  const Total total = total_of(plans);
  if (flags.output.json) {
    lab::Row cells = lab::Row::array();
    for (const lab::SweepPlan& plan : plans)
      for (const lab::PlannedCell& cell : plan.cells) cells.push_back(planned_row(cell));
    fmt::print(
        "{}\n",
        lab::json_text({{"cells", cells}, {"to_measure", total.n_left}, {"seconds", lab::number(total.seconds)}}, 2));
    return 0;
  }
  for (const lab::SweepPlan& plan : plans) print_plan(plan);
  fmt::print("{}\n", total_text(total));
  return 0;
}

int run(const SweepFlags& flags, const lab::SweepSpec& spec, const std::vector<lab::SweepPlan>& plans,
        lab::Store& store) {
  const bool quiet = flags.output.quiet;
  const Total total = total_of(plans);
  if (!quiet) fmt::print(stderr, "sweep    {}: {}\n", spec.name, total_text(total));
  // In tenths of a second, so that long cells count as long.
  const int64_t tenths = std::max<int64_t>(1, int64_t(10 * total.seconds));
  Progress progress("sweep", !quiet);
  double passed = 0;
  lab::Row rows = lab::Row::array();
  lab::SweepCounts counts;
  lab::SweepHooks hooks;
  hooks.stop = interrupted;
  hooks.on_status = [&](const std::string& what) { progress.set(int64_t(10 * passed), tenths, what); };
  hooks.on_row = [&](const lab::PlannedCell& cell, const lab::Row& row) {
    progress.clear();
    passed += cell.seconds;
    if (flags.output.json) {
      rows.push_back(row);
      return;
    }
    if (rows.empty()) fmt::print("{}\n", lab::sweep_columns().head());
    rows.push_back(nullptr);
    fmt::print("{}\n", lab::sweep_columns().line({cell.cell, row}));
    std::fflush(stdout);
  };
  for (const lab::SweepPlan& plan : plans) {
    const lab::SweepCounts of_device = lab::run_sweep(spec, plan, lab::op_kernels(), store, hooks);
    counts.n_done += of_device.n_done;
    counts.n_failed += of_device.n_failed;
    counts.n_skipped += of_device.n_skipped;
  }
  progress.clear();
  const std::vector<lab::Crossover> crossovers = crossovers_of(flags, store);
  if (flags.output.json)
    fmt::print("{}\n",
               lab::json_text({{"rows", rows}, {"crossovers", lab::list_of(crossovers, lab::crossover_columns())}}, 2));
  else if (!crossovers.empty()) fmt::print("\n");
  if (!flags.output.json)
    for (const lab::Crossover& crossover : crossovers) fmt::print("{}\n", lab::sentence(crossover));
  const int n_rows = counts.n_done + counts.n_failed + counts.n_skipped;
  if (counts.n_failed > 0)
    fmt::print(stderr, "error: {} cell{} failed the check and got no times\n", counts.n_failed,
               counts.n_failed == 1 ? "" : "s");
  if (counts.n_skipped > 0 && !quiet)
    fmt::print(stderr, "{} cell{} skipped: their rows say why\n", counts.n_skipped, counts.n_skipped == 1 ? "" : "s");
  if (interrupted()) {
    fmt::print(stderr, "interrupted: {} of {} cells are stored in {}; the same command goes on from here\n",
               total.n_cells - total.n_left + n_rows, total.n_cells, flags.output.results);
    return int(ErrorKind::interrupted);
  }
  return counts.n_failed > 0 ? int(ErrorKind::gate) : 0;
}

int sweep(const SweepFlags& flags) {
  if (flags.crossovers) {
    if (!flags.spec.empty()) bad_flag("--crossovers", "measures nothing", "leave out SPEC");
    if (flags.output.results.empty())
      bad_flag("--results", "is required with --crossovers", "name the file of a sweep");
    return show_crossovers(flags);
  }
  if (flags.spec.empty()) {
    std::string names;
    for (const lab::ShippedSpec& spec : lab::shipped_specs()) names += fmt::format(" {}", spec.name);
    bad_flag("SPEC", "is required", "a file, or one of" + names);
  }
  if (flags.output.results.empty() && !flags.dry_run) bad_flag("--results", "is required", "name a file for the rows");
  const lab::SweepSpec spec = lab::find_sweep_spec(flags.spec).or_throw();
  std::optional<lab::Store> store;
  const bool exists = !flags.output.results.empty() && std::filesystem::exists(flags.output.results);
  if (!flags.output.results.empty() && (exists || !flags.dry_run)) {
    for (const std::string& device : split(flags.devices, ',')) check_device(device);  // before a file is made
    store = lab::Store::open(flags.output.results).or_throw();
  }
  const std::vector<lab::Row> stored = store ? store->rows() : std::vector<lab::Row>();
  const std::vector<lab::SweepPlan> plans = plans_of(flags, spec, stored);
  return flags.dry_run ? dry_run(flags, plans) : run(flags, spec, plans, *store);
}

}  // namespace

static Action declare_sweep(CLI::App& app) {
  const auto flags = std::make_shared<SweepFlags>();
  SweepFlags& f = *flags;
  std::string shipped;
  for (const lab::ShippedSpec& spec : lab::shipped_specs()) shipped += fmt::format("{}, ", spec.name);
  say_needed(add_text(app, "SPEC", f.spec, "NAME", shipped + "or a JSON file (docs/measuring.md)"),
             "required, or --crossovers");
  in_group(app, "Sweep");
  say_needed(add_text(app, "--results", f.output.results, "FILE",
                      "the file of rows, a JSON line each; made when there is none, gone on with when there is one"),
             "required, or --dry-run");
  app.add_flag("--dry-run", f.dry_run, "list the cells with bytes and time, and measure nothing");
  app.add_flag("--crossovers", f.crossovers, "only say what the stored rows say: which format wins up to which batch");
  add_text(app, "--baseline", f.baseline, "FORMAT", "format that crossovers compare with; all: every pair");
  add_real(app, "--budget", f.budget_percent, 0, 1000, "effects of up to so many percent do not matter");
  in_group(app, "Model");
  add_text(app, "--device", f.devices, "LIST", "cpu or cuda[:N], or several: cpu,cuda (-dev)");
  add_whole(app, "-t,--threads", f.n_threads, 0, 1024, "threads; 0: one per processor");
  add_text(app, "--isa", f.isa, "NAME", "highest instruction set to use: " + isa_names());
  add_output_flags(app, f.output, false);
  app.footer(lab::columns_help(lab::sweep_columns().texts()));
  return [flags] { return sweep(*flags); };
}

extern const Command sweep_command = {
    "sweep", "a grid of measurements into a file of rows, resumable",
    R"(Measures every cell of SPEC, each checked first, and stores a row a cell. The same command again measures what
is missing: after Ctrl-C, after a kill, or with a larger SPEC. Formats that are compared are measured in
turns, the first of them twice: that is the noise floor. At the end, or with --crossovers, sentences say up to
which batch or from which depth one format beats another.)",
    R"(ridge sweep quick --results lab.jsonl
ridge sweep regime --dry-run
ridge sweep --crossovers --results lab.jsonl --baseline f16)",
    declare_sweep};

}  // namespace ridge::cli
