// Plans of a device's memory against what is allocated there, component by component.
#include <gmock/gmock.h>

#include "gpu/device_data.h"
#include "lab/decide/plan.h"

namespace ridge::lab {
namespace {

class DevicePlanCuda : public OnDevice {};

/// Parts of the driver have no truth in an emulation: components that the engine allocates are compared.
void expect_parts(const char* path, const char* kv, int n_sessions, const char* type = "") {
  SCOPED_TRACE(fmt::format("{} {} {} {}", path, kv, n_sessions, type));
  const LoadOptions place{.device = "cuda"};
  const PlannedModel model = plan_model(path, place);
  std::shared_ptr<const PlannedDraft> draft;
  if (*type) draft = plan_draft(model, type, std::string_view(type) == "draft" ? path : "", {}, 3);
  const MemoryPlan plan = plan_memory(model, parse_kv_choice(kv).or_throw(), 200, n_sessions, 70, draft);
  const PlanCheck check = check_plan(path, plan, place);
  ASSERT_EQ(check.found.size(), plan.parts.size());
  for (const PlanPart& part : check.found) {
    if (part.name.ends_with("driver") || part.name == "driver context") continue;
    EXPECT_EQ(part.bytes, plan.of(part.name)) << part.name;
  }
  for (const char* name : {"weights", "activations", "logits"}) EXPECT_GT(plan.of(name), 0) << name;
}

TEST_F(DevicePlanCuda, EveryPartIsWhatIsAllocated) {
  for (const char* path : {"synth:tiny-64@layers=1@weights=int4_g128", "synth:tiny-64@layers=1@weights=q8_0",
                           "synth:tiny-experts@layers=1@weights=q8_0", "synth:tiny-oss@layers=1@weights=f32",
                           "synth:tiny-latent@layers=2@weights=f16", "synth:tiny-delta@layers=2@weights=q8_0"})
    for (const char* kv : {"f16", "rotor-3:rounding=nearest"}) expect_parts(path, kv, 1);
  expect_parts("synth:tiny-64@layers=1@weights=q8_0", "rotor-3:rounding=nearest", 3);
  expect_parts("synth:tiny-gemma@layers=2@weights=f32", "f16", 3);
}

TEST_F(DevicePlanCuda, CountsProposers) {
  expect_parts("synth:tiny-64@layers=1@mtp=1@weights=q8_0", "f16", 1, "mtp");
  expect_parts("synth:tiny-64@layers=1@mtp=1@weights=q8_0", "f16", 3, "mtp");
  expect_parts("synth:tiny-delta@layers=2@mtp=1@weights=q8_0", "f16", 2, "mtp");
  expect_parts("synth:tiny-64@layers=1@weights=q8_0", "f16", 2, "draft");
  expect_parts("synth:tiny-64@layers=1@weights=q8_0", "f16", 2, "lookup");
}

/// Experts in host memory are no part of the device's.
TEST_F(DevicePlanCuda, CountsExpertsInHostMemoryApart) {
  const char* path = "synth:tiny-experts@layers=4@weights=int4_g128";
  const auto planned = [&](int n_cpu_moe, double cache_gib = 0) {
    const LoadOptions place{.device = "cuda", .n_cpu_moe = n_cpu_moe, .moe_cache_gib = cache_gib};
    const MemoryPlan plan = plan_memory(plan_model(path, place), {}, 200, 1, 70);
    const PlanCheck check = check_plan(path, plan, place);
    for (const PlanPart& part : check.found) {
      if (part.name.ends_with("driver") || part.name == "driver context") continue;
      EXPECT_EQ(part.bytes, plan.of(part.name)) << part.name << " with " << n_cpu_moe;
    }
    return plan;
  };
  const MemoryPlan none = planned(0), one = planned(1), three = planned(3), all = planned(999);
  EXPECT_EQ(none.host_bytes, 0);
  EXPECT_EQ(all.host_bytes, 4 * one.host_bytes);
  EXPECT_GT(none.of("weights"), one.of("weights"));
  // Several layers on the host have a slot on the device, which is as large as one of them.
  EXPECT_GT(one.of("weights"), three.of("weights"));
  EXPECT_GT(three.of("weights"), all.of("weights"));
  EXPECT_EQ(none.step_weight_bytes, all.step_weight_bytes + all.step_host_bytes);
  // Two experts of eight of each layer on the device as well; those of the host are as many as without them.
  const double all_gib = double(4 * (none.of("weights") - one.of("weights"))) / double(1 << 30);
  const MemoryPlan cached = planned(999, 0.26 * all_gib);
  EXPECT_EQ(cached.n_cached_experts, 2);
  EXPECT_EQ(cached.n_host_experts, 8);
  EXPECT_EQ(cached.host_bytes, all.host_bytes);
  EXPECT_GE(cached.of("weights"), all.of("weights") + (none.of("weights") - one.of("weights")));
  EXPECT_GT(cached.of("activations"), all.of("activations"));
}

TEST_F(DevicePlanCuda, WhatDoesNotFitIsSaidWithTheLargestThatDoes) {
  const PlannedModel model = plan_model("synth:tiny-64@weights=q8_0", {.device = "cuda"});
  const auto total = [&](int n_ctx, int n) { return plan_memory(model, {}, n_ctx, n, 0).total(); };
  const int64_t memory = total(4096, 2);
  const int n_ctx = largest_context(model, {}, 2, 0, memory);
  EXPECT_GE(n_ctx, 4096);
  EXPECT_LE(total(n_ctx, 2), memory);
  EXPECT_GT(total(2 * n_ctx, 2), memory);
  EXPECT_EQ(largest_context(model, {}, 2, 0, int64_t(256) << 20), 0) << "less than the driver's context";
}

}  // namespace
}  // namespace ridge::lab
