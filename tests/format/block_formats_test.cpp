// The GGUF block formats with minima, high bits and super-blocks: decoding against the layout as GGUF documents it,
// written out here once more per element, and encoding against bounds and a plainer encoder.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/f16.h"
#include "cases/guarded.h"
#include "format/list.h"

namespace ridge {
namespace {

using Bytes = const uint8_t*;

double half_at(Bytes b, int at) { return double(f16_to_f32(uint16_t(b[at] | b[at + 1] << 8))); }
int nibble(Bytes q, int i) { return i < 16 ? q[i] % 16 : q[i - 16] / 16; }
int bit(Bytes b, int i) { return b[i / 8] >> (i % 8) & 1; }

/// The 8 scales and 8 minima of a K-quant lie in 12 bytes: bits 0-5 of bytes 0-3 and 4-7 are the first four of each;
/// of the last four, bits 0-3 are in bytes 8-11 (scale low, minimum high), bits 4-5 in the top bits of bytes 0-7.
int k_scale(Bytes s, int j) { return j < 4 ? s[j] % 64 : s[j + 4] % 16 + s[j - 4] / 64 * 16; }
int k_min(Bytes s, int j) { return j < 4 ? s[j + 4] % 64 : s[j + 4] / 16 + s[j] / 64 * 16; }
int k_nibble(Bytes q, int i) {
  const int byte = q[i / 64 * 32 + i % 32];
  return i % 64 < 32 ? byte % 16 : byte / 16;
}

// Exact in double; the format's float is that value rounded once.
double q4_1_at(Bytes b, int i) { return nibble(b + 4, i) * half_at(b, 0) + half_at(b, 2); }
double q5_0_at(Bytes b, int i) { return (nibble(b + 6, i) + 16 * bit(b + 2, i) - 16) * half_at(b, 0); }
double q5_1_at(Bytes b, int i) { return (nibble(b + 8, i) + 16 * bit(b + 4, i)) * half_at(b, 0) + half_at(b, 2); }
double q4_k_at(Bytes b, int i) {
  return half_at(b, 0) * k_scale(b + 4, i / 32) * k_nibble(b + 16, i) - half_at(b, 2) * k_min(b + 4, i / 32);
}
double q5_k_at(Bytes b, int i) {
  const int code = k_nibble(b + 48, i) + 16 * (b[16 + i % 32] >> (i / 32) & 1);
  return half_at(b, 0) * k_scale(b + 4, i / 32) * code - half_at(b, 2) * k_min(b + 4, i / 32);
}
double q6_k_at(Bytes b, int i) {
  // 128 weights take 64 bytes of low nibbles, 32 bytes of high bit pairs and 8 scales.
  const int half = i / 128, in_half = i % 128;
  const int byte = b[64 * half + in_half % 64];
  const int low = in_half < 64 ? byte % 16 : byte / 16;
  const int high = b[128 + 32 * half + i % 32] >> (in_half / 32 * 2) & 3;
  return half_at(b, 208) * int8_t(b[192 + i / 16]) * (low + 16 * high - 32);
}

struct Layout {
  const char* name;
  int block_bytes;
  std::array<int, 2> halves;  // where its fp16 numbers are; -1: one only
  double (*at)(Bytes block, int i);
  int top;  // steps between the smallest and the largest code
};
constexpr Layout kLayouts[] = {{"q4_1", 20, {0, 2}, q4_1_at, 15},  {"q5_0", 22, {0, -1}, q5_0_at, 31},
                               {"q5_1", 24, {0, 2}, q5_1_at, 31},  {"q4_k", 144, {0, 2}, q4_k_at, 15},
                               {"q5_k", 176, {0, 2}, q5_k_at, 31}, {"q6_k", 210, {208, -1}, q6_k_at, 63}};

class BlockFormat : public testing::TestWithParam<Layout> {
 protected:
  const Layout& layout_ = GetParam();
  const WeightFormat& format_ = **find_weight_format(GetParam().name);

  void put_half(std::vector<uint8_t>& block, int which, uint16_t half) const {
    const int at = layout_.halves[size_t(which)];
    if (at < 0) return;
    block[size_t(at)] = uint8_t(half), block[size_t(at + 1)] = uint8_t(half >> 8);
  }
  std::vector<float> decode(const std::vector<uint8_t>& blocks) const {
    std::vector<float> out(blocks.size() / size_t(format_.block_bytes) * size_t(format_.group), -1.0f);
    format_.decode(reinterpret_cast<const std::byte*>(blocks.data()), int64_t(out.size()), out.data());
    return out;
  }
  void expect_definition(const std::vector<uint8_t>& block) const {
    const std::vector<float> out = decode(block);
    for (int i = 0; i < format_.group; ++i) {
      const float expected = float(layout_.at(block.data(), i));
      if (std::isnan(expected)) ASSERT_TRUE(std::isnan(out[size_t(i)])) << "element " << i;
      else ASSERT_EQ(out[size_t(i)], expected) << "element " << i;
    }
  }
  std::vector<float> coded(const std::vector<float>& in) const {
    std::vector<std::byte> blocks(size_t(format_.row_bytes(int64_t(in.size()))));
    EXPECT_TRUE(encode_rows(format_, in, int64_t(in.size()), blocks));
    std::vector<float> out(in.size());
    format_.decode(blocks.data(), int64_t(in.size()), out.data());
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, BlockFormat, testing::ValuesIn(kLayouts),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(BlockFormat, EveryByteAtEveryPlaceDecodesToItsDefinition) {
  // The bytes of the fp16 numbers pass through infinity and NaN as well; everything else is a code or a small scale.
  ASSERT_EQ(format_.block_bytes, layout_.block_bytes);
  Rng rng(1);
  std::vector<uint8_t> block(size_t(layout_.block_bytes));
  for (int place = 0; place < layout_.block_bytes; ++place) {
    for (uint8_t& byte : block) byte = uint8_t(rng.next());
    put_half(block, 0, 0x2E66);
    put_half(block, 1, 0xB123);
    for (int value = 0; value < 256; ++value) {
      block[size_t(place)] = uint8_t(value);
      ASSERT_NO_FATAL_FAILURE(expect_definition(block)) << "byte " << place << " is " << value;
    }
  }
}

TEST_P(BlockFormat, EveryClassOfScaleDecodesToItsDefinition) {
  std::vector<uint16_t> halves(kF16Classes.begin(), kF16Classes.end());
  for (const int hostile : {0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF, 0xFBFF}) halves.push_back(uint16_t(hostile));
  Rng rng(2);
  std::vector<uint8_t> block(size_t(layout_.block_bytes));
  for (const uint16_t first : halves)
    for (const uint16_t second : halves)
      for (const int codes : {0x00, 0xFF, -1}) {  // all codes and scales lowest, all highest, random
        for (uint8_t& byte : block) byte = codes < 0 ? uint8_t(rng.next()) : uint8_t(codes);
        put_half(block, 0, first);
        put_half(block, 1, second);
        ASSERT_NO_FATAL_FAILURE(expect_definition(block)) << first << " " << second << " " << codes;
      }
}

/// Byte i of the block is 37 i + 11 modulo 256, the fp16 numbers are 0.03125 and -1.5. The values are those of the
/// Python package gguf, which knows nothing of this program.
TEST(BlockFormatsKnownAnswers, AgreeWithAnotherImplementation) {
  struct Value {
    int i;
    float value;
  };
  const std::pair<const char*, std::vector<Value>> answers[] = {
      {"q4_1", {{0, -1.03125f}, {1, -1.375f}, {15, -1.1875f}, {16, -1.21875f}, {17, -1.125f}, {31, -1.125f}}},
      {"q5_0", {{0, 0.28125f}, {1, -0.0625f}, {15, -0.375f}, {16, 0.4375f}, {17, 0.0f}, {31, 0.03125f}}},
      {"q5_1", {{0, -0.90625f}, {1, -0.75f}, {15, -0.5625f}, {16, -0.90625f}, {17, -1.34375f}, {31, -1.34375f}}},
      {"q4_k",
       {{0, 87.15625f},
        {1, 76.5f},
        {31, 82.3125f},
        {32, 36.625f},
        {63, 37.625f},
        {64, 105.59375f},
        {100, 54.5f},
        {127, 54.0625f},
        {128, 31.40625f},
        {161, 67.5f},
        {200, 30.09375f},
        {222, 27.03125f},
        {255, 54.5625f}}},
      {"q5_k",
       {{0, 102.65625f},
        {1, 76.5f},
        {31, 82.3125f},
        {32, 39.875f},
        {63, 38.875f},
        {64, 105.59375f},
        {100, 58.875f},
        {127, 51.4375f},
        {128, 50.90625f},
        {161, 56.25f},
        {200, 30.09375f},
        {222, 27.03125f},
        {255, 56.4375f}}},
      {"q6_k",
       {{0, -44.71875f},
        {1, 53.0f},
        {31, -3.0f},
        {32, 7.21875f},
        {63, -18.125f},
        {64, -95.0f},
        {100, 78.84375f},
        {127, 46.875f},
        {128, -10.96875f},
        {161, -61.0f},
        {200, 34.03125f},
        {222, 57.75f},
        {255, -1.875f}}}};
  for (const auto& [name, values] : answers) {
    const WeightFormat& format = **find_weight_format(name);
    std::vector<uint8_t> block(size_t(format.block_bytes));
    for (size_t i = 0; i < block.size(); ++i) block[i] = uint8_t(37 * i + 11);
    const size_t first = format.name == "q6_k" ? 208 : 0;
    block[first] = 0x00, block[first + 1] = 0x28;
    if (format.name != "q5_0" && format.name != "q6_k") block[2] = 0x00, block[3] = 0xBE;
    std::vector<float> out(size_t(format.group));
    format.decode(reinterpret_cast<const std::byte*>(block.data()), format.group, out.data());
    for (const Value& v : values) EXPECT_EQ(out[size_t(v.i)], v.value) << name << " element " << v.i;
  }
}

/// Half the distance between neighbouring fp16 numbers at x.
double half_ulp_f16(double x) { return std::max(std::abs(x) * 0x1p-11, 0x1p-25); }

TEST_P(BlockFormat, ErrorOfEveryElementIsWithinItsBound) {
  // Groups of 32 with the whole range coded: half a step, plus what fp16 took from scale and minimum; q5_0 stops one
  // step short of the end opposite to its extreme. The searched formats may clip, up to a fifth of the range of the
  // sub-block, and round scale and minimum to 1/63 (1/127) of the largest of the super-block.
  const bool is_super = format_.group == 256, symmetric = layout_.halves[1] < 0;
  for (const Fill kind : kFills)
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const std::vector<float> in = random_floats(seed, format_.group, kind), out = coded(in);
      const auto [low, high] = std::minmax_element(in.begin(), in.end());
      const double largest = std::max(std::abs(double(*low)), std::abs(double(*high)));
      const double range = symmetric ? 2 * largest : double(*high) - double(std::min(0.0f, *low));
      const double step = (symmetric ? 2 * largest / (layout_.top + 1) : (double(*high) - *low) / layout_.top);
      double bound = step * (symmetric ? 1 : 0.5) + layout_.top * half_ulp_f16(step) + half_ulp_f16(largest);
      if (is_super) bound = 0.25 * range + 63 * 64 * 0x1p-25;
      for (size_t i = 0; i < in.size(); ++i)
        ASSERT_LE(std::abs(double(out[i]) - in[i]), bound * (1 + 1e-5)) << fill_name(kind) << " " << i << " " << in[i];
    }
}

class SuperBlockFormat : public BlockFormat {};
INSTANTIATE_TEST_SUITE_P(Formats, SuperBlockFormat, testing::ValuesIn([] {
                           std::vector<Layout> layouts;
                           for (const Layout& layout : kLayouts)
                             if (layout.block_bytes > 100) layouts.push_back(layout);
                           return layouts;
                         }()),
                         [](const auto& test) { return std::string(test.param.name); });

/// What an encoder without any search would lose: the range of every sub-block, scales and minima rounded to the
/// nearest of their `n_scales` steps (exact steps, not fp16), nearest codes.
double plain_error(const std::vector<float>& in, int sub_group, int top, int n_scales, bool symmetric) {
  double error = 0;
  for (size_t start = 0; start < in.size(); start += 256) {
    std::vector<double> scales, mins;
    for (size_t sub = start; sub < start + 256; sub += size_t(sub_group)) {
      const auto [low, high] = std::minmax_element(in.begin() + int64_t(sub), in.begin() + int64_t(sub) + sub_group);
      const double min = std::min(0.0, double(*low)), largest = std::max(std::abs(double(*low)), double(*high));
      scales.push_back(symmetric ? largest / (top / 2) : (*high - min) / top);
      mins.push_back(symmetric ? largest / (top / 2) * (top / 2 + 1) : -min);
    }
    const double scale_step = *std::max_element(scales.begin(), scales.end()) / n_scales;
    const double min_step = *std::max_element(mins.begin(), mins.end()) / n_scales;
    for (size_t i = start; i < start + 256; ++i) {
      const size_t sub = (i - start) / size_t(sub_group);
      const double scale = scale_step > 0 ? std::round(scales[sub] / scale_step) * scale_step : 0;
      double min = min_step > 0 ? std::round(mins[sub] / min_step) * min_step : 0;
      if (symmetric) min = scale * (top / 2 + 1);
      const double code = scale > 0 ? std::clamp(std::round((in[i] + min) / scale), 0.0, double(top)) : 0;
      error += std::pow(scale * code - min - in[i], 2);
    }
  }
  return error;
}

TEST_P(SuperBlockFormat, TheSearchBeatsPlainRanges) {
  const bool symmetric = layout_.halves[1] < 0;
  for (const Fill kind : {Fill::normal, Fill::outliers, Fill::huge})
    for (const float offset : {0.0f, 0.5f, -3.0f}) {
      std::vector<float> in = random_floats(7, 64 * 256, kind);
      for (float& x : in) x += offset;
      const std::vector<float> out = coded(in);
      double error = 0;
      for (size_t i = 0; i < in.size(); ++i) error += std::pow(double(out[i]) - in[i], 2);
      const double plain = plain_error(in, symmetric ? 16 : 32, layout_.top, symmetric ? 127 : 63, symmetric);
      EXPECT_LT(error, 0.95 * plain) << fill_name(kind) << " offset " << offset;
    }
}

TEST_P(BlockFormat, ConstantGroupsKeepTheirValue) {
  for (const float value : {1.0f, -1.0f, 0.37f, -0.37f, 1e-3f, -250.0f})
    for (const float out : coded(std::vector<float>(size_t(format_.group), value)))
      ASSERT_NEAR(out, value, std::abs(value) * 0.004);
}

TEST_P(SuperBlockFormat, QuietSubBlocksBesideALoudOneStayQuiet) {
  // The loud one sets the common steps: a quiet one may lose its values to them, but not gain any of that size.
  std::vector<float> in = random_floats(11, 2 * 256);
  for (size_t i = 0; i < in.size(); ++i) in[i] *= i / 32 % 8 == 3 ? 100.0f : 0.01f;
  const std::vector<float> out = coded(in);
  for (size_t i = 0; i < in.size(); ++i) {
    const double bound = i / 32 % 8 == 3 ? 0.25 * 700 : 100.0 * 4 / 63;
    ASSERT_LE(std::abs(double(out[i]) - in[i]), bound) << i;
  }
}

}  // namespace
}  // namespace ridge
