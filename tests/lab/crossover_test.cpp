// Crossovers of made-up rows: every kind of answer, its interval, its sentence and its evidence.
#include "lab/sweep/crossover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "lab/rows/results.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;
using testing::Not;
using Crossed = Crossover::Answer;

/// A sweep's row: 40 samples around `us`, 0.5 % wide.
Row gemv_row(int batch, std::string_view format, double us, std::string_view build = "abc", bool control = false) {
  Row cell{{"bench", "gemv"},           {"n_out", 8960},    {"n_in", 1536},    {"batch", batch},
           {"format", format},          {"kernel", "best"}, {"seed", 42},      {"device", "cpu"},
           {"device_name", "AMD EPYC"}, {"n_threads", 2},   {"isa", "avx512"}, {"build", build}};
  if (control) cell["control"] = true;
  Row row{{"kind", "op"}, {"cell", cell}, {"date", build == "abc" ? "2026-01-02" : "2026-01-01"}};
  row["samples_us"] = Row::array();
  Rng rng(uint64_t(batch) * 31 + uint64_t(us * 1000) + control);
  for (int i = 0; i < 40; ++i) row["samples_us"].push_back(us * (1 + 0.005 * rng.normal()));
  return row;
}

/// f16 takes 100 at every batch; the other takes 100 / speed-up.
std::vector<Row> sweep_rows(const std::vector<std::pair<int, double>>& speed_ups) {
  std::vector<Row> rows;
  for (const auto& [batch, speed_up] : speed_ups) {
    rows.push_back(gemv_row(batch, "f16", 100));
    rows.push_back(gemv_row(batch, "int4_g128", 100 / speed_up));
    rows.push_back(gemv_row(batch, "f16", 100, "abc", true));
  }
  return rows;
}
Crossover only(const std::vector<Row>& rows, const CrossoverOptions& options = {}) {
  const auto found = find_crossovers(rows, options);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? Crossover{} : found[0];
}

TEST(Crossover, UpToABatch) {
  const Crossover c = only(sweep_rows({{1, 3.0}, {2, 2.5}, {4, 2.0}, {16, 1.2}, {32, 0.93}, {64, 0.5}}));
  EXPECT_EQ(c.answer, Crossed::up_to);
  EXPECT_EQ(c.between_low, 16);
  EXPECT_EQ(c.between_high, 32);
  EXPECT_THAT(sentence(c), testing::MatchesRegex(
                               "int4_g128 beats f16 up to batch 16 on gemv 8960x1536 \\(AMD EPYC, 2 threads\\): at 16 "
                               "1\\.[12][0-9]x \\[1\\.[12][0-9], 1\\.2[0-9]\\], at 32 0\\.9[0-9]x \\[0\\.9[0-9], "
                               "0\\.9[0-9]\\]"));
}

TEST(Crossover, FromABatchAlwaysNeverMixed) {
  const Crossover from = only(sweep_rows({{1, 0.5}, {8, 0.8}, {16, 1.5}, {64, 2}}));
  EXPECT_EQ(from.answer, Crossed::from);
  EXPECT_EQ(from.between_high, 16);
  EXPECT_THAT(sentence(from), HasSubstr("int4_g128 beats f16 from batch 16 on gemv"));
  const Crossover always = only(sweep_rows({{1, 2}, {8, 2}, {64, 1.5}}));
  EXPECT_EQ(always.answer, Crossed::always);
  EXPECT_FALSE(always.between_low);
  EXPECT_THAT(sentence(always), HasSubstr("int4_g128 beats f16 always in the measured range, batch 1 to 64 on gemv"));
  EXPECT_THAT(sentence(always), Not(HasSubstr("at 8 ")));
  const Crossover never = only(sweep_rows({{1, 0.9}, {64, 0.5}}));
  EXPECT_EQ(never.answer, Crossed::never);
  EXPECT_THAT(sentence(never), HasSubstr("int4_g128 never beats f16 in the measured range, batch 1 to 64 on"));
  const Crossover mixed = only(sweep_rows({{1, 2}, {8, 0.5}, {16, 2}, {32, 2}}));
  EXPECT_EQ(mixed.answer, Crossed::mixed);
  EXPECT_THAT(sentence(mixed), HasSubstr("beats f16 at batch 1, 16, 32 and loses at 8 on"));
}

TEST(Crossover, ACellInsideTheNoiseWidensTheInterval) {
  const Crossover c = only(sweep_rows({{1, 2}, {8, 1.3}, {16, 1.002}, {32, 0.8}}));
  EXPECT_EQ(c.answer, Crossed::up_to);
  EXPECT_EQ(c.between_low, 8);
  EXPECT_EQ(c.between_high, 32);
  EXPECT_THAT(sentence(c), HasSubstr("at 16 1.0"));
  EXPECT_THAT(sentence(c), HasSubstr("inside the noise at batch 16"));
  const Crossover tail = only(sweep_rows({{1, 2}, {8, 1.3}, {16, 1.001}}));
  EXPECT_EQ(tail.answer, Crossed::always);
  EXPECT_THAT(sentence(tail), HasSubstr("wherever it is decided"));
  const Crossover nothing = only(sweep_rows({{1, 1.001}, {8, 1.0}}));
  EXPECT_EQ(nothing.answer, Crossed::undecided);
  EXPECT_THAT(sentence(nothing), HasSubstr("int4_g128 and f16 cannot be told apart, batch 1 to 8"));
}

TEST(Crossover, AnAAPairThatDiffersUndecidesItsCell) {
  std::vector<Row> rows = sweep_rows({{1, 1.2}, {8, 1.2}});
  rows[2] = gemv_row(1, "f16", 130, "abc", true);  // the machine changed its pace in between
  const Crossover c = only(rows);
  EXPECT_EQ(c.points[0].verdict.answer, Verdict::Answer::none);
  EXPECT_EQ(c.points[1].verdict.answer, Verdict::Answer::faster);
}

TEST(Crossover, CellsWithoutTimesAreSaid) {
  std::vector<Row> rows = sweep_rows({{1, 2}, {8, 2}, {64, 2}});
  Row& failed = rows[4];
  failed.erase("samples_us");
  failed["state"] = "failed";
  failed["reason"] = "NMSE 0.2 over 1e-5";
  rows.erase(rows.begin() + 7);
  const Crossover c = only(rows);
  EXPECT_EQ(c.answer, Crossed::always);
  EXPECT_THAT(sentence(c), HasSubstr("no comparison at batch 8: int4_g128: failed: NMSE 0.2 over 1e-5"));
  EXPECT_THAT(sentence(c), HasSubstr("at 64 nothing; no comparison"));
  EXPECT_THAT(sentence(c), HasSubstr("no comparison at batch 64: int4_g128: not measured"));
  EXPECT_EQ(crossover_columns().fields(c)["points"][1]["why_none"], "int4_g128: failed: NMSE 0.2 over 1e-5");
}

TEST(Crossover, BuildsAndDevicesAreNotMixed) {
  std::vector<Row> rows = sweep_rows({{1, 2}, {8, 2}});
  for (const int batch : {1, 8}) {  // an older build, in which it lost
    rows.push_back(gemv_row(batch, "f16", 100, "old"));
    rows.push_back(gemv_row(batch, "int4_g128", 200, "old"));
  }
  EXPECT_EQ(only(rows).answer, Crossed::always);
  for (Row row : sweep_rows({{1, 0.5}, {8, 0.5}})) {
    row["cell"]["device_name"] = "cuda:0 NVIDIA H200";
    row["cell"]["n_threads"] = 0;
    rows.push_back(row);
  }
  const auto both = find_crossovers(rows, {});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_NE(both[0].answer, both[1].answer);
  EXPECT_THAT(sentence(both[0]) + sentence(both[1]), HasSubstr("(cuda:0 NVIDIA H200):"));
}

TEST(Crossover, PairsAndKernels) {
  std::vector<Row> rows;
  for (const int batch : {1, 8}) {
    rows.push_back(gemv_row(batch, "f16", 100));
    rows.push_back(gemv_row(batch, "int4_g128", 50));
    rows.push_back(gemv_row(batch, "int4_g128", 150));
    rows.back()["cell"]["kernel"] = "two-op";
  }
  EXPECT_EQ(find_crossovers(rows, {}).size(), 2u);
  EXPECT_EQ(find_crossovers(rows, {.baseline = "all"}).size(), 3u);
  const auto against = find_crossovers(rows, {.baseline = "int4_g128 (two-op)"});
  ASSERT_EQ(against.size(), 2u);
  EXPECT_EQ(against[1].format, "int4_g128");
  EXPECT_EQ(against[1].answer, Crossed::always);
  EXPECT_TRUE(find_crossovers(rows, {.baseline = "q8_0"}).empty());
}

TEST(Crossover, TheOtherSidesControlCountsToo) {
  const std::vector<Row> rows = sweep_rows({{1, 2}, {8, 0.5}});
  const auto found = find_crossovers(rows, {.baseline = "int4_g128"});
  ASSERT_EQ(found.size(), 1u);
  const Crossover& c = found[0];
  EXPECT_EQ(c.format, "f16");
  EXPECT_EQ(c.answer, Crossed::from);
  EXPECT_TRUE(c.points[0].verdict.has_control);
  EXPECT_NEAR(c.points[0].verdict.ratio, 0.5, 0.02);
  EXPECT_LE(c.points[0].verdict.low, c.points[0].verdict.ratio);
  EXPECT_GE(c.points[0].verdict.high, c.points[0].verdict.ratio);
}

TEST(Crossover, DepthsOfAttentionAndDecode) {
  std::vector<Row> rows;
  for (const int depth : {512, 4096, 32768})
    for (const std::string_view format : {"f16", "rotor-3"}) {
      Row cell{{"bench", "attention"}, {"n_heads", 12},  {"n_kv_heads", 2},  {"head_dim", 128},
               {"batch", 1},           {"depth", depth}, {"format", format}, {"kernel", "best"},
               {"device_name", "X"},   {"n_threads", 1}, {"build", "abc"}};
      const double us = format == "f16" ? depth : 600 + depth / 4;
      rows.push_back({{"kind", "op"}, {"cell", cell}, {"samples_us", std::vector<double>(10, us)}});
      cell["bench"] = "decode";
      cell["model"] = "synth:tiny";
      rows.push_back({{"cell", cell}, {"samples_ns", std::vector<int64_t>(10, int64_t(us))}});
    }
  const auto found = find_crossovers(rows, {});
  ASSERT_EQ(found.size(), 2u) << "one batch is no axis";
  for (const Crossover& c : found) {
    EXPECT_EQ(c.axis, "depth");
    EXPECT_EQ(c.answer, Crossed::from);
    EXPECT_EQ(c.between_high, 4096);
  }
  EXPECT_THAT(sentence(found[0]) + sentence(found[1]),
              HasSubstr("on attention 12/2/128, batch 1 (X, 1 thread): at 512"));
  EXPECT_THAT(sentence(found[0]) + sentence(found[1]), HasSubstr("on decode of synth:tiny, batch 1 (X, 1 thread)"));
}

TEST(Crossover, StrangeRowsAreLeftOut) {
  std::vector<Row> rows = sweep_rows({{1, 2}, {8, 2}});
  for (const char* text : {"{}", R"({"cell":1})", R"({"cell":{}})", R"({"cell":{"batch":"x","format":"f16"}})",
                           R"({"cell":{"batch":1.5,"format":"f16"}})", R"({"cell":{"batch":1,"format":3}})",
                           R"({"kind":"op","median_us":3,"n_tokens":1})"})
    rows.push_back(Row::parse(text));
  Row odd = gemv_row(16, "int4_g128", 5);
  odd["samples_us"] = {"a", nullptr, Row::object()};
  rows.push_back(odd);
  const Crossover c = only(rows);
  EXPECT_EQ(c.points.size(), 3u);
  EXPECT_EQ(c.points[2].missing, "f16: not measured");
}

TEST(Crossover, JsonHasTheEvidence) {
  const std::vector<Row> rows = sweep_rows({{1, 2}, {8, 0.5}});
  const Row row = crossover_columns().fields(only(rows));
  EXPECT_EQ(row["answer"], "up_to");
  EXPECT_EQ(row["between"], Row::parse("[1,8]"));
  EXPECT_EQ(row["points"][0]["verdict"], "FASTER");
  EXPECT_EQ(row["points"][1]["batch"], 8);
  EXPECT_EQ(cell_key({{"cell", row["points"][1]["cell"]}}), cell_key(rows[4]));
}

}  // namespace
}  // namespace ridge::lab
