#include "lab/sweep/sweep.h"

#include <chrono>
#include <cmath>
#include <new>

#include "engine/device_name.h"
#include "lab/model/bench.h"
#include "lab/op/op_turns.h"
#include "lab/rows/machine.h"

namespace ridge::lab {
namespace {

using Clock = std::chrono::steady_clock;

/// Cells that are measured in one run, and their outcome.
class Batch {
 public:
  Batch(const SweepPlan& plan, Store& store, const SweepHooks& hooks, SweepCounts& counts)
      : plan_(plan), store_(store), hooks_(hooks), counts_(counts) {}

  void add(const PlannedCell& cell) { cells_.push_back({&cell, false}); }
  size_t size() const { return cells_.size(); }
  bool is_decode() const { return cells_.at(0).cell->cell.is_decode(); }
  const PlannedCell& at(size_t i) const { return *cells_[i].cell; }
  bool has_row(size_t i) const { return cells_[i].has_row; }
  bool stopped() const { return hooks_.stop && hooks_.stop(); }
  void status(const std::string& what) const {
    if (hooks_.on_status) hooks_.on_status(what);
  }

  /// The rows of a run are stored one by one; a row after the order to stop may be half measured.
  void finish(size_t i, Row row) {
    if (stopped()) return;
    const std::string state = row_state(row);
    row["cell"] = cells_[i].cell->identity;
    // Ops in turns end together; whole models one by one.
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    row["cell_seconds"] = number(is_decode() ? seconds : seconds / double(size()));
    if (is_decode()) start_ = Clock::now();
    store_.add(row);
    cells_[i].has_row = true;
    (state == "done" ? counts_.n_done : state == "failed" ? counts_.n_failed : counts_.n_skipped)++;
    if (hooks_.on_row) hooks_.on_row(*cells_[i].cell, row);
  }
  void skip(size_t i, const std::string& reason, uint64_t seed) {
    Row row{{"kind", is_decode() ? "decode" : "op"}, {"state", "skipped"}, {"reason", reason}};
    row.update(provenance(plan_.target.n_threads, seed));
    finish(i, std::move(row));
  }
  /// The first cell of this format that has no row yet.
  std::optional<size_t> next_of(const std::string& format) const {
    for (size_t i = 0; i < cells_.size(); ++i)
      if (!cells_[i].has_row && kv_text(parse_kv_choice(cells_[i].cell->cell.format).or_throw()) == format) return i;
    return std::nullopt;
  }

 private:
  struct Entry {
    const PlannedCell* cell;
    bool has_row;
  };
  const SweepPlan& plan_;
  Store& store_;
  const SweepHooks& hooks_;
  SweepCounts& counts_;
  std::vector<Entry> cells_;
  Clock::time_point start_ = Clock::now();
};

void mark_failed(Row& row, std::string_view metric, double error, double bound, std::string_view what) {
  row["state"] = "failed";
  row["reason"] = fmt::format("{} {:.3g} over {:.3g} ({})", metric, error, bound, what);
}

void run_ops(const SweepSpec& spec, const SweepPlan& plan, std::span<const OpKernel> table, Batch& batch) {
  OpBenchParams params = op_params(spec, batch.at(0).cell);
  params.device = parse_device(plan.target.device).value_or(OpDevice::kCpu);
  params.n_threads = plan.target.n_threads;
  params.isa = plan.target.isa;
  std::vector<OpTurn> turns;
  for (size_t i = 0; i < batch.size(); ++i)
    turns.push_back({op_problem(spec, batch.at(i).cell), op_params(spec, batch.at(i).cell).kernels});
  OpTurnHooks hooks;
  hooks.stop = [&] { return batch.stopped(); };
  hooks.on_status = [&](const std::string& what) { batch.status(what); };
  hooks.on_row = [&](size_t i, const OpRow& row) {
    Row fields = op_columns().fields(row);
    if (row.failed()) mark_failed(fields, row.check.metric, row.check.error, row.check.bound, row.check.what);
    batch.finish(i, std::move(fields));
  };
  hooks.on_none = [&](size_t i, const std::string& why) { batch.skip(i, "no kernel: " + why, spec.seed); };
  run_op_turns(params, turns, table, hooks);
}

void run_decode(const SweepSpec& spec, const SweepPlan& plan, Batch& batch) {
  const SweepCell& cell = batch.at(0).cell;
  BenchParams params;
  params.models = {cell.model};
  params.n_prompt = {0};
  params.n_gen = {cell.n_gen};
  params.n_depth = {cell.depth};
  params.n_threads = {plan.target.n_threads};
  params.repeats = spec.repeats;
  params.seed = spec.seed;
  params.load.device = plan.target.device;
  params.load.isa = plan.target.isa;
  params.kv.clear();
  for (size_t i = 0; i < batch.size(); ++i) params.kv.push_back(parse_kv_choice(batch.at(i).cell.format).or_throw());
  BenchHooks hooks;
  hooks.stop = [&] { return batch.stopped(); };
  hooks.on_status = [&](const std::string& what, int, int) { batch.status(what); };
  const auto finish = [&](const BenchRow& row, bool failed) {
    const std::optional<size_t> i = batch.next_of(kv_text(row.test.kv));
    RIDGE_CHECK(i, "a row of {}, which was not asked for", kv_text(row.test.kv));
    Row fields = bench_columns().fields(row);
    if (failed) mark_failed(fields, "NMSE", row.check.nmse, row.check.bound, row.check.what);
    batch.finish(*i, std::move(fields));
  };
  hooks.on_row = [&](const BenchRow& row) { finish(row, false); };
  hooks.on_failed = [&](const BenchRow& row) { finish(row, true); };
  run_bench(params, hooks);
}

/// Why a decode cell cannot fit, empty when it may: a model that fills the memory would not end in an error.
std::string too_large(const SweepPlan& plan, const PlannedCell& planned) {
  if (plan.target.device != "cpu" || !planned.cell.is_decode() || !planned.read_bytes) return {};
  const auto available = double(machine_info().available_bytes);
  if (available <= 0 || *planned.read_bytes < available) return {};
  return fmt::format("needs {:.1f} GB of memory, {:.1f} GB are available", *planned.read_bytes / 1e9, available / 1e9);
}

}  // namespace

SweepCounts run_sweep(const SweepSpec& spec, const SweepPlan& plan, std::span<const OpKernel> table, Store& store,
                      const SweepHooks& hooks) {
  SweepCounts counts;
  /// Runs cells together; one that does not fit would end the run of all, so then each runs by itself.
  const std::function<void(std::span<const PlannedCell* const>)> run = [&](std::span<const PlannedCell* const> cells) {
    Batch batch(plan, store, hooks, counts);
    if (batch.stopped()) return;
    for (const PlannedCell* cell : cells) batch.add(*cell);
    std::string why;
    try {
      if (batch.is_decode()) run_decode(spec, plan, batch);
      else run_ops(spec, plan, table, batch);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::no_memory) throw;
      why = error.what();
    } catch (const std::bad_alloc&) {
      why = "not enough memory";
    }
    if (batch.size() == 1) return batch.skip(0, why, spec.seed);
    for (size_t i = 0; i < batch.size(); ++i)
      if (!batch.has_row(i)) run(std::span(&cells[i], 1));
  };

  std::vector<const PlannedCell*> together;
  const auto flush = [&] {
    if (!together.empty()) run(together);
    together.clear();
  };
  for (const PlannedCell& planned : plan.cells) {
    if (planned.is_done) continue;
    if (!together.empty() && together[0]->cell.comparison() != planned.cell.comparison()) flush();
    if (const std::string why = too_large(plan, planned); !why.empty()) {
      Batch one(plan, store, hooks, counts);
      one.add(planned);
      one.skip(0, why, spec.seed);
    } else {
      together.push_back(&planned);
    }
  }
  flush();
  return counts;
}

Columns<SweepRow> sweep_columns() {
  const auto rate = [](const SweepRow& r, const char* of_decode, const char* of_op) {
    return r.is_done() ? Row(number_in(r.row, r.cell.is_decode() ? of_decode : of_op)) : Row();
  };
  return {
      {"", "-", "what was measured", [](auto& r) { return r.cell.text(); }, "cell"},
      {"", "-", "tokens a second of a model, or time of a call",
       [=](auto& r) {
         if (!r.is_done()) return std::string(row_state(r.row) == "failed" ? "FAILED" : "skipped");
         return fmt::format("{:.2f} {}", rate(r, "avg_ts", "median_us").template get<double>(),
                            r.cell.is_decode() ? "tokens/s" : "us");
       },
       ">median"},
      {"", "-", "of a call; of a model the standard deviation",
       [](auto& r) {
         const auto value = [&](const char* name) { return number_in(r.row, name); };
         if (!r.is_done()) return std::string();
         return r.cell.is_decode()
                    ? fmt::format("± {:.2f}", value("stddev_ts"))
                    : fmt::format("{:.2f} - {:.2f}", value("lower_quartile_us"), value("upper_quartile_us"));
       },
       ">quartiles"},
      {"", "GB/s", "declared bytes in that time", [=](auto& r) { return rate(r, "read_gb_s", "gb_s"); }, ">GB/s",
       "{:.1f}"},
      {"", "%", "share of memory bandwidth", [=](auto& r) { return rate(r, "pct_of_roof", "pct_of_roof"); },
       ">% of bandwidth", "{:.1f} %"},
      {"", "-", "error of the check, or why there is no time",
       [=](auto& r) { return r.is_done() ? rate(r, "check_error", "check_error") : Row(text_in(r.row, "reason")); },
       ">checked", "{:.1e}"},
  };
}

}  // namespace ridge::lab
