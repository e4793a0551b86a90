// Whole matrices to floats: the reference decode's bits, every row, nothing else.
#include "op/gemv/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace ridge {
namespace {

TEST(Dequantize, GivesTheReferencesBitsOfEveryRow) {
  constexpr int64_t kOut = 77, kIn = 512;
  for (const WeightFormat& format : weight_formats()) {
    Rng rng(3);
    const std::vector<std::byte> rows = random_blocks(format, rng, 1, kOut * kIn);
    std::vector<float> expected(size_t(kOut * kIn));
    format.decode(rows.data(), kOut * kIn, expected.data());
    const Linear w{.format = &format, .n_out = kOut, .n_in = kIn, .rows = rows.data()};
    for (const DequantizeVariant& variant : dequantize_variants()) {
      if (variant.isa > detect_isa()) continue;
      CpuContext context(2, variant.isa);
      std::vector<float> out(expected.size() + 1, 7.0f);
      dequantize(context, w, out.data());
      EXPECT_EQ(out.back(), 7.0f) << format.name << " " << variant.name;
      out.pop_back();
      EXPECT_EQ(out, expected) << format.name << " " << variant.name;
    }
  }
}

TEST(Dequantize, NeedsRows) {
  CpuContext context(1);
  const Linear w{.format = find_weight_format("q8_0").or_throw(), .n_out = 1, .n_in = 32};
  EXPECT_THROW(dequantize(context, w, nullptr), Error);
}

}  // namespace
}  // namespace ridge
