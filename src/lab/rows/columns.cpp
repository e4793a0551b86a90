#include "lab/rows/columns.h"

#include <cmath>
#include <cstdint>

#include "base/build_info.h"

namespace ridge::lab {

Row finite(Row value) { return value.is_number_float() ? number(value.get<double>()) : std::move(value); }

std::string cell_text(const Row& value, std::string_view format) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format(fmt::runtime(format), value.get<double>());
  if (value.is_number()) return fmt::format(fmt::runtime(format.empty() ? "{}" : format), value.get<int64_t>());
  return "";
}

std::string table_line(std::span<const std::string> cells) { return fmt::format("| {} |", fmt::join(cells, " | ")); }

std::string table_head(std::span<const ColumnText> columns) {
  std::string names = "|", rule = "|";
  for (const ColumnText& column : columns) {
    if (column.head.empty()) continue;
    const bool is_right = column.head.starts_with('>');
    names += fmt::format(" {} |", column.head.substr(is_right));
    rule += is_right ? " ---: |" : " --- |";
  }
  return names + "\n" + rule;
}

std::string columns_help(std::span<const ColumnText> columns) {
  std::string text = "\nColumns of the table, and their fields in JSON:\n";
  for (const ColumnText& column : columns) {
    if (column.head.empty()) continue;
    text += fmt::format("  {:<32}  {}", column.head.substr(column.head.starts_with('>')), column.help);
    if (column.unit != "-") text += fmt::format(", {}", column.unit);
    text += column.key.empty() ? "\n" : fmt::format(" ({})\n", column.key);
  }
  return text;
}

Columns<Provenance> provenance_columns() {
  return {
      {"date", "UTC", "end of the measurement", &Provenance::date},
      {"version", "-", "release of Ridge", [](auto&) { return build_info().version; }},
      {"build_commit", "-", "commit of the build", [](auto&) { return build_info().commit; }},
      {"compiler", "-", "compiler of the build", [](auto&) { return build_info().compiler; }},
      {"build_type", "-", "CMake's type of the build", [](auto&) { return build_info().build_type; }},
      {"cpu", "-", "processor of this machine", [](auto& p) { return p.machine.cpu_model; }},
      {"processors", "processors", "that this process may use", [](auto& p) { return p.machine.n_processors; }},
      {"memory_bytes", "bytes", "memory of this machine", [](auto& p) { return p.machine.memory_bytes; }},
      {"load_1min", "processes", "load of the machine, a minute's mean", [](auto& p) { return p.machine.load_1min; }},
      {"n_threads", "threads", "of the process that was measured", &Provenance::n_threads},
      {"seed", "-", "seed of the data", &Provenance::seed},
      {"command", "-", "the command line", &Provenance::command},
  };
}

Row provenance(int n_threads, uint64_t seed) { return provenance_columns().fields({n_threads, seed}); }

}  // namespace ridge::lab
