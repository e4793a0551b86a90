// Every rate kernel does all the multiply-adds it says it does.
#include "op/rate/rate.h"

#include <gtest/gtest.h>
#include <algorithm>

namespace ridge {
namespace {

TEST(Rates, TheResultIsTheNumberOfMultiplyAdds) {
  for (const RateVariant& variant : rate_variants()) {
    if (variant.isa > detect_isa() || !variant.supports().ok) continue;
    for (const int64_t n : {0, 1, 7, 1023, 1024, 1025, 5000}) {
      EXPECT_EQ(variant.run(n), n * variant.result) << variant.name << " " << n;
    }
    EXPECT_EQ(variant.ops, 2 * variant.result) << variant.name;
  }
}

TEST(Rates, SumsAreExactUpToTheMostRounds) {
  for (const RateVariant& variant : rate_variants()) {
    if (variant.isa > detect_isa() || !variant.supports().ok) continue;
    EXPECT_EQ(variant.run(kMostRateRounds), kMostRateRounds * variant.result) << variant.name;
  }
}

TEST(Rates, EveryNumberThatACpuMultipliesHasARow) {
  std::vector<std::string_view> numbers{"f32", "int8"};
#if defined(__x86_64__)
  numbers.insert(numbers.end(), {"bf16", "f16"});
#endif
  for (const std::string_view number : numbers) {
    EXPECT_TRUE(std::ranges::any_of(rate_variants(), [&](const RateVariant& v) { return v.number == number; }))
        << number;
  }
}

}  // namespace
}  // namespace ridge
