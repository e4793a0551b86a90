// Rows of results: one JSON object a line, with where they come from, appended and synced one by one.
#pragma once

#include <cstdint>
#include <filesystem>
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

/// The command line, quoted for a shell where needed; set once by main. Of the program and of the files of --results and
/// --store it keeps the names, without their directories.
void set_command_line(const std::vector<std::string>& args);
const std::string& command_line();

/// The fields every stored row carries: date, build, machine, threads, seed, command.
Row provenance(int n_threads, uint64_t seed);

/// The rows of a file, in order; none when there is no such file. A line that is no JSON object is refused by number.
Result<std::vector<Row>> read_rows(const std::filesystem::path& path);

/// Appends rows to a file that may hold earlier ones. Every row is on disk when add() returns. A line that a killed writer
/// left unfinished moves to FILE.cut, which stderr tells.
class ResultsFile {
 public:
  /// Creates the file if need be. An empty path gives a file that drops its rows.
  static Result<ResultsFile> open(const std::filesystem::path& path);

  /// Throws Error(failure) when the row could not be written.
  void add(const Row& row);

 private:
  io::LineFile lines_;
};

}  // namespace ridge::lab
