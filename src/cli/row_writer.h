// Rows of a benchmark to stdout as they come: a markdown table, JSON lines or one JSON list.
#pragma once

#include "lab/model/bench.h"

namespace ridge::cli {

class RowWriter {
 public:
  /// `format` is that of -o, `head` the heading of the table.
  RowWriter(const std::string& format, bool json, std::string head)
      : format_(lab::find_bench_format(json ? "json" : format).or_throw()), head_(std::move(head)) {
    if (format_ == lab::BenchFormat::csv || format_ == lab::BenchFormat::sql)
      throw Error(ErrorKind::usage, "-o: this bench is written as md, json or jsonl");
  }
  void add(const std::string& line, const lab::Row& row) {
    const bool first = n_rows_++ == 0;
    if (format_ == lab::BenchFormat::md) {
      if (first) fmt::print("{}\n", head_);
      fmt::print("{}\n", line);
    } else {
      const std::string_view front = format_ == lab::BenchFormat::jsonl ? "" : first ? "[\n  " : "  ,";
      fmt::print("{}{}\n", front, lab::json_text(row));
    }
    std::fflush(stdout);
  }
  void finish() const {
    if (format_ == lab::BenchFormat::json) fmt::print("{}\n", n_rows_ == 0 ? "[]" : "]");
  }

 private:
  lab::BenchFormat format_;
  std::string head_;
  int n_rows_ = 0;
};

}  // namespace ridge::cli
