#include "lab/rows/row_writer.h"

#include <cstdio>
#include <functional>

namespace ridge::lab {
namespace {

std::string quoted(const Row& value, char quote) {
  if (value.is_null()) return quote == '\'' ? "NULL" : "\"\"";
  std::string text(1, quote);
  for (const char c : value.is_string() ? value.get<std::string>() : value.dump()) {
    if (c == quote) text += quote;
    text += c;
  }
  return text + quote;
}

std::string_view sql_type(const Row& value) {
  if (value.is_string()) return "TEXT";
  return value.is_number_integer() || value.is_boolean() ? "INTEGER" : "REAL";
}

std::string join_fields(const Row& fields, std::string_view between,
                        const std::function<std::string(const std::string& name, const Row& value)>& form) {
  std::string text;
  for (const auto& [name, value] : fields.items()) {
    if (value.is_array()) continue;
    if (!text.empty()) text += between;
    text += form(name, value);
  }
  return text;
}

std::string names(const Row& fields, std::string_view between) {
  return join_fields(fields, between, [](const std::string& name, const Row&) { return name; });
}
std::string values(const Row& fields, std::string_view between, char quote) {
  return join_fields(fields, between, [&](const std::string&, const Row& value) { return quoted(value, quote); });
}

void print_line(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

}  // namespace

Result<RowFormat> find_row_format(std::string_view name) {
  constexpr std::string_view kNames[] = {"md", "csv", "json", "jsonl", "sql"};
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return RowFormat(i);
  return fail(ErrorKind::usage, "-o '{}' is unknown (there are: csv, json, jsonl, md, sql)", name);
}

void RowWriter::add(const std::string& line, const Row& row) {
  const bool first = n_rows_++ == 0;
  switch (format_) {
    case RowFormat::md:
      if (first) print_line(head_);
      return print_line(line);
    case RowFormat::csv:
      if (first) print_line(names(row, ","));
      return print_line(values(row, ",", '"'));
    case RowFormat::json: return print_line((first ? "[\n  " : "  ,") + json_text(row));
    case RowFormat::jsonl: return print_line(json_text(row));
    case RowFormat::sql: {
      const auto column = [](const std::string& name, const Row& value) {
        return fmt::format("  {} {}", name, sql_type(value));
      };
      if (first) print_line("CREATE TABLE IF NOT EXISTS llama_bench (\n" + join_fields(row, ",\n", column) + "\n);");
      return print_line("INSERT INTO llama_bench (" + names(row, ", ") + ") VALUES (" + values(row, ", ", '\'') + ");");
    }
  }
}

void RowWriter::finish() const {
  if (format_ == RowFormat::json) print_line(n_rows_ == 0 ? "[]" : "]");
}

}  // namespace ridge::lab
