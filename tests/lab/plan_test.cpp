// Plans against what the engine allocates, and the answers that follow from them.
#include "lab/decide/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "cases/paths.h"
#include "cases/thread_ranks.h"
#include "lab/decide/plan_parts.h"
#include "lab/rows/machine.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;

constexpr const char* kReference = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";
constexpr const char* kStories = RIDGE_SOURCE_DIR "/models/stories260K.gguf";

MemoryPlan plan_of(const PlannedModel& model, const char* kv, int n_ctx, int n_sessions) {
  return plan_memory(model, parse_kv_choice(kv).or_throw(), n_ctx, n_sessions, 0);
}

TEST(Plan, EveryPartIsWhatTheEngineAllocates) {
  for (const char* path :
       {"synth:tiny", "synth:tiny-64@weights=q8_0", "synth:tiny-64@weights=q4_k@head=q8_0", "synth:tiny-bitnet",
        "synth:tiny-gemma", "synth:tiny-latent", "synth:tiny-index", "synth:tiny-delta", "synth:tiny-experts",
        "synth:tiny-oss", "synth:tiny-gemma4-moe", "synth:tiny-gemma4-e", "synth:tiny-nemotron", kStories})
    for (const char* kv : {"f16", "q8_0:window=32:sinks=4", "rotor-3"})
      for (const Isa isa : isas()) {
        const std::string_view name(path);
        if (name == kStories && std::string_view(kv) != "f16") continue;  // heads of 8 values
        // Scalar kernels take their time: for rows and for ternary codes once each.
        if (isa == Isa::scalar && name != "synth:tiny" && name != "synth:tiny-bitnet") continue;
        if (isa > detect_isa()) continue;
        const LoadOptions place{.n_threads = 2, .isa = std::string(isa_name(isa))};
        const PlannedModel model = plan_model(path, place);
        const MemoryPlan plan = plan_of(model, kv, path == kStories ? 300 : 700, 3);
        const PlanCheck check = check_plan(path, plan, place);
        SCOPED_TRACE(fmt::format("{} {} {}", path, kv, isa_name(isa)));
        // Layers that share K and V take a prompt through a windowed cache in parts. The plan counts kernels' scratch
        // of whole steps there, which is an upper bound.
        const bool in_parts = name == "synth:tiny-gemma4-e" && std::string_view(kv) != "f16";
        if (!in_parts) {
          EXPECT_LE(check.difference(plan), kPlanTolerance);
        }
        ASSERT_EQ(check.found.size(), plan.parts.size());
        for (const PlanPart& part : check.found) {
          if (in_parts && part.name == kScratch) {
            EXPECT_LE(part.bytes, plan.of(part.name));
            continue;
          }
          // Padding behind rows is not planned; how many tokens an expert gets depends on the tokens.
          const bool loose = part.name.starts_with("KV") || model.config().n_experts > 0;
          EXPECT_NEAR(double(part.bytes), double(plan.of(part.name)), loose ? 4096 + 0.3 * double(part.bytes) : 0)
              << part.name;
        }
        EXPECT_GT(plan.of("KV K coded"), 0);
        EXPECT_GT(plan.of("activations"), 0);
      }
}

/// What each rank of several allocates; the plan is that of one of them. What ranks exchange is not in it.
TEST(Plan, OfRanksIsWhatARankAllocates) {
  if (detect_isa() == Isa::scalar) GTEST_SKIP() << "scalar kernels read rows where they are in the whole model";
  for (const char* path : {"synth:tiny-64@weights=q8_0", "synth:tiny-64@weights=q4_0@head=q8_0", "synth:tiny-bitnet",
                           "synth:tiny-delta", "synth:tiny-latent", kReference}) {
    const LoadOptions place{.n_threads = 1};
    for (const auto& [n_ranks, n_stages] : {std::pair(2, 1), {2, 2}, {4, 2}}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks in {} stages", path, n_ranks, n_stages));
      const PlannedModel model = plan_model(path, place, n_ranks, n_stages);
      const MemoryPlan plan = plan_of(model, "f16", 700, 3);
      PlanCheck check;
      on_ranks(n_ranks, [&](Ranks& ranks) {
        ranks.set_stages(n_stages);
        const PlanCheck own = check_plan(path, plan, place, &ranks);
        if (ranks.rank() == model.slice->rank_in(model.slice->stage)) check = own;
      });
      EXPECT_LE(check.difference(plan), kPlanTolerance);
      ASSERT_EQ(check.found.size(), plan.parts.size());
      for (const PlanPart& part : check.found) {
        const bool loose = part.name.starts_with("KV") || std::string_view(path) == "synth:tiny-delta";
        EXPECT_NEAR(double(part.bytes), double(plan.of(part.name)), loose ? 4096 + 0.3 * double(part.bytes) : 0)
            << part.name;
      }
      EXPECT_LT(plan.total(), plan_of(plan_model(path, place), "f16", 700, 3).total());
    }
  }
}

TEST(Plan, ATrainedModelAndWeightedRounding) {
  const PlannedModel model = plan_model(kReference, {});
  for (const char* kv : {"f16", "rotor-3", "rotor-4/q8_0"}) {
    const MemoryPlan plan = plan_of(model, kv, 2000, 2);
    const PlanCheck check = check_plan(kReference, plan, {});
    EXPECT_LE(check.difference(plan), kPlanTolerance) << kv;
    EXPECT_GT(check.resident_bytes, plan.of("weights") / 2) << kv;
  }
}

/// A plan with a proposer, against what is allocated; every part by name.
void expect_draft(const char* path, const char* type, const char* draft_path, const char* kv) {
  SCOPED_TRACE(fmt::format("{} {} {} {}", path, type, draft_path, kv));
  const LoadOptions place{.n_threads = 2};
  const PlannedModel model = plan_model(path, place);
  const auto draft = plan_draft(model, type, draft_path, parse_kv_choice(kv).or_throw(), 4);
  const KvChoice f16;
  const MemoryPlan with = plan_memory(model, f16, 700, 3, 0, draft), without = plan_memory(model, f16, 700, 3, 0);
  const PlanCheck check = check_plan(path, with, place);
  EXPECT_LE(check.difference(with), kPlanTolerance);
  ASSERT_EQ(check.found.size(), with.parts.size());
  for (const PlanPart& part : check.found)
    EXPECT_NEAR(double(part.bytes), double(with.of(part.name)), 4096 + 0.02 * double(part.bytes)) << part.name;
  for (const char* name : {"draft weights", "draft KV", "draft buffers"}) {
    EXPECT_GT(with.of(name), 0) << name;
    EXPECT_EQ(without.of(name), 0) << name;
  }
  // Draft tokens are rows of logits: four more of every session.
  EXPECT_NEAR(double(with.of("logits")), 5.0 * double(without.of("logits")),
              type == std::string_view("mtp") ? double(with.of("logits")) : 8);
  EXPECT_GT(with.session_bytes, without.session_bytes);
  EXPECT_LT(largest_context(model, f16, 3, 0, with.total(), draft), largest_context(model, f16, 3, 0, with.total()));
}

TEST(Plan, CountsProposers) {
  expect_draft("synth:tiny-64@weights=q8_0", "draft", "synth:tiny-64@layers=1", "f16");
  expect_draft("synth:tiny-64@weights=q8_0", "draft", "synth:tiny-64@layers=1", "q8_0:window=32:sinks=4");
  expect_draft("synth:tiny-64@mtp=1", "mtp", "", "f16");
  expect_draft("synth:tiny-64@mtp=1@weights=q8_0", "mtp", "", "rotor-3");
  expect_draft("synth:tiny-delta@mtp=1", "mtp", "", "f16");
  const PlannedModel states = plan_model("synth:tiny-delta", {});
  const auto found = plan_draft(states, "lookup", "", {}, 16);
  const MemoryPlan of_history = plan_memory(states, {}, 700, 2, 0, found);
  EXPECT_EQ(of_history.of("states"), 4 * plan_memory(states, {}, 700, 2, 0).of("states")) << "of four lengths";
  EXPECT_LE(check_plan("synth:tiny-delta", of_history, {}).difference(of_history), kPlanTolerance);
  // Lookups hold nothing, but the model's steps are larger.
  const PlannedModel model = plan_model("synth:tiny", {});
  const auto lookup = plan_draft(model, "lookup", "", {}, 4);
  const MemoryPlan with = plan_memory(model, {}, 700, 2, 0, lookup), without = plan_memory(model, {}, 700, 2, 0);
  EXPECT_EQ(with.parts.size(), without.parts.size());
  EXPECT_GT(with.of("logits"), without.of("logits"));
  EXPECT_EQ(check_plan("synth:tiny", with, {}).difference(with) <= kPlanTolerance, true);
  // A lie about the draft's cache is found.
  const auto draft = plan_draft(model, "draft", "synth:tiny@layers=1", {}, 4);
  MemoryPlan wrong = plan_memory(model, {}, 4096, 3, 0, draft);
  for (PlanPart& part : wrong.parts)
    if (part.name == "draft KV") part.bytes /= 2;
  EXPECT_GT(check_plan("synth:tiny", wrong, {}).difference(wrong), kPlanTolerance);
  EXPECT_THROW(plan_draft(model, "mtp", "", {}, 4), Error);  // no head
}

TEST(Plan, AWrongPlanIsFound) {
  MemoryPlan plan = plan_of(plan_model("synth:tiny", {}), "f16", 2048, 2);
  plan.parts[0].bytes += plan.total() / 50;
  EXPECT_GT(check_plan("synth:tiny", plan, {}).difference(plan), kPlanTolerance);
}

TEST(Plan, TheLargestThatFitsFitsAndTheNextDoesNot) {
  const PlannedModel model = plan_model("synth:qwen2.5-1.5b@weights=q4_0", {});
  constexpr int64_t kMemory = int64_t(4) << 30;
  for (const KvChoice& kv : planned_formats(model)) {
    const auto total = [&](int n_ctx, int64_t n) { return plan_memory(model, kv, n_ctx, int(n), 0).total(); };
    const int n_ctx = largest_context(model, kv, 2, 0, kMemory);
    EXPECT_LE(total(n_ctx, 2), kMemory);
    EXPECT_GT(total(n_ctx + 1, 2), kMemory);
    const int64_t n = most_sessions(model, kv, 8192, 0, kMemory);
    EXPECT_LE(total(8192, n), kMemory);
    EXPECT_GT(total(8192, n + 1), kMemory);
  }
  const KvChoice f16;
  EXPECT_EQ(largest_context(model, f16, 1, 0, 1 << 20), 0);
  EXPECT_EQ(most_sessions(model, f16, 8192, 0, 1 << 20), 0);
  EXPECT_GT(largest_context(model, parse_kv_choice("rotor-3").or_throw(), 2, 0, kMemory),
            3 * largest_context(model, f16, 2, 0, kMemory));
}

TEST(Plan, AStepReadsWhatASessionSays) {
  const PlannedModel model = plan_model("synth:tiny-64", {});
  const Model loaded = Model::load("synth:tiny-64");
  for (const char* kv : {"f16", "rotor-3"}) {
    Session session(loaded, session_options(parse_kv_choice(kv).or_throw(), 1000, 0));
    session.fill(999, 1);
    const MemoryPlan plan = plan_of(model, kv, 1000, 1);
    EXPECT_EQ(plan.step_bytes(), session.decode_read_bytes()) << kv;
    EXPECT_DOUBLE_EQ(plan.tokens_per_second(1), 1e9 / double(plan.step_bytes()));
    EXPECT_EQ(plan_of(model, kv, 1000, 5).step_kv_bytes, 5 * plan.step_kv_bytes);
  }
}

TEST(Plan, TheNewestBandwidthOfThisMachineCounts) {
  const LoadOptions place{.n_threads = 2};
  const auto row = [](const std::string& cpu, int n_threads, const char* date, double gb_s) {
    return Row{{"kind", "bandwidth"},
               {"cpu", cpu},
               {"n_threads", n_threads},
               {"date", date},
               {"streams", {{{"name", "write"}, {"max_gb_s", 1}}, {{"name", "read"}, {"max_gb_s", gb_s}}}}};
  };
  const std::string here = machine_info().cpu_model;
  std::vector<Row> rows{row("another", 2, "2026-03", 10), row(here, 1, "2026-03", 20)};
  EXPECT_FALSE(stored_bandwidth_gb_s(rows, place));
  rows.push_back(row(here, 2, "2026-02", 30));
  rows.push_back(row(here, 2, "2026-01", 40));
  EXPECT_EQ(stored_bandwidth_gb_s(rows, place), 30);
}

TEST(Plan, RefusesWhatAModelCannotHave) {
  const PlannedModel model = plan_model("synth:tiny", {});
  EXPECT_THROW(plan_of(model, "rotor-3:window=33", 100, 1), Error);
  EXPECT_THROW(plan_model("synth:none", {}), Error);
  EXPECT_THROW(plan_model("synth:tiny-experts", {.n_cpu_moe = 1}), Error) << "experts in host memory of a CPU";
  EXPECT_THROW(plan_model("synth:tiny-experts", {.moe_cache_gib = 1}), Error);
  EXPECT_THROW(check_plan("synth:tiny", plan_of(model, "f16", 100, 1), {.device = "cuda"}), Error);
}

}  // namespace
}  // namespace ridge::lab
