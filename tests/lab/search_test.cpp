// The search on made-up rows: what it finds, what it is compared with, and lies that must not pass.
#include "lab/decide/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/kv_choice.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kLayers = 4;

DecisionQuestion search_question() {
  DecisionQuestion q{.subject = {.model_path = "model.gguf",
                                 .model_hash = "00000000000000aa",
                                 .device = "cpu",
                                 .device_name = "AMD EPYC",
                                 .isa = "avx512",
                                 .n_threads = 2,
                                 .build = "abc"},
                     .n_ctx = 4096,
                     .eval_ctx = 1024,
                     .eval_chunks = 20,
                     .corpus = "0b10"};
  for (int i = 0; i < kLayers; ++i) q.attention_layers.push_back(i);
  return q;
}

/// Four layers of 1000 values a side, formats of 3, 4 and 16 bits.
SearchQuestion searched() {
  SearchQuestion s{.path = "valid.txt",
                   .corpus = "0a0a",
                   .n_ctx = 1024,
                   .chunks = 8,
                   .sides = {"rotor-3", "rotor-4"},
                   .values = 2000 * kLayers,
                   .kld_budget = 0.0027,
                   .bits = {3.5}};
  for (int layer = 0; layer < kLayers; ++layer)
    for (const KvSide side : kKvSides) s.items.push_back({layer, side, {375, 500, 2000}});
  return s;
}

constexpr double kFloor = 2e-4;  ///< what any change costs

/// What a side adds: K of the last layer carries most of it.
double sensitivity(int layer, KvSide side, const std::string& text) {
  if (text == kFloorSide) return 0;
  const double of_side = layer == 3 && side == KvSide::k ? 30e-4 : side == KvSide::k ? 2e-4 : 1e-4;
  return text == "rotor-3" ? of_side : of_side / 4;
}

/// Divergence of a cache: the sum over its sides.
double divergence(const std::string& kv) {
  const KvChoice choice = parse_kv_choice(kv).or_throw();
  double sum = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    KvSideOptions k = choice.k, v = choice.v;
    for (const KvLayerOptions& own : choice.layers)
      if (own.first <= layer && layer <= own.last) k = own.k, v = own.v;
    if (k.format != "f16") sum += sensitivity(layer, KvSide::k, k.format);
    if (v.format != "f16") sum += sensitivity(layer, KvSide::v, v.format);
  }
  return sum > 0 ? sum + kFloor : 0;
}

struct Measured {
  DecisionQuestion q = search_question();
  SearchQuestion s = searched();
  double error = 2e-5;
  double worse = 1;  ///< what caches whose layers differ have times what is expected
  std::string path = "decode";

  std::vector<Row> sensitivities() const {
    std::vector<Row> rows;
    for (const SearchItem& item : s.items)
      for (const std::string& side : sides_alone(s))
        rows.push_back({{"kind", "sensitivity"},
                        {"cell", sensitivity_cell(q, s, side_alone(item.layer, item.side, side))},
                        {"kld_mean", sensitivity(item.layer, item.side, side) + kFloor}});
    return rows;
  }
  std::vector<Row> rows() const {
    std::vector<Row> all = sensitivities();
    for (const std::string& kv : searched_caches(search(all, q, s)))
      all.push_back(
          {{"kind", "eval_kld"},
           {"cell", quality_cell(q, kv)},
           {"path", path},
           {"kld",
            {{"mean",
              {{"value", divergence(kv) * (kv.find(';') == std::string::npos ? 1 : worse)}, {"error", error}}}}}});
    return all;
  }
  SearchRecord found() const { return search(rows(), q, s); }
};

TEST(Search, NamesSidesAlone) {
  EXPECT_EQ(side_alone(3, KvSide::k, "rotor-3"), "f16;3:rotor-3/f16");
  EXPECT_EQ(side_alone(0, KvSide::v, "rotor-4:window=32"), "f16;0:f16/rotor-4:window=32");
}

TEST(Search, FindsTheLayerThatMatters) {
  const Measured of;
  const SearchRecord found = of.found();
  ASSERT_EQ(found.points.size(), 2u) << found.why;
  // Within the budget with the fewest bits: only K of the last layer gets its bit back.
  EXPECT_EQ(found.points[0].kv, "rotor-3;3:rotor-4/rotor-3");
  EXPECT_NEAR(found.points[0].bits, 3.125, 1e-12);
  EXPECT_EQ(limit_text(found.points[0]), "KLD <= 0.0027");
  // Half the sides may have 4 bits: the four that matter most.
  EXPECT_EQ(found.points[1].kv, "rotor-4/rotor-3");
  EXPECT_NEAR(found.points[1].bits, 3.5, 1e-12);
  EXPECT_EQ(budget_cache(found), found.points[0].kv);
  for (const SearchPoint& point : found.points) EXPECT_NEAR(point.predicted, point.kld, 1e-12) << point.kv;
  std::vector<std::string> uniform;
  for (const SearchPoint& pair : found.uniform) uniform.push_back(pair.kv);
  EXPECT_THAT(uniform, ElementsAre("rotor-3", "rotor-4/rotor-3"));
}

TEST(Search, BelowTheLineIsAPass) {
  const Measured of;
  const SearchRecord found = of.found();
  const SearchPoint& point = found.points[0];
  EXPECT_EQ(point.verdict, GateVerdict::pass) << point.why;
  // A quarter of the way from rotor-3 to rotor-4/rotor-3.
  EXPECT_NEAR(point.line, 0.75 * divergence("rotor-3") + 0.25 * divergence("rotor-4/rotor-3"), 1e-12);
  EXPECT_NEAR(point.line_error, std::hypot(0.75, 0.25) * of.error, 1e-12);
  // The uniform pair itself is not below its own line.
  EXPECT_EQ(found.points[1].verdict, GateVerdict::none);
}

TEST(Search, LiesDoNotPass) {
  // Sums that do not hold: the found cache is worse than the line.
  const SearchRecord bad = Measured{.worse = 3}.found();
  EXPECT_EQ(bad.points[0].verdict, GateVerdict::fail) << bad.points[0].why;
  EXPECT_THAT(bad.points[0].why, HasSubstr("over the budget"));
  // Errors as large as the gain.
  EXPECT_EQ(Measured{.error = 2e-3}.found().points[0].verdict, GateVerdict::none);
  // Rows of prompts, rows of the text that was searched on, rows that are missing.
  EXPECT_EQ(Measured{.path = "prefill"}.found().points[0].verdict, GateVerdict::none);
  Measured same;
  same.q.corpus = same.s.corpus;
  EXPECT_THAT(same.found().points[0].why, HasSubstr("searched on"));
  EXPECT_EQ(same.found().points[0].verdict, GateVerdict::none);
  const Measured of;
  const std::vector<Row> all = of.rows();
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<Row> rows = all;
    rows.erase(rows.begin() + int64_t(i));
    const SearchRecord found = search(rows, of.q, of.s);
    if (text_in(all[i], "kind") == "sensitivity") EXPECT_THAT(found.why, HasSubstr("no row")) << i;
    else if (!found.points.empty() && all[i]["cell"]["format"] == found.points[1].kv)
      EXPECT_EQ(found.points[1].verdict, GateVerdict::none);
    else EXPECT_EQ(found.points[0].verdict, GateVerdict::none) << all[i]["cell"];
  }
  // Of another model or build.
  Measured other;
  other.q.subject.build = "abd";
  EXPECT_THAT(search(all, other.q, other.s).why, HasSubstr("of another build"));
}

TEST(Search, SaysWhatCannotBeHad) {
  Measured of;
  of.s.bits = {2.5, 3.5};
  const SearchRecord found = of.found();
  EXPECT_EQ(found.points.size(), 2u);
  EXPECT_THAT(found.why, HasSubstr("nothing has up to 2.5 bits"));
}

TEST(Search, FindsTextsThatShareARun) {
  std::vector<int32_t> a, b;
  for (int i = 0; i < 200; ++i) a.push_back(i), b.push_back(1000 + i);
  EXPECT_FALSE(shared_run(a, b, 64));
  std::copy(a.begin() + 30, a.begin() + 94, b.begin() + 17);
  EXPECT_EQ(shared_run(a, b, 64), 17);
  b[40] = -1;
  EXPECT_FALSE(shared_run(a, b, 64));
  EXPECT_FALSE(shared_run(a, std::span(b).first(10), 64));
}

TEST(Search, GoesIntoTheRecordAndComesBack) {
  const Measured of;
  DecisionRecord record = decide(of.rows(), of.q, {}, {});
  add_search(record, of.found());
  EXPECT_THAT(record.sentence, HasSubstr("By layer and side rotor-3;3:rotor-4/rotor-3 has mean KLD"));
  const DecisionRecord read = parse_record(record_text(record), "r.json").or_throw();
  EXPECT_EQ(record_text(read), record_text(record));
  EXPECT_EQ(record_page(read), record_page(record));
  EXPECT_THAT(record_page(read), HasSubstr("KLD <= 0.0027"));
  ASSERT_TRUE(read.search);
  EXPECT_EQ(read.search->points.size(), 2u);
  record.search->points[0].kv = "";
  EXPECT_THAT(parse_record(record_text(record), "r.json").error().message, HasSubstr("search.points[0].kv"));
}

TEST(Search, RowsForTablesAreOneAPointAndNameTheDevice) {
  Measured of;
  of.q.subject.device = "cuda";
  of.q.subject.device_name = "NVIDIA H200";
  const SearchRecord found = of.found();
  const std::vector<Row> rows = search_rows(of.q, found);
  ASSERT_EQ(rows.size(), found.points.size() + found.uniform.size());
  EXPECT_TRUE(rows[0]["uniform"].get<bool>());
  EXPECT_EQ(rows.back()["kv"], found.points.back().kv);
  EXPECT_EQ(rows.back()["verdict"], gate_verdict_name(found.points.back().verdict));
  for (const Row& row : rows) {
    EXPECT_EQ(row["device"], "cuda");
    EXPECT_EQ(row["device_name"], "NVIDIA H200");
  }
}

}  // namespace
}  // namespace ridge::lab
