#include "op/delta/delta.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/metrics.h"
#include "cases/delta_chunks.h"
#include "cases/delta_problem.h"
#include "cases/drafted_steps.h"
#include "op/delta/kernels.h"

namespace ridge {
namespace {

class GatedDelta : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, GatedDelta, testing::ValuesIn(isas().begin(), isas().end()),
                         [](const auto& isa) { return std::string(isa_name(isa.param)); });

TEST_P(GatedDelta, IsTheFormula) {
  for (const DeltaShape& shape : kDeltaShapes) {
    CpuContext context(2, GetParam());
    DeltaProblem ours(shape, 13, 5), theirs = ours;
    const KvSpan spans[] = {DeltaProblem::span(4, 9, 0), DeltaProblem::span(0, 4, 1)};
    ours.run(context, spans);
    const std::vector<double> expected = delta_oracle(theirs, spans);
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(ours.out[i], expected[i], 2e-5) << "value " << i;
    for (size_t i = 0; i < ours.states.size(); ++i)
      ASSERT_NEAR(ours.states[i], theirs.states[i], 2e-5) << "value " << i << " of the states";
  }
}

TEST_P(GatedDelta, TheCutOfAPromptAndThreadsChangeNoBit) {
  for (const DeltaShape& shape : kDeltaShapes) {
    CpuContext one(1, GetParam()), three(3, GetParam());
    DeltaProblem whole(shape, 12, 7), cut = whole;
    const KvSpan all[] = {DeltaProblem::span(0, 12, 1)};
    whole.run(three, all);
    for (const auto& [first, count] : {std::pair(0, 1), {1, 4}, {5, 2}, {7, 5}}) {
      const KvSpan part[] = {DeltaProblem::span(first, count, 1)};
      DeltaProblem step = cut;
      step.run(one, part);
      cut.states = step.states;
      std::copy_n(step.out.begin() + first * shape.values(), count * shape.values(),
                  cut.out.begin() + first * shape.values());
    }
    EXPECT_EQ(std::memcmp(whole.out.data(), cut.out.data(), 4 * whole.out.size()), 0);
    EXPECT_EQ(std::memcmp(whole.states.data(), cut.states.data(), 4 * whole.states.size()), 0);
  }
}

TEST_P(GatedDelta, StatesAreThereBehindEveryTokenOfAShortStep) {
  for (const DeltaShape& shape : kDeltaShapes) {
    CpuContext context(3, GetParam());
    const int64_t values = shape.state_values();
    constexpr int kPast = 5, kTokens = 11;
    DeltaProblem whole(shape, kTokens, 7);
    std::vector<float> states(size_t(SlotNumbers(2, 2).n_states() * values), 0.5f);
    const LayerStates places{states.data(), values, 2};
    std::copy_n(whole.states.begin() + values, values, places.at(1, kPast));
    const std::vector<float> qkv = whole.qkv, a = whole.a, b = whole.b;
    whole.run(context, std::array{DeltaProblem::span(0, kTokens, 1)});
    std::vector<float> out;
    for (const DraftedStep& drafted : kDraftedSteps) {
      DeltaProblem step = whole;
      step.n = drafted.n_rows();
      step.qkv = drafted.rows(qkv, shape.channels());
      step.a = drafted.rows(a, shape.n_value_heads), step.b = drafted.rows(b, shape.n_value_heads);
      step.states = states;
      step.run(context, std::array{DeltaProblem::span(0, int(step.n), 1, kPast + drafted.first)}, 2);
      states = step.states;
      out.insert(out.end(), step.out.begin(), step.out.begin() + drafted.right * shape.values());
    }
    EXPECT_EQ(std::memcmp(whole.out.data(), out.data(), 4 * out.size()), 0);
    const LayerStates left{states.data(), values, 2};
    EXPECT_TRUE(
        std::equal(left.at(1, kPast + kTokens), left.at(1, kPast + kTokens) + values, whole.states.begin() + values));
    EXPECT_TRUE(std::all_of(states.data(), left.at(1, 0), [](float x) { return x == 0.5f; })) << "another sequence's";
  }
}

template <class Real>
DeltaHead<Real> head_of_tokens(int n, int keys, int values) {
  Rng rng(uint64_t(n + keys));
  DeltaHead<Real> h{.n = n, .keys = keys, .values = values};
  const auto unit = [&](std::vector<Real>& to) {  // keys and queries have a direction in common
    std::vector<double> x(static_cast<size_t>(keys));
    double length = 0;
    for (double& e : x) e = rng.normal() + 0.7, length += e * e;
    for (const double e : x) to.push_back(Real(float(e / std::sqrt(length))));
  };
  for (int t = 0; t < n; ++t) {
    unit(h.q);
    unit(h.k);
    for (int j = 0; j < values; ++j) h.v.push_back(Real(float(rng.normal())));
    h.keep.push_back(Real(float(std::exp(t % 17 == 5 ? -40.0 : -0.2 * std::abs(rng.normal())))));
    h.beta.push_back(Real(float(1 / (1 + std::exp(-3 * rng.normal())))));
  }
  for (int i = 0; i < keys * values; ++i) h.state.push_back(Real(float(rng.normal())));
  return h;
}

/// Out and state of the chunked form in Real, as errors of those of the rule token by token.
template <class Real>
double error_of_chunks(int n, int chunk, int keys, int values) {
  DeltaHead<Real> ours = head_of_tokens<Real>(n, keys, values);
  DeltaHead<float> theirs = head_of_tokens<float>(n, keys, values);
  const std::vector<Real> out = delta_by_chunks(ours, chunk);
  std::vector<float> got(out.begin(), out.end()), expected(got.size());
  for (int t = 0; t < n; ++t)
    delta_step_ref({.key_dim = keys,
                    .value_dim = values,
                    .keep = theirs.keep[size_t(t)],
                    .beta = theirs.beta[size_t(t)],
                    .q = &theirs.q[size_t(t * keys)],
                    .k = &theirs.k[size_t(t * keys)],
                    .v = &theirs.v[size_t(t * values)],
                    .before = theirs.state.data(),
                    .state = theirs.state.data(),
                    .out = &expected[size_t(t * values)]});
  got.insert(got.end(), ours.state.begin(), ours.state.end());
  expected.insert(expected.end(), theirs.state.begin(), theirs.state.end());
  return compare(got, expected).nmse;
}

/// The rule rounds a state's entries once a token, to 2^-24 / sqrt(3) of them, and never lengthens an error: n tokens
/// add up as a random walk. In floats a change has beside that the roundings of sums over keys and over a chunk's
/// tokens, twice.
TEST(DeltaChunks, AreTheRule) {
  for (const int keys : {16, 128})
    for (const int n : {1, 31, 64, 65, 150})
      for (const int chunk : {1, 32, 64}) {
        const double of_states = n / 3.0 * 0x1p-48;
        EXPECT_LT(error_of_chunks<double>(n, chunk, keys, 5), of_states) << n << " by " << chunk;
        EXPECT_LT(error_of_chunks<float>(n, chunk, keys, 5), of_states * (1 + 2 * (keys + chunk)))
            << n << " by " << chunk;
      }
}

}  // namespace
}  // namespace ridge
