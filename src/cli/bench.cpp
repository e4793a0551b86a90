#include "cli/bench.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "lab/rows/int_list.h"
#include "rank/mpi.h"

namespace ridge::cli {
namespace {

std::string quoted(const lab::Row& value, char quote) {
  if (value.is_null()) return quote == '\'' ? "NULL" : "\"\"";
  std::string text(1, quote);
  for (const char c : value.is_string() ? value.get<std::string>() : value.dump()) {
    if (c == quote) text += quote;
    text += c;
  }
  return text + quote;
}

std::string_view sql_type(const lab::Row& value) {
  if (value.is_string()) return "TEXT";
  return value.is_number_integer() || value.is_boolean() ? "INTEGER" : "REAL";
}

std::string join_fields(const lab::Row& fields, std::string_view between,
                        const std::function<std::string(const std::string& name, const lab::Row& value)>& form) {
  std::string text;
  for (const auto& [name, value] : fields.items()) {
    if (value.is_array()) continue;
    if (!text.empty()) text += between;
    text += form(name, value);
  }
  return text;
}

std::string names(const lab::Row& fields, std::string_view between) {
  return join_fields(fields, between, [](const std::string& name, const lab::Row&) { return name; });
}
std::string values(const lab::Row& fields, std::string_view between, char quote) {
  return join_fields(fields, between, [&](const std::string&, const lab::Row& value) { return quoted(value, quote); });
}

void print_line(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

RowFormat read_format(const std::string& name, bool json, bool with_csv_and_sql) {
  if (json) return RowFormat::json;
  constexpr std::string_view kNames[] = {"md", "csv", "json", "jsonl", "sql"};
  const auto found = std::ranges::find(kNames, name);
  if (found == std::end(kNames))
    throw_error(ErrorKind::usage, "-o '{}' is unknown (there are: csv, json, jsonl, md, sql)", name);
  const auto format = RowFormat(found - kNames);
  if (!with_csv_and_sql && (format == RowFormat::csv || format == RowFormat::sql))
    throw Error(ErrorKind::usage, "-o: this bench is written as md, json or jsonl");
  return format;
}

}  // namespace

BenchOutput::BenchOutput(const OutputFlags& flags, const std::string& format, std::string head, bool with_csv_and_sql)
    : format_(read_format(format, flags.json, with_csv_and_sql)),
      head_(std::move(head)),
      results_(lab::ResultsFile::open(flags.results).or_throw()),
      progress_("bench", !flags.quiet) {}

void BenchOutput::write(const std::string& line, const lab::Row& row) {
  const bool first = n_rows_++ == 0;
  switch (format_) {
    case RowFormat::md:
      if (first) print_line(head_);
      return print_line(line);
    case RowFormat::csv:
      if (first) print_line(names(row, ","));
      return print_line(values(row, ",", '"'));
    case RowFormat::json: return print_line((first ? "[\n  " : "  ,") + lab::json_text(row));
    case RowFormat::jsonl: return print_line(lab::json_text(row));
    case RowFormat::sql: {
      const auto column = [](const std::string& name, const lab::Row& value) {
        return fmt::format("  {} {}", name, sql_type(value));
      };
      if (first) print_line("CREATE TABLE IF NOT EXISTS llama_bench (\n" + join_fields(row, ",\n", column) + "\n);");
      return print_line("INSERT INTO llama_bench (" + names(row, ", ") + ") VALUES (" + values(row, ", ", '\'') + ");");
    }
  }
}

void BenchOutput::failed(const std::string& test, const lab::BenchCheck& check) {
  progress_.clear();
  fmt::print(stderr, "error: {}: check failed: NMSE {:.3g} over the bound {:.3g} ({}); no speed is given for it\n",
             test, check.nmse, check.bound, check.what);
}

int BenchOutput::finish(int n_failed) {
  progress_.clear();
  if (format_ == RowFormat::json) print_line(n_rows_ == 0 ? "[]" : "]");
  if (interrupted()) return int(ErrorKind::interrupted);
  return n_failed > 0 ? int(ErrorKind::gate) : 0;
}

void check_bench_spec(const SpecFlags& flags, bool forced) {
  flags.check();
  if (flags.on() && joined_ranks()) bad_flag("--tp", "benches of ranks have no speculation", "leave out --spec-type");
  if (!flags.on() && forced) bad_flag("--force-accept", "nothing is proposed", "add --spec-type mtp");
}

lab::BenchDraft bench_draft(const SpecFlags& flags) {
  return {.type = flags.type,
          .draft_model = flags.draft_model,
          .draft_kv = kv_text(flags.cache()),
          .depth = flags.depth,
          .vocab = flags.vocab};
}

std::string joined(const std::vector<std::string>& texts) { return fmt::format("{}", fmt::join(texts, ",")); }

void read_numbers(std::string_view flag, const std::vector<std::string>& texts, int min, int max,
                  std::vector<int>& values) {
  if (!texts.empty()) values = lab::parse_int_list(flag, joined(texts), min, max).or_throw();
}

}  // namespace ridge::cli
