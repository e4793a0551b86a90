// tq1_0, tq2_0 and i2_s: every code at every place against the definition, blocks made by hand, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/f16.h"
#include "cases/guarded.h"
#include "format/list.h"

namespace ridge {
namespace {

using Block = std::vector<uint8_t>;

const WeightFormat& format_named(std::string_view name) { return **find_weight_format(name); }

std::vector<float> decode(const WeightFormat& format, const Block& block) {
  EXPECT_EQ(int(block.size()), format.block_bytes);
  std::vector<float> out(size_t(format.group), NAN);
  format.decode(reinterpret_cast<const std::byte*>(block.data()), format.group, out.data());
  return out;
}

Block encoded(const WeightFormat& format, const std::vector<float>& values) {
  Block block(size_t(format.block_bytes));
  format.encode(values.data(), format.group, reinterpret_cast<std::byte*>(block.data()));
  return block;
}

Status check(const WeightFormat& format, const Block& blocks) {
  return format.check(reinterpret_cast<const std::byte*>(blocks.data()),
                      int64_t(blocks.size()) / format.block_bytes * format.group);
}

void set_scale(Block& block, uint16_t scale) {
  block[block.size() - 2] = uint8_t(scale);
  block[block.size() - 1] = uint8_t(scale >> 8);
}

/// A block of code 0 everywhere.
Block zero_block(const WeightFormat& format) { return encoded(format, std::vector<float>(size_t(format.group), 0.0f)); }

TEST(Tq2_0, EveryByteAtEveryPlaceDecodesToItsDefinition) {
  const WeightFormat& format = format_named("tq2_0");
  for (const uint16_t scale : kF16Classes)
    for (int place = 0; place < 64; ++place)
      for (int byte = 0; byte < 256; ++byte) {
        Block block(66, 0x55);
        set_scale(block, scale);
        block[size_t(place)] = uint8_t(byte);
        const std::vector<float> out = decode(format, block);
        for (int i = 0; i < 256; ++i) {
          // Byte p holds weights p (p < 32) or 96 + p and the three that follow 32 apart.
          const int first = place < 32 ? place : 96 + place, k = (i - first) / 32;
          const bool here = i >= first && (i - first) % 32 == 0 && k < 4;
          const int code = here ? byte >> (2 * k) & 3 : 1;
          ASSERT_EQ(out[size_t(i)], float(code - 1) * f16_to_f32(scale)) << "byte " << byte << " at " << place;
        }
      }
}

TEST(Tq1_0, EveryByteAtEveryPlaceDecodesToItsDefinition) {
  const WeightFormat& format = format_named("tq1_0");
  const Block zeros = zero_block(format);
  for (int place = 0; place < 52; ++place)
    for (int byte = 0; byte < 256; ++byte) {
      Block block = zeros;
      set_scale(block, 0x3C00);
      block[size_t(place)] = uint8_t(byte);
      const std::vector<float> out = decode(format, block);
      const int stride = place < 32 ? 32 : place < 48 ? 16 : 4;
      const int first = place < 32 ? place : place < 48 ? 160 + place - 32 : 240 + place - 48;
      const int n_digits = place < 48 ? 5 : 4;
      for (int i = 0; i < 256; ++i) {
        const int n = (i - first) / stride;
        const bool here = i >= first && (i - first) % stride == 0 && n < n_digits;
        // Digit n of the fraction byte / 256 in base 3.
        const int digit = here ? byte * int(std::pow(3, n + 1)) / 256 % 3 : 1;
        ASSERT_EQ(out[size_t(i)], float(digit - 1)) << "byte " << byte << " at " << place << " weight " << i;
      }
    }
}

TEST(Tq1_0, EveryRowOfFiveDigitsComesBackAtEveryPlace) {
  const WeightFormat& format = format_named("tq1_0");
  for (int digits = 0; digits < 243; ++digits) {
    std::vector<float> in(256);
    for (int place = 0, rest = digits; place < 256; ++place, rest = (rest * 7 + 11) % 243)
      in[size_t(place)] = float(rest % 3 - 1) * 0.25f;
    in[0] = 0.25f;
    EXPECT_EQ(decode(format, encoded(format, in)), in) << digits;
  }
}

TEST(I2_S, EveryByteAtEveryPlaceDecodesToItsDefinition) {
  const WeightFormat& format = format_named("i2_s");
  for (int place = 0; place < 32; ++place)
    for (int byte = 0; byte < 256; ++byte) {
      Block block(32, 0x55);
      block[size_t(place)] = uint8_t(byte);
      const std::vector<float> out = decode(format, block);
      for (int i = 0; i < 128; ++i) {
        const int code = i % 32 == place ? byte >> (6 - i / 32 * 2) & 3 : 1;  // the first weight in the top bits
        ASSERT_EQ(out[size_t(i)], float(code - 1)) << "byte " << byte << " at " << place;
      }
    }
}

TEST(TernaryFormats, BlocksMadeByHand) {
  // Weights 1, -1, 0, 0, ... with +1 again at the last place, in units of 0.5.
  std::vector<float> in(256, 0.0f);
  in[0] = 0.5f, in[1] = -0.5f, in[255] = 0.5f;
  Block tq2(66, 0x55);
  tq2[0] = 0x56;   // 01 01 01 10
  tq2[1] = 0x54;   // 01 01 01 00
  tq2[63] = 0x95;  // 10 01 01 01
  set_scale(tq2, 0x3800);
  EXPECT_EQ(encoded(format_named("tq2_0"), in), tq2);
  EXPECT_EQ(decode(format_named("tq2_0"), tq2), in);

  // Five zeros are digits 11111 = 121: ceil(121 * 256 / 243) = 128. 21111 = 202 gives 213, 01111 = 40 gives 43. Four
  // zeros are 11110 = 120: 127; 11120 = 123: 130.
  Block tq1(54, 128);
  std::fill(tq1.begin() + 48, tq1.begin() + 52, uint8_t(127));
  tq1[0] = 213;
  tq1[1] = 43;
  tq1[51] = 130;
  set_scale(tq1, 0x3800);
  EXPECT_EQ(encoded(format_named("tq1_0"), in), tq1);
  EXPECT_EQ(decode(format_named("tq1_0"), tq1), in);

  std::vector<float> half(in.begin(), in.begin() + 128);
  for (float& weight : half) weight *= 2;
  half[127] = 1;
  Block i2_s(32, 0x55);
  i2_s[0] = 0x95;   // 10 01 01 01
  i2_s[1] = 0x15;   // 00 01 01 01
  i2_s[31] = 0x56;  // 01 01 01 10
  EXPECT_EQ(encoded(format_named("i2_s"), half), i2_s);
  EXPECT_EQ(decode(format_named("i2_s"), i2_s), half);
}

TEST(TernaryFormats, TheScaleHasTheLeastSquaredErrorOfAll) {
  for (const char* name : {"tq1_0", "tq2_0"})
    for (const Fill kind : {Fill::normal, Fill::outliers}) {
      const std::vector<float> in = random_floats(3, 256, kind),
                               out = decode(format_named(name), encoded(format_named(name), in));
      const auto error = [&](double scale) {
        double sum = 0;
        for (const float w : in) sum += std::min(double(w) * w, std::pow(std::abs(w) - scale, 2));
        return sum;
      };
      double got = 0, best = INFINITY;
      for (size_t i = 0; i < 256; ++i) got += std::pow(double(out[i]) - in[i], 2);
      for (double scale = 0; scale < 200; scale += 1.0 / 256) best = std::min(best, error(scale));
      EXPECT_LE(got, best * 1.0001) << name << " " << fill_name(kind);  // fp16 rounds the scale
    }
}

TEST(TernaryFormats, ImpossibleCodesAndScalesAreRefusedWithTheirPlace) {
  for (const char* name : {"tq2_0", "i2_s"}) {
    const WeightFormat& format = format_named(name);
    const Block good = zero_block(format);
    for (size_t place = 0; place < (format.group == 256 ? 64u : 32u); ++place)
      for (int k = 0; k < 4; ++k) {
        Block blocks = good;
        blocks.insert(blocks.end(), good.begin(), good.end());
        EXPECT_TRUE(check(format, blocks));
        blocks[good.size() + place] |= uint8_t(3 << (2 * k));
        const Status status = check(format, blocks);
        ASSERT_FALSE(status) << name << " byte " << place;
        EXPECT_EQ(status.error().kind, ErrorKind::bad_file);
        EXPECT_THAT(status.error().message, testing::AllOf(testing::HasSubstr("code is 3"),
                                                           testing::HasSubstr(std::to_string(format.group) + " to")));
      }
  }
  for (const char* name : {"tq1_0", "tq2_0"}) {
    const WeightFormat& format = format_named(name);
    Block block = zero_block(format);
    for (const uint16_t good : kF16Classes) {
      set_scale(block, good);
      EXPECT_TRUE(check(format, block)) << good;
    }
    for (const uint16_t bad : {0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF}) {
      set_scale(block, bad);
      const Status status = check(format, block);
      ASSERT_FALSE(status) << bad;
      EXPECT_THAT(status.error().message, testing::HasSubstr("scale is not a finite number"));
    }
  }
}

TEST(TernaryFormats, IdsAndBitsAreThePublishedOnes) {
  EXPECT_EQ(weight_format_of_gguf(34), &format_named("tq1_0"));
  EXPECT_EQ(weight_format_of_gguf(35), &format_named("tq2_0"));
  EXPECT_EQ(weight_format_of_gguf(36), &format_named("i2_s"));
  EXPECT_EQ(format_named("tq1_0").bits_per_weight(), 1.6875);
  EXPECT_EQ(format_named("tq2_0").bits_per_weight(), 2.0625);
  EXPECT_EQ(format_named("i2_s").bits_per_weight(), 2);
  EXPECT_EQ(format_named("i2_s").tail_bytes, 32);
}

}  // namespace
}  // namespace ridge
