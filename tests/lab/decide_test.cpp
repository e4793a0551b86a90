// Whole decisions on small models: rows are measured once, and the record follows from them.
#include "lab/decide/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "cases/paths.h"
#include "cases/temp_dir.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DecisionParams quick(const std::string& model) {
  return {.model = model,
          .place = {.n_threads = 1},
          .candidates = {"rotor-3"},
          .n_ctx = 256,
          .depths = {128, 256},
          .target_depths = {256},
          .prompts = {40},
          .n_gen = 8,
          .repeats = 5,
          .samples = 5,
          .max_seconds = 0.02,
          .roof_mib = 16,
          .eval_ctx = 64,
          .eval_chunks = 2,
          .memory_bytes = int64_t(8) << 30,
          .check = false};
}

/// The benches of the rows that a call measures, each once, in order.
std::vector<std::string> benches_of(const Model& model, const DecisionParams& params, Store& store) {
  std::vector<std::string> benches;
  DecisionHooks hooks;
  hooks.on_row = [&](const Row& row) {
    const std::string bench = text_in(row["cell"], "bench");
    if (benches.empty() || benches.back() != bench) benches.push_back(bench);
  };
  measure_missing(model, params, ask(model, params), store, hooks);
  return benches;
}

TEST(Decide, ATrainedModelGetsAllRowsOnce) {
  const TempDir dir;
  DecisionParams params = quick(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf");
  params.text = RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt";
  const Model model = Model::load(params.model, params.place);
  Store store = Store::open(dir / "lab.jsonl").or_throw();
  const DecisionQuestion q = ask(model, params);
  const auto to_do = [&] {
    std::vector<std::string> steps;
    for (const DecisionStep& step : steps_left(model, params, q, nullptr, store)) {
      steps.push_back(step.what);
      EXPECT_GT(step.seconds, 0) << step.what;
    }
    return steps;
  };
  EXPECT_THAT(to_do(), ElementsAre("9 measurements of attention", "18 requests", "1 caches on the text"));
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan", "attention", "service", "quality"));
  EXPECT_THAT(benches_of(model, params, store), ElementsAre());
  EXPECT_THAT(to_do(), ElementsAre());

  const std::vector<Row> rows = store.rows();
  const DecisionRecord record = decide(rows, q, params.candidates, {});
  ASSERT_EQ(record.candidates.size(), 1u);
  const std::vector<GateResult>& gates = record.candidates[0].gates;
  for (const GateResult& gate : gates) {
    EXPECT_THAT(gate.why, testing::Not(HasSubstr("no row"))) << gate.name;
    EXPECT_EQ(gate.rows.empty(), gate.number == 7) << gate.name;  // no prompt of 4096 was asked
  }
  EXPECT_EQ(gates[5].verdict, GateVerdict::pass);
  EXPECT_LT(gates[3].numbers["kld"].get<double>(), 0.1);
  EXPECT_GT(gates[2].numbers["speedup"].get<double>(), 0.1);
  EXPECT_EQ(record_text(decide(rows, q, params.candidates, {})), record_text(record));

  // Times from which a gate has no verdict, with those that they are compared with: here of every gate of times.
  DecisionRecord noisy = record;
  for (GateResult& gate : noisy.candidates[0].gates) gate.verdict = GateVerdict::none;
  params.again = noisy_rows(noisy);
  EXPECT_THAT(to_do(), ElementsAre("9 measurements of attention", "18 requests"));
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("attention", "service"));
  for (GateResult& gate : noisy.candidates[0].gates) gate.verdict = GateVerdict::fail;
  EXPECT_THAT(noisy_rows(noisy), ElementsAre());
  params.again.clear();

  // One more candidate: its own rows, and the requests that it is compared in.
  params.candidates.push_back("q8_0");
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan", "attention", "service", "quality"));
  params.memory_bytes = int64_t(1) << 20;  // a question of its own
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan"));
  EXPECT_EQ(memory_gate(store.rows(), ask(model, params), "rotor-3").verdict, GateVerdict::fail);
  params.prompts = {20, 40};
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("service"));
}

TEST(Decide, ASearchMeasuresEverySideOnceAndVerifiesElsewhere) {
  const TempDir dir;
  DecisionParams params = quick(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf");
  params.text = RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt";
  params.search_text = RIDGE_SOURCE_DIR "/docs/ARCHITECTURE.md";
  params.search_sides = {"rotor-3"};
  params.search_chunks = 1;
  params.search_bits = {8};
  params.only_quality = true;
  const Model model = Model::load(params.model, params.place);
  Store store = Store::open(dir / "lab.jsonl").or_throw();
  const DecisionQuestion q = ask(model, params);
  const SearchQuestion s = ask_search(model, params, q);
  ASSERT_EQ(s.items.size(), 16u);
  EXPECT_EQ(s.items[0].bytes.size(), 2u);
  EXPECT_EQ(s.items[0].bytes[1], 256.0 * 2 * 256);  // f16 rows of 2 heads of 128, 256 positions
  EXPECT_LT(s.items[0].bytes[0], s.items[0].bytes[1]);
  int n = 0;
  const DecisionHooks hooks{.on_row = [&](const Row&) { ++n; }};
  measure_sensitivity(model, params, q, s, store, hooks);
  EXPECT_EQ(n, 32);  // rotor-3 and the floor
  measure_sensitivity(model, params, q, s, store, hooks);
  EXPECT_EQ(n, 32);
  const SearchRecord found = search(store.rows(), q, s);
  ASSERT_EQ(found.points.size(), 1u) << found.why;
  EXPECT_LE(found.points[0].bits, 8);
  EXPECT_EQ(found.points[0].verdict, GateVerdict::none);  // not measured yet
  params.quality_caches = searched_caches(found);
  n = 0;
  measure_missing(model, params, q, store, hooks);
  EXPECT_EQ(n, 2 + int(params.quality_caches.size()) + 1 -
                   int(std::ranges::count(params.quality_caches, "rotor-3")));  // plans; quality
  EXPECT_TRUE(std::isfinite(search(store.rows(), q, s).points[0].line));

  // A text cannot verify what was searched on it, under any name.
  params.search_text = params.text;
  EXPECT_THROW(ask_search(model, params, q), Error);
  std::ifstream file(params.text);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  dir.write("part.txt", "Another beginning. " + text.substr(0, text.size() / 2));
  params.search_text = (dir / "part.txt").native();
  params.search_chunks = 2;
  EXPECT_THROW(ask_search(model, params, q), Error);
  params.search_text = RIDGE_SOURCE_DIR "/docs/ARCHITECTURE.md";
  params.text.clear();
  EXPECT_THROW(ask_search(model, params, q), Error);
}

TEST(Decide, RandomWeightsHaveNoQuality) {
  const TempDir dir;
  DecisionParams params = quick("synth:tiny-64");
  params.check = true;
  const Model model = Model::load(params.model, params.place);
  Store store = Store::open(dir / "lab.jsonl").or_throw();
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan", "attention", "service"));
  for (const Row& row : store.rows()) {
    const bool is_service = text_in(row["cell"], "bench") == "service";
    EXPECT_EQ(row.value("checked", false), is_service || row["cell"]["bench"] == "attention");
  }
  const DecisionRecord record = decide(store.rows(), ask(model, params), params.candidates, {});
  EXPECT_EQ(record.candidates[0].gates[3].verdict, GateVerdict::none);
  EXPECT_EQ(record.choice, "f16");
  EXPECT_THAT(why_not_for(record, subject_of(model)), HasSubstr("random weights"));
}

TEST(Decide, AStopLeavesNoHalfMeasuredRows) {
  const TempDir dir;
  const DecisionParams params = quick("synth:tiny-64");
  const Model model = Model::load(params.model, params.place);
  Store store = Store::open(dir / "lab.jsonl").or_throw();
  DecisionHooks hooks;
  bool stop = false;
  hooks.stop = [&] { return stop; };
  hooks.on_status = [&](const std::string& what) { stop |= what.find("pp40+tg8, 3") != std::string::npos; };
  measure_missing(model, params, ask(model, params), store, hooks);
  for (const Row& row : store.rows()) EXPECT_NE(text_in(row["cell"], "bench"), "service");
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("service"));
}

TEST(Decide, RefusesWhatCannotBeAsked) {
  const Model model = Model::load("synth:tiny", {});
  DecisionParams params = quick("synth:tiny");
  params.prompts = {250};
  EXPECT_THROW(ask(model, params), Error);
  params = quick("synth:tiny");
  params.candidates = {"rotor-3:window=33"};
  EXPECT_THROW(ask(model, params), Error);
  EXPECT_THROW(ask(Model::load("synth:tiny-latent", {}), quick("synth:tiny-latent")), Error);
}

TEST(Decide, TheModelsHashIsOfTheFile) {
  const Model a = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf"), b = Model::load("synth:tiny");
  EXPECT_EQ(subject_of(a).model_hash, subject_of(Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf")).model_hash);
  EXPECT_NE(subject_of(a).model_hash, subject_of(b).model_hash);
  EXPECT_FALSE(subject_of(a).synthetic);
  EXPECT_TRUE(subject_of(b).synthetic);
}

}  // namespace
}  // namespace ridge::lab
