// bench attention --coding: what a coded cache costs beside f16, and what its codec leaves of a row.
#include "lab/op/coding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cases/op_bench.h"

namespace ridge::lab {
namespace {

double error_of(std::string_view format) {
  return codec_error(default_kv_side(*find_kv_format(format).or_throw(), KvSide::v), 128, 7);
}

TEST(Coding, ErrorsOfTheCodecsAreThoseOfTheirBits) {
  EXPECT_EQ(error_of("f32"), 0);
  EXPECT_LT(error_of("f16"), 4e-4);  // half a unit in the last of 11 bits
  EXPECT_THAT(error_of("q8_0"), testing::AllOf(testing::Gt(1e-3), testing::Lt(0.01)));
  EXPECT_THAT(error_of("rotor-4"), testing::AllOf(testing::Gt(0.05), testing::Lt(0.15)));
  EXPECT_THAT(error_of("rotor-3"),
              testing::AllOf(testing::Gt(0.15), testing::Lt(0.25)));  // Lloyd-Max of 8 levels: 0.186
  EXPECT_LT(error_of("rotor-3s"), 0.25) << "the scale of the head is that of the rows";
}

TEST(Coding, ARowHasTheTimesOfItsShapeAndTheirSum) {
  OpBenchParams params = small(Op::attention);
  params.seq = {40, 90};
  for (const char* kv : {"f16", "q8_0/rotor-3"}) params.kv.push_back(parse_kv_choice(kv).or_throw());
  const Found attention = run(params);
  params.op = Op::append;
  const Found append = run(params);
  const std::vector<CodingCost> costs = coding_costs(attention.rows, append.rows, 1);
  ASSERT_EQ(costs.size(), 2u) << "f16 is what the others are beside";
  for (size_t i = 0; i < costs.size(); ++i) {
    const CodingCost& c = costs[i];
    EXPECT_EQ(c.attention.problem.n_keys, params.seq[i]);
    EXPECT_EQ(c.coded_us, c.attention.us().median);
    EXPECT_GT(c.f16_us, 0);
    EXPECT_GT(c.coding_us, 0);
    EXPECT_LT(c.k_error, c.v_error);
    const Row f = coding_columns().fields(c);
    EXPECT_EQ(f["kind"], "coding");
    EXPECT_DOUBLE_EQ(f["sum_us"].get<double>(), c.coded_us + c.coding_us);
    EXPECT_EQ(f["checked"], true);
  }
  EXPECT_TRUE(std::isnan(coding_costs(attention.rows, {}, 1)[0].sum_us())) << "no append, no sum";
}

}  // namespace
}  // namespace ridge::lab
