#include "cli/bench.h"

#include "lab/rows/int_list.h"

namespace ridge::cli {
namespace {

lab::RowFormat read_format(const std::string& name, bool json, bool with_csv_and_sql) {
  const lab::RowFormat format = lab::find_row_format(json ? "json" : name).or_throw();
  if (!with_csv_and_sql && (format == lab::RowFormat::csv || format == lab::RowFormat::sql))
    throw Error(ErrorKind::usage, "-o: this bench is written as md, json or jsonl");
  return format;
}

}  // namespace

BenchOutput::BenchOutput(const OutputFlags& flags, const std::string& format, std::string head, bool with_csv_and_sql)
    : writer_(read_format(format, flags.json, with_csv_and_sql), std::move(head)),
      results_(lab::ResultsFile::open(flags.results).or_throw()),
      progress_("bench", !flags.quiet) {}

void BenchOutput::failed(const std::string& test, const lab::BenchCheck& check) {
  progress_.clear();
  fmt::print(stderr, "error: {}: check failed: NMSE {:.3g} over the bound {:.3g} ({}); no speed is given for it\n",
             test, check.nmse, check.bound, check.what);
}

int BenchOutput::finish(int n_failed) {
  progress_.clear();
  writer_.finish();
  if (interrupted()) return int(ErrorKind::interrupted);
  return n_failed > 0 ? int(ErrorKind::gate) : 0;
}

std::string joined(const std::vector<std::string>& texts) { return fmt::format("{}", fmt::join(texts, ",")); }

void read_numbers(std::string_view flag, const std::vector<std::string>& texts, int min, int max,
                  std::vector<int>& values) {
  if (!texts.empty()) values = lab::parse_int_list(flag, joined(texts), min, max).or_throw();
}

}  // namespace ridge::cli
