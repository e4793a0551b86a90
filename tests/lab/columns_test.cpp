// Every kind of row: its columns are named once and say what they hold, and docs/fields.md lists them.
#include "lab/rows/columns.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "cases/paths.h"
#include "io/mapped_file.h"
#include "lab/model/bench_batch.h"
#include "lab/model/bench_spec.h"
#include "lab/model/profile.h"
#include "lab/op/coding.h"
#include "lab/op/collective_bench.h"
#include "lab/op/device_ceilings.h"
#include "lab/quality/attention_study.h"
#include "lab/quality/probe.h"
#include "lab/quality/quality_report.h"
#include "lab/serve/load_report.h"
#include "lab/sweep/compare.h"
#include "lab/sweep/crossover.h"
#include "lab/sweep/sweep.h"

namespace ridge::lab {
namespace {

struct Kind {
  std::string_view command;
  std::vector<ColumnText> columns;
};

std::vector<Kind> kinds() {
  return {{"bench decode", bench_columns().texts()},
          {"bench decode --spec-type", spec_columns().texts()},
          {"bench batch", batch_columns().texts()},
          {"bench batch --spec-type", batch_spec_columns().texts()},
          {"bench serve", load_columns().texts()},
          {"bench gemv, bench attention, bench append, compare", op_columns().texts()},
          {"bench attention --coding", coding_columns().texts()},
          {"bench collective", collective_columns().texts()},
          {"bench attention -m", columns_of(AttentionResult()).texts()},
          {"bench attention -m, errors", attention_error_columns().texts()},
          {"bench bandwidth", ceiling_columns().texts()},
          {"bench bandwidth --device cuda", device_ceiling_columns().texts()},
          {"bench bandwidth, streams", stream_columns().texts()},
          {"bench bandwidth, caches", cache_columns("thread_bytes").texts()},
          {"bench bandwidth, rates", rate_columns().texts()},
          {"bench bandwidth, edges", edge_columns().texts()},
          {"compare, verdict", verdict_columns().texts()},
          {"eval probe", columns_of(ProbeResult()).texts()},
          {"eval probe, probes", probe_line_columns().texts()},
          {"eval, kv_k and kv_v", kv_side_columns().texts()},
          {"sweep", sweep_columns().texts()},
          {"sweep --crossovers", crossover_columns().texts()},
          {"sweep --crossovers, points", crossover_point_columns("batch").texts()},
          {"profile", profile_columns().texts()},
          {"profile, parts", profile_part_texts()}};
}

TEST(Columns, AreNamedOnceAndSayWhatTheyHold) {
  for (const Kind& kind : kinds()) {
    std::set<std::string_view> keys, heads;
    for (const ColumnText& c : kind.columns) {
      const std::string name = fmt::format("{}: {}{}", kind.command, c.key, c.head);
      EXPECT_FALSE(c.key.empty() && c.head.empty()) << name;
      EXPECT_FALSE(c.unit.empty() || c.help.empty()) << name;
      EXPECT_TRUE(c.key.empty() || keys.insert(c.key).second) << name;
      EXPECT_TRUE(c.head.empty() || heads.insert(c.head).second) << name;
    }
  }
}

TEST(Columns, OneListGivesFieldsTableAndHelp) {
  struct Inner {
    int depth = 0;
  };
  struct Outer {
    std::string name;
    double us = 0;
    std::optional<Inner> inner;
  };
  const Columns<Inner> inner = {{"depth", "tokens", "in the cache", &Inner::depth, ">depth"},
                                {"", "-", "a column of the other table", &Inner::depth, "alone"}};
  const Columns<Outer> columns = {
      {"name", "-", "of the row", &Outer::name, "row"},
      {"us", "us", "of a call", &Outer::us, ">us", "{:.1f}"},
      {"slow", "-", "slower than 5 us", [](auto& o) { return only(o.us > 5, true); }},
      part_of<Outer>(inner, &Outer::inner),
  };
  EXPECT_EQ(columns.fields({"a", 2.25, {}}).dump(), R"({"name":"a","us":2.25})");
  EXPECT_EQ(columns.fields({"a", NAN, Inner{7}}).dump(), R"({"name":"a","us":null,"depth":7})");
  EXPECT_EQ(columns.fields({"a", 9, {}}).dump(), R"({"name":"a","us":9.0,"slow":true})");
  const Outer rows[] = {{"a", 2.25, {}}, {"b", NAN, {}}};
  EXPECT_EQ(columns.table(rows), "| row | us |\n| --- | ---: |\n| a | 2.2 |\n| b |  |\n");
  EXPECT_EQ(columns.picked({"us"}).fields(rows[0]).dump(), R"({"us":2.25})");
  EXPECT_EQ(columns.texts().back().key, "depth");
  const std::string help = columns_help(columns.texts());
  EXPECT_NE(help.find("  us                                of a call, us (us)\n"), std::string::npos) << help;
}

TEST(Columns, AreThoseOfTheDocument) {
  std::string page =
      "# Fields of rows\n\n"
      "Rows of each command: fields of JSON (`-o jsonl`, `--results`) and columns of the table. A line without a "
      "field\n"
      "is a column of the table alone. A test writes this page from the code (`tests/lab/columns_test.cpp`).\n";
  for (const Kind& kind : kinds()) {
    page += fmt::format("\n## {}\n| field | column | unit | meaning |\n|---|---|---|---|\n", kind.command);
    for (const ColumnText& c : kind.columns)
      page += fmt::format("| {} | {} | {} | {} |\n", c.key.empty() ? "" : fmt::format("`{}`", c.key),
                          c.head.substr(c.head.starts_with('>')), c.unit == "-" ? "" : c.unit, c.help);
  }
  const std::string path = RIDGE_SOURCE_DIR "/docs/fields.md";
  if (std::getenv("RIDGE_UPDATE_GOLDEN")) std::ofstream(path) << page;
  EXPECT_EQ(page, io::read_text_file(path, 1 << 20).or_throw()) << "RIDGE_UPDATE_GOLDEN=1 rewrites the page";
}

}  // namespace
}  // namespace ridge::lab
