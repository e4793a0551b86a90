// Specification of a sweep: grids over shapes, batch, depth and formats, written as JSON, made into a list of cells.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/op/op_bench.h"

namespace ridge::lab {

/// One measurement: a problem in one format by one kernel. Fields of other benches are 0 or empty.
struct SweepCell {
  std::string bench;     ///< "gemv", "attention", "append" or "decode"
  std::string model;     ///< decode
  OpShape shape;         ///< gemv: n_out, n_in; attention, append: n_heads, n_kv_heads
  int head_dim = 0;      ///< attention, append
  int batch = 1;         ///< tokens (gemv), sequences (attention, append)
  int depth = 0;         ///< positions cached already; not of gemv
  int n_new = 0;         ///< append
  int n_gen = 0;         ///< decode
  std::string format;    ///< of weights (gemv) or of the cache, as `--kv` takes it
  std::string kernel;    ///< by name; "best": the best there is
  bool control = false;  ///< the second measurement of the first format of a comparison

  bool is_decode() const { return bench == "decode"; }
  /// "gemv 8960x1536, batch 4, int4_g128"
  std::string text() const;
  /// Its identity in the store, but for where and by which build it is measured. With equal comparison(), cells differ
  /// in format, kernel and control only: they are measured together, and compared.
  Row fields() const;
  std::string comparison() const;
};

struct SweepSpec {
  std::string name;
  int samples = 40;        ///< of a cell of an op; kFewestSamples at least
  int repeats = 5;         ///< of a cell of decode
  double max_seconds = 2;  ///< of an op's cell: its samples end after this long, five at least
  int roof_mib = 0;        ///< buffer of the ops' memory bandwidth; 0: as bench bandwidth chooses
  uint64_t seed = 42;
  std::vector<SweepCell> cells;  ///< in the order they run: those of a comparison together, its control at its end
};

/// A shipped spec by name, or a file. Refuses (usage, bad_file) unknown fields, values out of range, shapes that a
/// format cannot hold and more than 10000 cells; the failure names the field.
Result<SweepSpec> find_sweep_spec(const std::string& name_or_path);
Result<SweepSpec> parse_sweep_spec(std::string_view text, std::string_view where);

struct ShippedSpec {
  std::string_view name, summary, json;
};
std::span<const ShippedSpec> shipped_specs();

/// A cell of an op as a bench of this one problem, and the problem. Throws usage for impossible ones.
OpBenchParams op_params(const SweepSpec& spec, const SweepCell& cell);
OpProblem op_problem(const SweepSpec& spec, const SweepCell& cell);

}  // namespace ridge::lab
