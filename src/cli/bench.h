// Output of the bench commands: rows to stdout and to --results, progress, and the exit code.
#pragma once

#include <cstdint>

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/options.h"
#include "cli/spec_flags.h"
#include "lab/model/bench_check.h"
#include "lab/model/bench_draft.h"
#include "lab/rows/columns.h"

namespace ridge::cli {

enum class RowFormat : uint8_t { md, csv, json, jsonl, sql };

class BenchOutput {
 public:
  /// `format` is that of -o, `head` the heading of the markdown table. CSV and SQL are for bench decode alone.
  BenchOutput(const OutputFlags& flags, const std::string& format, std::string head, bool with_csv_and_sql = false);

  /// Ctrl-C stops the bench, its status is shown as progress.
  template <class Hooks>
  void attach(Hooks& hooks) {
    hooks.stop = interrupted;
    hooks.on_status = [this](const std::string& what, int done, int total) {
      progress_.clear();
      progress_.set(done, total, what);
    };
  }
  /// Shows a row as a line of the table or as its fields, and adds it to --results if `store`.
  template <class T>
  void add(const lab::Columns<T>& columns, const T& row, bool store = true) {
    progress_.clear();
    const lab::Row fields = columns.fields(row);
    write(columns.line(row), fields);
    if (store) results_.add(fields);
  }
  /// Removes the progress, so that something else can be said.
  void clear() { progress_.clear(); }
  /// Says that a test's check failed.
  void failed(const std::string& test, const lab::BenchCheck& check);
  /// Ends the output; the exit code of a bench with so many failed checks.
  int finish(int n_failed);

 private:
  /// A row as it comes: a line of the table, or its fields; CSV and SQL, as llama-bench has them, leave out lists.
  void write(const std::string& line, const lab::Row& row);

  RowFormat format_;
  std::string head_;
  int n_rows_ = 0;
  lab::ResultsFile results_;
  Progress progress_;
};

/// Refuses ranks with draft tokens, and --force-accept without.
void check_bench_spec(const SpecFlags& flags, bool forced);
lab::BenchDraft bench_draft(const SpecFlags& flags);

/// A repeated list flag as one comma list.
std::string joined(const std::vector<std::string>& texts);
/// One as numbers; `values` keeps its default when the flag was not given.
void read_numbers(std::string_view flag, const std::vector<std::string>& texts, int min, int max,
                  std::vector<int>& values);

}  // namespace ridge::cli
