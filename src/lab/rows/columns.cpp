#include "lab/rows/columns.h"

#include <cstdint>

namespace ridge::lab {

std::string cell_text(const Row& value, std::string_view format) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format(fmt::runtime(format), value.get<double>());
  if (value.is_number()) return fmt::format(fmt::runtime(format.empty() ? "{}" : format), value.get<int64_t>());
  return "";
}

std::string table_line(std::span<const std::string> cells) { return fmt::format("| {} |", fmt::join(cells, " | ")); }

std::string table_head(std::span<const std::string_view> heads) {
  std::string names = "|", rule = "|";
  for (const std::string_view head : heads) {
    const bool is_right = head.starts_with('>');
    names += fmt::format(" {} |", head.substr(is_right));
    rule += is_right ? " ---: |" : " --- |";
  }
  return names + "\n" + rule;
}

}  // namespace ridge::lab
