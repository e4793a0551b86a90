// Rows of a bench to stdout as they come: a markdown table, JSON lines, one JSON list, or llama-bench's CSV and SQL.
#pragma once

#include <cstdint>

#include "lab/rows/results.h"

namespace ridge::lab {

enum class RowFormat : uint8_t { md, csv, json, jsonl, sql };
Result<RowFormat> find_row_format(std::string_view name);

class RowWriter {
 public:
  /// `head` is the heading of the markdown table.
  RowWriter(RowFormat format, std::string head) : format_(format), head_(std::move(head)) {}
  /// `line` is the row in the markdown table. CSV and SQL leave out fields that are lists.
  void add(const std::string& line, const Row& row);
  void finish() const;

 private:
  RowFormat format_;
  std::string head_;
  int n_rows_ = 0;
};

}  // namespace ridge::lab
