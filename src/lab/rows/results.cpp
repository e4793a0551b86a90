#include "lab/rows/results.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <utility>

#include "base/json.h"
#include "engine/kv_choice.h"
#include "io/mapped_file.h"
#include "io/text.h"

namespace ridge::lab {
namespace {

constexpr uint64_t kMaxResultsBytes = uint64_t(1) << 28;

std::string& stored_command_line() {
  static std::string line;
  return line;
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool is_row(std::string_view line) { return line.starts_with('{') && Row::accept(line); }

Result<std::vector<Row>> rows_of_text(const std::string& text, const std::filesystem::path& path) {
  std::vector<Row> rows;
  int number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    Result<Row> row = parse_within<Row>(line);
    if (!row || !row->is_object())
      return bad_file("results file {}: line {} is not a JSON object (was its write cut off? delete the line)",
                      path.native(), number);
    rows.push_back(std::move(*row));
  }
  return rows;
}

/// A file that begins with something else belongs to another program: nothing may be taken from its end.
bool may_hold_rows(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return true;  // LineFile makes it, or says why it cannot
  std::ifstream file(path);
  char first = 0;
  return !(file >> first) || first == '{';
}

/// Reports the cut line of a writer that was killed, if there was one.
void report_cut(io::LineFile& file) {
  if (const std::string report = file.report(); !report.empty()) fmt::print(stderr, "results  {}\n", report);
}

}  // namespace

Row number(double value) { return std::isfinite(value) ? Row(value) : Row(nullptr); }

std::string text_in(const Row& row, const char* field) {
  const auto found = row.find(field);
  return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}
double number_in(const Row& row, const char* field) {
  const auto found = row.find(field);
  return found != row.end() && found->is_number() ? found->get<double>() : NAN;
}

std::vector<double> samples_in(const Row& row) {
  std::vector<double> samples;
  for (const char* name : {"samples_us", "samples_ns"}) {
    const auto found = row.find(name);
    if (found == row.end() || !found->is_array()) continue;
    for (const Row& value : *found)
      if (value.is_number()) samples.push_back(value.get<double>());
    break;
  }
  return samples;
}

std::string json_text(const Row& row, int indent) {
  return row.dump(indent, ' ', false, Row::error_handler_t::replace);
}

void put_ranks(Row& row, int n_ranks, int n_stages) {
  if (n_ranks > 1) row["n_ranks"] = n_ranks;
  if (n_stages > 1) row["pp"] = n_stages;
}

std::string bytes_text(double bytes) {
  return bytes >= 1e6 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.1f} KB", bytes / 1e3);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void set_command_line(const std::vector<std::string>& args) {
  std::string line;
  for (size_t i = 0; i < args.size(); ++i) {
    // Where the program and the rows lie on this machine says nothing to a reader.
    constexpr std::string_view kPlace = "--results";
    const auto name_of = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
    std::string word = args[i];
    if (i == 0 || args[i - 1] == kPlace) word = name_of(word);
    else if (const size_t end = word.find('='); end != std::string::npos && word.substr(0, end) == kPlace)
      word = word.substr(0, end + 1) + name_of(word.substr(end + 1));
    if (i > 0) line += ' ';
    line += shell_quoted(word);
  }
  stored_command_line() = std::move(line);
}

const std::string& command_line() { return stored_command_line(); }

std::string cell_key(const Row& row) {
  const auto cell = row.find("cell");
  const nlohmann::json sorted = nlohmann::json::parse(json_text(cell != row.end() ? *cell : row));
  return sorted.dump();
}

std::string row_state(const Row& row) {
  const std::string state = text_in(row, "state");
  return state.empty() ? "done" : state;
}

std::string row_date(const Row& row) {
  const std::string date = text_in(row, "date");
  return date.empty() ? text_in(row, "test_time") : date;
}

Result<std::vector<Row>> read_rows(const std::filesystem::path& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error) || std::filesystem::file_size(path, error) == 0)
    return std::vector<Row>();
  RIDGE_TRY(const std::string text, io::read_text_file(path, kMaxResultsBytes));
  return rows_of_text(text, path);
}

Result<ResultsFile> ResultsFile::open(const std::filesystem::path& path) {
  ResultsFile file;
  if (path.empty()) return file;
  const auto refuse = [](std::string_view why) {
    return wrong_field("results", "{}", four_parts("cannot append results", why, "", "name another file for the rows"));
  };
  if (!may_hold_rows(path)) return refuse(fmt::format("{} does not begin with a row", io::in_quotes(path.native())));
  Result<io::LineFile> lines = io::LineFile::open(path, {.is_whole = is_row});
  if (!lines) return refuse(lines.error().message);
  file.path_ = path;
  file.lines_ = std::move(*lines);
  report_cut(file.lines_);
  return file;
}

void ResultsFile::add(const Row& row) {
  if (!lines_.is_open()) return;
  // Text that is not UTF-8 (paths) is replaced.
  const Status added = lines_.add(json_text(row));
  report_cut(lines_);
  if (!added)
    throw Error(ErrorKind::failure,
                four_parts("cannot store the results", added.error().message, "", "free space or name another file"));
}

Result<std::vector<Row>> ResultsFile::rows() {
  if (!lines_.is_open()) return std::vector<Row>();
  RIDGE_TRY(const std::string text, lines_.read(kMaxResultsBytes));
  report_cut(lines_);
  return rows_of_text(text, path_);
}

Result<Store> Store::open(const std::filesystem::path& path) {
  Store store;
  RIDGE_TRY(store.file_, ResultsFile::open(path));
  RIDGE_TRY(std::vector<Row> rows, store.file_.rows());
  for (Row& row : rows) store.remember(std::move(row));
  return store;
}

void Store::add(Row row) {
  file_.add(row);
  remember(std::move(row));
}

void Store::remember(Row row) {
  if (row.contains("cell")) {
    const auto [known, is_new] = places_.try_emplace(cell_key(row), rows_.size());
    if (!is_new) {
      rows_[known->second] = std::move(row);
      return;
    }
  }
  rows_.push_back(std::move(row));
}

}  // namespace ridge::lab
