#include "gpu/dot4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "format/kv_rotor3.h"
#include "gpu/rotor3_levels.h"

namespace ridge::gpu {
namespace {

uint32_t pack(const int (&bytes)[4]) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= uint32_t(uint8_t(bytes[i])) << (8 * i);
  return word;
}

TEST(Dot4, EqualsTheSumOfProductsAtTheExtremes) {
  for (const int a : {-128, -127, -1, 0, 1, 127})
    for (const int b : {-128, -127, -1, 0, 1, 127})
      EXPECT_EQ(dot4_i8(pack({a, b, 1, -1}), pack({b, a, a, b}), 1000), 1000 + 2 * a * b + a - b) << a << " " << b;
}

TEST(Lookup4, EveryCodeFindsItsEntry) {
  constexpr ByteTable8 table = byte_table8({-128, -71, -40, -1, 0, 40, 71, 127});
  const int entries[8] = {-128, -71, -40, -1, 0, 40, 71, 127};
  for (uint32_t codes = 0; codes < 4096; ++codes) {
    const uint32_t found = lookup4(table, codes | 0xF000u);
    for (int k = 0; k < 4; ++k) ASSERT_EQ(int8_t(found >> (8 * k)), entries[codes >> (3 * k) & 7]) << codes << " " << k;
  }
}

TEST(Rotor3Bytes, StandForTheFormatsLevelsWithinAQuarterPercent) {
  for (size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(kRotor3Bytes[i] / kRotor3BytesPerLevel / KvRotor3::kLevels[i], 1.0, 0.0025) << i;
}

TEST(Rotor3Dot, EqualsTheDotWithTheDecodedRow) {
  constexpr int kHeadDim = 128;
  Rng rng(7);
  std::vector<float> row(kHeadDim), decoded(kHeadDim);
  std::vector<uint32_t> q(kHeadDim / 4);
  for (float& x : row) x = float(rng.normal());
  for (uint32_t& word : q) word = uint32_t(rng.next());
  std::vector<std::byte> coded(size_t(KvRotor3::row_bytes(kHeadDim)));
  KvRotor3::encode(row.data(), kHeadDim, {}, coded.data());
  KvRotor3::decode(coded.data(), kHeadDim, {}, decoded.data());
  uint16_t half = 0;
  std::memcpy(&half, coded.data() + 3 * kHeadDim / 8, sizeof half);

  double expected = 0, magnitude = 0;
  for (size_t i = 0; i < kHeadDim; ++i) {
    const double product = double(decoded[i]) * int8_t(q[i / 4] >> (8 * (i % 4)));
    expected += product;
    magnitude += std::abs(product);
  }
  const int32_t sum = rotor3_dot(reinterpret_cast<const unsigned char*>(coded.data()), q.data(), kHeadDim);
  EXPECT_NEAR(sum / kRotor3BytesPerLevel * f16_to_f32(half), expected, 0.0025 * magnitude);
}

}  // namespace
}  // namespace ridge::gpu
