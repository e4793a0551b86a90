// The vector decoders of weight blocks against each format's reference: equal in every bit, for every code and every
// class of scale, infinity and NaN included (any NaN equals any other).
#include <gtest/gtest.h>

#include <bit>

#include "cases/guarded.h"
#include "format/list.h"
#include "op/simd_entries.h"

namespace ridge {
namespace {

std::vector<const WeightFormat*> all_formats() {
  std::vector<const WeightFormat*> formats;
  for (const WeightFormat& format : weight_formats()) formats.push_back(&format);
  return formats;
}

class RowDecoders : public testing::TestWithParam<const WeightFormat*> {
 protected:
  const WeightFormat& format_ = *GetParam();

  /// Decodes with `entry` between guards and compares with the reference.
  void expect_equal(const SimdEntries& entry, const std::byte* blocks, int64_t n) {
    Guarded<float> out(n, 1);
    entry.row_decoder(format_)(blocks, n, out.data());
    ASSERT_TRUE(out.intact());
    std::vector<float> expected(size_t(n), 0.0f);
    format_.decode(blocks, n, expected.data());
    for (int64_t i = 0; i < n; ++i) {
      const float a = out[i], b = expected[size_t(i)];
      if (std::isnan(b)) ASSERT_TRUE(std::isnan(a)) << "element " << i;
      else
        ASSERT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)) << "element " << i << ": " << a << " " << b;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, RowDecoders, testing::ValuesIn(all_formats()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(RowDecoders, EveryByteAtEveryPlaceEqualsTheReference) {
  // Rows of 16 blocks that differ in one byte, the last block ending at an inaccessible page, at an odd address.
  constexpr int kBlocks = 16;
  Rng rng(5);
  FencedBytes blocks(kBlocks * format_.block_bytes);
  for (const SimdEntries& entry : runnable_entries()) {
    for (int place = 0; place < format_.block_bytes; ++place) {
      for (std::byte& byte : blocks.span()) byte = std::byte(rng.next() & 0xBF);  // keeps fp16 from being all NaN
      for (int value = 0; value < 256; value += kBlocks) {
        for (int b = 0; b < kBlocks; ++b) blocks.data()[b * format_.block_bytes + place] = std::byte(value + b);
        ASSERT_NO_FATAL_FAILURE(expect_equal(entry, blocks.data(), kBlocks * format_.group))
            << isa_name(entry.isa) << " byte " << place << " from " << value;
      }
    }
  }
}

TEST_P(RowDecoders, RandomRowsOfEveryLengthEqualTheReference) {
  // Codes, scales and minima of every kind at once: fp16 infinity and NaN come up once in 32.
  Rng rng(6);
  for (const SimdEntries& entry : runnable_entries())
    for (int n_blocks = 0; n_blocks <= 40; ++n_blocks) {
      FencedBytes blocks(n_blocks * format_.block_bytes);
      for (std::byte& byte : blocks.span()) byte = std::byte(rng.next());
      ASSERT_NO_FATAL_FAILURE(expect_equal(entry, blocks.data(), n_blocks * format_.group)) << isa_name(entry.isa);
    }
}

TEST(RowDecodersTable, HasEveryFormatThatHasADecoderAndTheReferenceOfOthers) {
  for (const SimdEntries& entry : runnable_entries()) {
    for (const char* name : {"q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs",
                             "mxfp4", "q3_k", "q2_k", "fp8_g32", "nvfp4", "int4_g128", "f32", "f16", "bf16"}) {
      const WeightFormat& format = **find_weight_format(name);
      EXPECT_NE(entry.row_decoder(format), format.decode) << name << " " << isa_name(entry.isa);
    }
    for (const char* name : {"i2_s", "iq2_xs"}) {
      const WeightFormat& format = **find_weight_format(name);
      EXPECT_EQ(entry.row_decoder(format), format.decode) << name << " " << isa_name(entry.isa);
    }
  }
}

}  // namespace
}  // namespace ridge
