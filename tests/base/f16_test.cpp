// fp16 and bf16 conversions over every code, every midpoint and both neighbours of each.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/f16.h"

namespace ridge {
namespace {

/// The value of a binary16 code from its fields, by frexp arithmetic.
double f16_value(uint32_t code) {
  const int exponent = int(code >> 10 & 31), mantissa = int(code & 1023);
  const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return code & 0x8000 ? -magnitude : magnitude;
}

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(F16, EveryCodeWidensExactly) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = f16_to_f32(uint16_t(code));
    const double expected = f16_value(code);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << code;
      ASSERT_EQ(bits(value), (code & 0x8000u) << 16 | 0x7FC00000u | (code & 1023u) << 13) << code;
    } else {
      ASSERT_EQ(double(value), expected) << code;
      ASSERT_EQ(std::signbit(value), code >= 0x8000) << code;
    }
  }
}

TEST(F16, EveryCodeComesBack) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const bool nan = (code & 0x7FFF) > 0x7C00;
    ASSERT_EQ(f32_to_f16(f16_to_f32(uint16_t(code))), nan ? code | 0x200u : code) << code;
  }
}

TEST(F16, MidpointsGoToEvenAndTheirNeighboursToTheNearest) {
  for (uint32_t code = 0; code < 0x7C00; ++code) {
    // Above the largest finite code stands what would be the next one, 65536.
    const double low = f16_value(code), high = code == 0x7BFF ? 65536.0 : f16_value(code + 1);
    const auto middle = float((low + high) / 2);
    ASSERT_EQ(double(middle), (low + high) / 2) << "midpoints are floats";
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(f32_to_f16(s * middle), sign | (code + (code & 1))) << code;
      ASSERT_EQ(f32_to_f16(s * std::nextafter(middle, 0.0f)), sign | code) << code;
      ASSERT_EQ(f32_to_f16(s * std::nextafter(middle, INFINITY)), sign | (code + 1)) << code;
    }
  }
}

TEST(F16, OverflowStartsAt65520) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  for (const float value : {65520.0f, 65536.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(f32_to_f16(value), 0x7C00) << value;
    EXPECT_EQ(f32_to_f16(-value), 0xFC00) << value;
  }
}

TEST(F16, BelowHalfTheSmallestIsSignedZero) {
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);  // a tie between 0 and 2^-24: even
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 1);
  for (const float value : {0.0f, 1.4e-45f, 1e-38f, 0x1p-26f}) {
    EXPECT_EQ(f32_to_f16(value), 0) << value;
    EXPECT_EQ(f32_to_f16(-value), 0x8000) << value;
  }
}

TEST(F16, NanStaysAQuietNanWithItsSign) {
  for (const uint32_t payload : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0x7F802000u})
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint16_t half = f32_to_f16(std::bit_cast<float>(payload | sign));
      EXPECT_EQ(half & 0x7E00, 0x7E00);
      EXPECT_EQ(half >> 15, sign >> 31);
      const uint16_t brain = f32_to_bf16(std::bit_cast<float>(payload | sign));
      EXPECT_EQ(brain & 0x7FC0, 0x7FC0);
      EXPECT_EQ(brain >> 15, sign >> 31);
    }
}

TEST(Bf16, EveryCodeWidensExactlyAndComesBack) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_to_f32(uint16_t(code));
    ASSERT_EQ(bits(value), code << 16);
    const bool nan = (code & 0x7FFF) > 0x7F80;
    ASSERT_EQ(f32_to_bf16(value), nan ? code | 0x40u : code) << code;
  }
}

TEST(Bf16, MidpointsGoToEvenAndTheirNeighboursToTheNearest) {
  for (uint32_t code = 0; code < 0x7F80; ++code)
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t middle = (sign | code) << 16 | 0x8000u;
      ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle)), sign | (code + (code & 1))) << code;
      ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle - 1)), sign | code) << code;
      ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle + 1)), sign | (code + 1)) << code;
    }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80) << "rounds up to infinity";
  EXPECT_EQ(f32_to_bf16(INFINITY), 0x7F80);
}

}  // namespace
}  // namespace ridge
