#include "op/delta/delta.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cases/delta_problem.h"

namespace ridge {
namespace {

class GatedDelta : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, GatedDelta, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
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

}  // namespace
}  // namespace ridge
