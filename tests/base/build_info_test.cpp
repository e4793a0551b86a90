#include "base/build_info.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

TEST(BuildInfo, NativeCodeRunsOnItsGenerationFromItsNumberOn) {
  constexpr auto kDefault = "80-real 86-real 89-real 90a-real 90-virtual";
  for (const int sm : {80, 86, 87, 89, 90}) EXPECT_TRUE(has_native_code(kDefault, sm)) << sm;
  for (const int sm : {75, 100, 103, 120}) EXPECT_FALSE(has_native_code(kDefault, sm)) << sm;
  EXPECT_FALSE(has_native_code("86-real", 80)) << "an earlier GPU";
  EXPECT_FALSE(has_native_code("90a-real", 91)) << "a letter: one GPU alone";
  EXPECT_TRUE(has_native_code("80-virtual 120", 121)) << "without a word behind it, native code and PTX";
  EXPECT_FALSE(has_native_code("80-virtual", 80)) << "PTX alone";
  EXPECT_TRUE(has_native_code("native", 75));
  EXPECT_FALSE(has_native_code("", 80));
}

}  // namespace
}  // namespace ridge
