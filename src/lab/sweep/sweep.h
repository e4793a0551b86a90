// Runs the cells of a spec into a file of rows. Cells that the file has are not measured again, so a sweep may be
// stopped, killed and started again; cells that failed their check or did not fit are tried again.
//
// Cells that are compared (sweep_spec.h) are measured in one run: ops in turns, sample by sample, whole models one
// after another. A cell whose check fails has a row with state "failed" and no times; a cell without a kernel, or too
// large for memory, has a row with the reason.
#pragma once

#include "lab/rows/columns.h"
#include "lab/sweep/sweep_spec.h"

namespace ridge::lab {

/// Where a sweep runs.
struct SweepTarget {
  std::string device = "cpu";
  int n_threads = 0;  ///< of the CPU; 0: one per processor
  std::string isa;    ///< of the CPU: highest instruction set; empty: the best
};

/// The commit, and for a build with uncommitted changes also a hash of the program.
std::string build_identity();

struct PlannedCell {
  SweepCell cell;
  Row identity;                      ///< field `cell` of its row: the cell, the device, the seed and the build
  bool is_done = false;              ///< the store has it
  std::optional<double> read_bytes;  ///< of a call or a decode step; nothing when only loading the model would tell
  double seconds = 0;                ///< expected: the time of an earlier build, or an estimate
};
struct SweepPlan {
  SweepTarget target;  ///< threads and instruction set as numbers and names
  std::vector<PlannedCell> cells;
  int n_left() const;
  double seconds_left() const;
};
/// Throws no_device, and usage for models that are no shape.
SweepPlan plan_sweep(const SweepSpec& spec, const SweepTarget& target, std::span<const Row> stored);

struct SweepHooks {
  std::function<bool()> stop;
  std::function<void(const std::string& what)> on_status;
  std::function<void(const PlannedCell& cell, const Row& row)> on_row;  ///< after it was stored
};
struct SweepCounts {
  int n_done = 0, n_failed = 0, n_skipped = 0;
};
/// Measures the plan's missing cells and stores a row a cell. After a `stop` unfinished cells have no row.
SweepCounts run_sweep(const SweepSpec& spec, const SweepPlan& plan, std::span<const OpKernel> table, Store& store,
                      const SweepHooks& hooks);

/// A stored row in the table that a sweep shows.
struct SweepRow {
  const SweepCell& cell;
  const Row& row;
  bool is_done() const { return row_state(row) == "done"; }
};
Columns<SweepRow> sweep_columns();

}  // namespace ridge::lab
