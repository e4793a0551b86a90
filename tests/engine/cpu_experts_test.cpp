// Experts that the CPU computes for a device: sums of what a router chose, and errors that must not leave their thread.
#include "engine/cpu_experts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/metrics.h"
#include "base/rng.h"
#include "ridge/error.h"

namespace ridge {
namespace {

struct Case {
  explicit Case(const char* spec) : model(make_synth_model(context, spec).or_throw()), plan(make_plan(model.config)) {}

  CpuContext context{2, Isa::scalar};
  LoadedModel model;
  ModelPlan plan;
};

std::vector<float> product(const Linear& m, std::span<const float> x) {
  std::vector<float> row(size_t(m.n_in)), y;
  for (int64_t i = 0; i < m.n_out; ++i) {
    m.format->decode(m.rows + i * m.format->row_bytes(m.n_in), m.n_in, row.data());
    double sum = 0;
    for (size_t k = 0; k < row.size(); ++k) sum += double(row[k]) * x[k];
    y.push_back(float(sum));
  }
  return y;
}

/// Two tokens that share an expert, and a row whose choice is no expert at all, as padding may have.
TEST(HostExperts, SumsWhatTheRouterChose) {
  Case c("tiny-experts@layers=1@weights=f32");
  const int64_t d = c.plan.d_model;
  std::vector<float> x(size_t(3 * d));
  Rng rng(1);
  for (float& value : x) value = float(rng.normal());
  const int32_t experts[] = {1, 5, 5, 7, -1, 1 << 30};
  const float weights[] = {0.25f, 0.75f, 0.5f, 0.5f, 1, 1};
  std::vector<float> sum(size_t(3 * d), -1);
  HostExperts host(c.context, c.plan, c.model.weights);
  host.run(0, {.n_tokens = 3, .x = x.data(), .experts = experts, .weights = weights, .sum = sum.data()});
  host.rethrow();
  std::vector<float> expected(sum.size());
  for (size_t i = 0; i < 4; ++i) {
    const ExpertWeights& of = c.model.weights.layers[0].experts[size_t(experts[i])];
    const std::span<const float> row = std::span(x).subspan(i / 2 * size_t(d), size_t(d));
    std::vector<float> gate = product(of.gate, row);
    const std::vector<float> up = product(of.up, row);
    for (size_t k = 0; k < gate.size(); ++k) gate[k] = gate[k] / (1 + std::exp(-gate[k])) * up[k];
    const std::vector<float> y = product(of.down, gate);
    for (size_t k = 0; k < y.size(); ++k) expected[i / 2 * size_t(d) + k] += weights[i] * y[k];
  }
  EXPECT_LT(compare(sum, expected).nmse, 1e-11);
  for (int64_t k = 0; k < d; ++k) ASSERT_EQ(sum[size_t(2 * d + k)], 0) << "no expert adds nothing";
}

TEST(HostExperts, ErrorsAreKeptForTheNextStep) {
  Case c("tiny-experts@layers=1@weights=f32");
  c.context.forced["gemv"] = {"no such kernel"};
  c.context.forced["gemm"] = {"no such kernel"};
  const auto d = size_t(c.plan.d_model);
  const std::vector<float> x(d, 1);
  const int32_t experts[] = {0, 1};
  const float weights[] = {1, 1};
  std::vector<float> sum(d);
  HostExperts host(c.context, c.plan, c.model.weights);
  host.run(0, {.n_tokens = 1, .x = x.data(), .experts = experts, .weights = weights, .sum = sum.data()});
  EXPECT_TRUE(std::isnan(sum[0]) && std::isnan(sum[d - 1]));
  EXPECT_THROW(host.rethrow(), Error);
  host.rethrow();  // told once
}

}  // namespace
}  // namespace ridge
