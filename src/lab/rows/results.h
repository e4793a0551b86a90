// Rows of results: one JSON object a line, with where they come from, appended and synced one by one.
//
// A row's field `cell`, where it has one, says what was measured, by which build and on which machine. A later row of
// the same cell replaces the earlier one for every reader; both lines stay in the file. A row whose `state` is "failed"
// or "skipped" says `reason` and has no times; without `state` it is done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/line_file.h"

namespace ridge::lab {

using Row = nlohmann::ordered_json;

/// A measured number for JSON: NaN and infinity, which JSON cannot hold, become null.
Row number(double value);

/// A field of a stored row, whatever stands there: empty where it is no text, NaN where it is no number.
std::string text_in(const Row& row, const char* field);
double number_in(const Row& row, const char* field);

/// Times of single calls or repeats of a stored row, in its own unit; none where it has none.
std::vector<double> samples_in(const Row& row);

/// JSON on one line, or indented; bytes that are no UTF-8 are replaced.
std::string json_text(const Row& row, int indent = -1);

/// How many ranks hold the model, and in how many stages, where there are several.
void put_ranks(Row& row, int n_ranks, int n_stages);

/// "12.3 MB", "4.5 KB"; MB = 10^6.
std::string bytes_text(double bytes);

/// UTC, "2026-07-28T12:34:56Z".
std::string utc_now();

/// The command line, quoted for a shell where needed; set once by main. The program and the file of --results keep
/// their names, without their directories.
void set_command_line(const std::vector<std::string>& args);
const std::string& command_line();

/// The fields every stored row carries: date, build, machine, threads, seed, command.
Row provenance(int n_threads, uint64_t seed);

/// Sorted, compact JSON of row["cell"], or of the row without a cell: equal for equal cells.
std::string cell_key(const Row& row);
/// "done", "failed" or "skipped".
std::string row_state(const Row& row);
/// When it was measured: its field `date`, `test_time` in rows of bench decode.
std::string row_date(const Row& row);

/// The rows of a file, in order; none when there is no such file. A line that is no JSON object is refused by number.
Result<std::vector<Row>> read_rows(const std::filesystem::path& path);

/// Appends rows to a file that may hold earlier ones. Every row is on disk when add() returns, behind the rows that
/// other programs added meanwhile. A line that a killed writer left unfinished moves to FILE.cut, which stderr tells.
class ResultsFile {
 public:
  /// Creates the file if need be. An empty path gives a file that drops its rows. Refuses a file that begins with
  /// something else than a row, and leaves it as it is.
  static Result<ResultsFile> open(const std::filesystem::path& path);

  /// Throws Error(failure) when the row could not be written.
  void add(const Row& row);
  /// All rows of the file; none for an empty path.
  Result<std::vector<Row>> rows();

 private:
  std::filesystem::path path_;
  io::LineFile lines_;
};

/// A file of rows that a command goes on from: the rows that count are in memory too, by their cells. Rows that other
/// programs add after open() are seen by the next one.
class Store {
 public:
  /// As ResultsFile::open(); bad_file for a line that is no JSON object.
  static Result<Store> open(const std::filesystem::path& path);

  /// Throws Error(failure) when the row could not be written.
  void add(Row row);
  /// The last row of every cell, in the place of its first one, and all rows without a cell.
  const std::vector<Row>& rows() const { return rows_; }

 private:
  void remember(Row row);

  ResultsFile file_;
  std::vector<Row> rows_;
  std::map<std::string, size_t> places_;  ///< in rows_, by cell_key()
};

}  // namespace ridge::lab
