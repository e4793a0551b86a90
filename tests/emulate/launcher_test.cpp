#include "launcher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "cuda_runtime.h"

namespace {

struct Wide {
  uint8_t a;
  double b;
};

TEST(Launcher, ArgumentsLieAtMultiplesOfTheirAlignment) {
  const std::string bytes = emulate::argument_bytes(std::tuple(uint8_t{1}, 2, uint16_t{3}, Wide{4, 5.0}, uint8_t{6}));
  ASSERT_EQ(bytes.size(), 33u);
  int second = 0;
  Wide fourth{};
  std::memcpy(&second, bytes.data() + 4, 4);
  std::memcpy(&fourth, bytes.data() + 16, sizeof fourth);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(second, 2);
  EXPECT_EQ(bytes[8], 3);
  EXPECT_EQ(fourth.a, 4);
  EXPECT_EQ(fourth.b, 5.0);
  EXPECT_EQ(bytes[32], 6);
  EXPECT_TRUE(emulate::argument_bytes(std::tuple()).empty());
}

TEST(Launcher, WithoutOneTheEmulatedGpuRunsAndHasItsOwnMemory) {
  EXPECT_FALSE(emulate::has_launcher());
  if (!std::getenv("RIDGE_EMULATED_SHARED_KIB")) EXPECT_EQ(emulate::most_shared_bytes(), 227u << 10);
}

}  // namespace
