// Whole decisions on small models: rows are measured once, and the record follows from them.
#include "lab/decide/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  Store store = Store::open(dir / "lab.db", true).or_throw();
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan", "attention", "service", "quality"));
  EXPECT_THAT(benches_of(model, params, store), ElementsAre());

  const DecisionQuestion q = ask(model, params);
  const std::vector<Row> rows = store.rows().or_throw();
  const DecisionRecord record = decide(rows, q, params.candidates, {});
  ASSERT_EQ(record.candidates.size(), 1u);
  const std::vector<GateResult>& gates = record.candidates[0].gates;
  for (const GateResult& gate : gates) {
    EXPECT_THAT(gate.why, testing::Not(HasSubstr("no row"))) << gate.name;
    EXPECT_FALSE(gate.rows.empty()) << gate.name;
  }
  EXPECT_EQ(gates[5].verdict, GateVerdict::pass);
  EXPECT_LT(gates[3].numbers["kld"].get<double>(), 0.1);
  EXPECT_GT(gates[2].numbers["speedup"].get<double>(), 0.1);
  EXPECT_EQ(record_text(decide(rows, q, params.candidates, {})), record_text(record));

  // One more candidate: its own rows, and the requests that it is compared in.
  params.candidates.push_back("q8_0");
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan", "attention", "service", "quality"));
  params.memory_bytes = int64_t(1) << 20;  // a question of its own
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan"));
  EXPECT_EQ(memory_gate(store.rows().or_throw(), ask(model, params), "rotor-3").verdict, GateVerdict::fail);
  params.prompts = {20, 40};
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("service"));
}

TEST(Decide, RandomWeightsHaveNoQuality) {
  const TempDir dir;
  DecisionParams params = quick("synth:tiny-64");
  params.check = true;
  const Model model = Model::load(params.model, params.place);
  Store store = Store::open(dir / "lab.db", true).or_throw();
  EXPECT_THAT(benches_of(model, params, store), ElementsAre("plan", "attention", "service"));
  for (const Row& row : store.rows().or_throw()) {
    const bool is_service = text_in(row["cell"], "bench") == "service";
    EXPECT_EQ(row.value("checked", false), is_service || row["cell"]["bench"] == "attention");
  }
  const DecisionRecord record = decide(store.rows().or_throw(), ask(model, params), params.candidates, {});
  EXPECT_EQ(record.candidates[0].gates[3].verdict, GateVerdict::none);
  EXPECT_EQ(record.choice, "f16");
  EXPECT_THAT(why_not_for(record, subject_of(model)), HasSubstr("random weights"));
}

TEST(Decide, AStopLeavesNoHalfMeasuredRows) {
  const TempDir dir;
  const DecisionParams params = quick("synth:tiny-64");
  const Model model = Model::load(params.model, params.place);
  Store store = Store::open(dir / "lab.db", true).or_throw();
  DecisionHooks hooks;
  bool stop = false;
  hooks.stop = [&] { return stop; };
  hooks.on_status = [&](const std::string& what) { stop |= what.find("pp40+tg8, 3") != std::string::npos; };
  measure_missing(model, params, ask(model, params), store, hooks);
  for (const Row& row : store.rows().or_throw()) EXPECT_NE(text_in(row["cell"], "bench"), "service");
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
