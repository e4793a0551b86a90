// Whole matrices to floats: the reference decode's bits, every row, nothing else.
#include "op/gemv/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace ridge {
namespace {

TEST(Dequantize, GivesTheReferencesBitsOfEveryRow) {
  constexpr int64_t kOut = 77, kIn = 512;
  Rng rng(3);
  std::vector<float> values(size_t(kOut * kIn));
  for (float& x : values) x = float(rng.normal());
  for (const WeightFormat& format : weight_formats()) {
    std::vector<std::byte> rows(size_t(kOut * format.row_bytes(kIn)));
    encode_rows(format, values, kIn, rows).or_throw();
    std::vector<float> expected(values.size());
    format.decode(rows.data(), kOut * kIn, expected.data());
    const Linear w{.format = &format, .n_out = kOut, .n_in = kIn, .rows = rows.data()};
    for (const DequantizeVariant& variant : dequantize_variants()) {
      if (variant.isa > detect_isa()) continue;
      CpuContext context(2, variant.isa);
      std::vector<float> out(values.size() + 1, 7.0f);
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
