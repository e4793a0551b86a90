// Weight formats: what every row of the table must do, then each format against its definition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "cases/guarded.h"
#include "format/iq4.h"
#include "format/list.h"
#include "format/nvfp4.h"
#include "format/q4_0.h"
#include "format/q8_0.h"

namespace ridge {
namespace {

std::vector<std::byte> encode(const WeightFormat& format, std::span<const float> values) {
  std::vector<std::byte> blocks(size_t(format.row_bytes(int64_t(values.size()))));
  format.encode(values.data(), int64_t(values.size()), blocks.data());
  return blocks;
}

std::vector<float> decode(const WeightFormat& format, std::span<const std::byte> blocks) {
  std::vector<float> values(blocks.size() / size_t(format.block_bytes) * size_t(format.group), NAN);
  format.decode(blocks.data(), int64_t(values.size()), values.data());
  return values;
}

/// Whether a group stores a minimum beside its scale: zero is then a difference of two rounded numbers.
bool has_minimum(const WeightFormat& format) {
  constexpr std::array kNames = {"q4_1", "q5_1", "q4_k", "q5_k"};
  return std::count(kNames.begin(), kNames.end(), format.name) > 0;
}

/// Half the distance between neighbouring fp16 numbers at x: what rounding a scale can cost.
double most_rounding_f16(double x) { return std::max(std::abs(x) * 0x1p-11, 0x1p-25); }

class EveryWeightFormat : public testing::TestWithParam<const WeightFormat*> {
 protected:
  const WeightFormat& format_ = *GetParam();
  const int group_ = GetParam()->group;
};
std::vector<const WeightFormat*> formats(bool with_encoder) {
  std::vector<const WeightFormat*> found;
  for (const WeightFormat& format : weight_formats())
    if (format.encode || !with_encoder) found.push_back(&format);
  return found;
}
std::string format_name(const testing::TestParamInfo<const WeightFormat*>& test) {
  return std::string(test.param->name);
}
INSTANTIATE_TEST_SUITE_P(Formats, EveryWeightFormat, testing::ValuesIn(formats(false)), format_name);

class EveryWeightEncoder : public EveryWeightFormat {};
INSTANTIATE_TEST_SUITE_P(Formats, EveryWeightEncoder, testing::ValuesIn(formats(true)), format_name);

TEST_P(EveryWeightFormat, IsFoundByEveryOneOfItsNames) {
  EXPECT_EQ(find_weight_format(format_.name).value(), &format_);
  EXPECT_EQ(weight_format_of_gguf(uint32_t(format_.gguf_type)), format_.gguf_type < 0 ? nullptr : &format_);
  if (format_.safetensors_dtype.empty()) return;
  EXPECT_EQ(weight_format_of_dtype(format_.safetensors_dtype), &format_);
}

TEST_P(EveryWeightFormat, SizesAgree) {
  ASSERT_GT(group_, 0);
  EXPECT_EQ(format_.row_bytes(3 * group_), 3 * format_.block_bytes);
  EXPECT_DOUBLE_EQ(format_.bits_per_weight(), 8.0 * format_.block_bytes / group_);
}

TEST_P(EveryWeightEncoder, EncodingWhatWasDecodedChangesNothing) {
  for (const Fill kind : kFills) {
    const std::vector<float> once = decode(format_, encode(format_, random_floats(1, 64 * group_, kind)));
    const std::vector<float> twice = decode(format_, encode(format_, once));
    if (group_ <= 128) {
      EXPECT_EQ(twice, once) << fill_name(kind);
      continue;
    }
    // Super-blocks: scales are found by search and rounded against a common step, which another search may place
    // elsewhere. What the second coding adds must be less than what the first one lost.
    double first = 0, second = 0;
    const std::vector<float> in = random_floats(1, 64 * group_, kind);
    for (size_t i = 0; i < in.size(); ++i)
      first += std::pow(double(once[i]) - in[i], 2), second += std::pow(double(twice[i]) - once[i], 2);
    EXPECT_LE(second, 0.5 * first) << fill_name(kind);
  }
}

TEST_P(EveryWeightEncoder, ErrorOnNormalDataFitsItsBits) {
  // b bits over a range of about 5 sigma leave a mean square error near 2^-2b of the signal; 4 times that is a bug.
  const std::vector<float> in = random_floats(2, 512 * group_), out = decode(format_, encode(format_, in));
  double error = 0, size = 0;
  for (size_t i = 0; i < in.size(); ++i) error += std::pow(double(out[i]) - in[i], 2), size += double(in[i]) * in[i];
  const double overhead = has_minimum(format_) ? 16.0 / group_ : 0;  // a minimum's bits do not make steps finer
  EXPECT_LE(error / size, 4 * std::pow(0.25, std::min(8.0, std::floor(format_.bits_per_weight() - overhead))));
}

TEST_P(EveryWeightEncoder, ZerosStayZero) {
  for (const float zero : {0.0f, -0.0f})
    for (const float value : decode(format_, encode(format_, std::vector<float>(size_t(group_), zero))))
      EXPECT_EQ(value, 0);
}

TEST_P(EveryWeightEncoder, ASingleExtremeKeepsItsPlaceAndSign) {
  if (format_.tail_bytes > 0 || format_.largest > 0) return;  // the scale belongs to the tensor, blocks clamp to it
  // The super-block's d of iq4_xs is an extreme's 4064th part: of the smallest one a subnormal number of fp16.
  const double rounding = format_.name == "iq4_xs" ? 32 * 127 * 0x1p-25 : 0;
  for (int at = 0; at < group_; ++at)
    for (const float extreme : {1.7f, -1.7f, 300.0f, -300.0f, 0.001f}) {
      std::vector<float> in(size_t(group_), 0.0f);
      in[size_t(at)] = extreme;
      const std::vector<float> out = decode(format_, encode(format_, in));
      for (int i = 0; i < group_; ++i) {
        // Levels of iq4 do not include zero: the nearest is a 113th of the largest at most.
        const float beside = has_minimum(format_)              ? std::abs(extreme) * 0x1p-8f
                             : format_.name.starts_with("iq4") ? std::abs(extreme) / 112
                                                               : 0;
        if (i != at)
          ASSERT_LE(std::abs(out[size_t(i)]), beside) << "element " << i << " beside " << extreme << " at " << at;
        else ASSERT_NEAR(out[size_t(i)], extreme, std::abs(extreme) * 0x1p-8 + rounding);
      }
    }
}

TEST_P(EveryWeightEncoder, TinyGroupsStayFiniteAndNearZero) {
  for (const float top : {1e-4f, 1e-6f, 6e-8f, 1e-8f, 1e-30f, 1e-38f, 1e-40f, 1.4e-45f}) {
    std::vector<float> in = random_floats(3, 4 * group_);
    for (float& x : in) x *= top / 4;
    for (size_t i = 0; i < in.size(); i += 3) in[i] = 0;
    const std::vector<float> out = decode(format_, encode(format_, in));
    // A scale below 2^-25 is 0 in fp16; the largest code times half a step of the smallest scale is what may be lost.
    for (size_t i = 0; i < in.size(); ++i)
      ASSERT_LE(std::abs(out[i] - in[i]), 2 * top + 127 * 0x1p-25) << top << " " << in[i];
  }
}

TEST_P(EveryWeightEncoder, WorksAtOddAddressesAndWritesItsBlocksOnly) {
  const std::vector<float> in = random_floats(5, 3 * group_);
  Guarded<std::byte> blocks(format_.row_bytes(3 * group_), 1);
  Guarded<float> out(3 * group_, 1);
  format_.encode(in.data(), 3 * group_, blocks.data());
  format_.decode(blocks.data(), 3 * group_, out.data());
  EXPECT_TRUE(blocks.intact() && out.intact());
  EXPECT_EQ(std::vector<float>(out.begin(), out.end()), decode(format_, encode(format_, in)));
}

TEST_P(EveryWeightEncoder, EncodeRowsRefusesNanAndInfinityByRowAndColumn) {
  const int n_in = 2 * group_;
  std::vector<std::byte> out(size_t(format_.row_bytes(3 * n_in)));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> in = random_floats(6, 3 * n_in);
    in[size_t(2 * n_in + 1)] = bad;
    const Status status = encode_rows(format_, in, n_in, out);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, ErrorKind::bad_file);
    EXPECT_THAT(status.error().message, testing::AllOf(testing::HasSubstr("row 2"), testing::HasSubstr("column 1")));
  }
}

TEST_P(EveryWeightEncoder, EncodeRowsRefusesWhatItCouldNotDecode) {
  if (format_.tail_bytes > 0 || format_.largest > 0) return;  // as above
  const int n_in = 2 * group_;
  std::vector<std::byte> out(size_t(format_.row_bytes(2 * n_in)));
  for (const float large : {65504.0f, 1e6f, 1e20f, std::numeric_limits<float>::max()}) {
    std::vector<float> in(size_t(2 * n_in), 0.5f);
    in[size_t(n_in)] = large;
    const Status status = encode_rows(format_, in, n_in, out);
    if (status) {
      for (const float value : decode(format_, out)) ASSERT_TRUE(std::isfinite(value)) << large;
      EXPECT_NEAR(decode(format_, out)[size_t(n_in)] / large, 1, 0.01);
    } else {
      EXPECT_GT(large, 65504.0f) << status.error().message;
      EXPECT_THAT(status.error().message,
                  testing::AllOf(testing::HasSubstr("row 1"), testing::HasSubstr(std::string(format_.name))));
    }
  }
}

TEST_P(EveryWeightEncoder, EncodeRowsRefusesRowsItsGroupDoesNotDivide) {
  std::vector<std::byte> out(size_t(format_.row_bytes(4 * group_)));
  const std::vector<float> in = random_floats(7, 4 * group_);
  EXPECT_TRUE(encode_rows(format_, in, 2 * group_, out));
  EXPECT_EQ(out, encode(format_, in));
  for (const int64_t n_in : {int64_t(0), int64_t(-1)}) EXPECT_FALSE(encode_rows(format_, in, n_in, out));
  if (group_ == 1) return;
  for (const int64_t n_in : {1, group_ - 1, group_ + 1}) {
    const std::vector<float> rows = random_floats(7, n_in);
    const Status status = encode_rows(format_, rows, n_in, out);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, testing::HasSubstr(std::to_string(group_)));
  }
}

TEST(WeightFormats, NamesAndIdsAreUniqueAndUnknownOnesAreRefused) {
  std::set<std::string_view> names;
  std::set<int> ids;
  for (const WeightFormat& format : weight_formats()) {
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    EXPECT_TRUE(format.gguf_type < 0 || ids.insert(format.gguf_type).second) << format.name;
  }
  EXPECT_EQ(weight_format_of_gguf(0xFFFFFFFFu), nullptr);
  EXPECT_EQ(weight_format_of_dtype(""), nullptr);
  EXPECT_EQ(weight_format_of_dtype("I64"), nullptr);
  const auto unknown = find_weight_format("q9_k");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::usage);
  for (const std::string_view name : names) EXPECT_THAT(unknown.error().message, testing::HasSubstr(std::string(name)));
}

TEST(WeightFormats, BitsPerWeightAreThePublishedOnes) {
  const std::pair<std::string_view, double> published[] = {
      {"f32", 32},   {"f16", 16}, {"bf16", 16},  {"q8_0", 8.5}, {"q4_0", 4.5},    {"q4_1", 5},
      {"q5_0", 5.5}, {"q5_1", 6}, {"q4_k", 4.5}, {"q5_k", 5.5}, {"q6_k", 6.5625}, {"int4_g128", 4.125}};
  for (const auto& [name, bits] : published) EXPECT_EQ((*find_weight_format(name))->bits_per_weight(), bits) << name;
  const std::pair<std::string_view, uint32_t> ids[] = {{"f32", 0},   {"f16", 1},   {"q4_0", 2}, {"q4_1", 3},
                                                       {"q5_0", 6},  {"q5_1", 7},  {"q8_0", 8}, {"q4_k", 12},
                                                       {"q5_k", 13}, {"q6_k", 14}, {"bf16", 30}};
  for (const auto& [name, id] : ids) EXPECT_EQ(weight_format_of_gguf(id), *find_weight_format(name)) << name;
}

TEST(Iq4Weights, TheSearchLosesLessThanTheRangeOfEveryGroup) {
  for (const auto* name : {"iq4_nl", "iq4_xs"}) {
    const WeightFormat& format = **find_weight_format(name);
    for (const Fill kind : {Fill::normal, Fill::outliers}) {
      const std::vector<float> in = random_floats(9, 64 * 256, kind), out = decode(format, encode(format, in));
      double error = 0, plain = 0;
      for (size_t first = 0; first < in.size(); first += 32) {
        float largest = 0;
        for (size_t i = first; i < first + 32; ++i)
          if (std::abs(in[i]) > std::abs(largest)) largest = in[i];
        for (size_t i = first; i < first + 32; ++i) {
          double nearest = INFINITY;
          for (int code = 0; code < 16; ++code)
            nearest = std::min(nearest, std::abs(double(largest) / iq4_level(0) * iq4_level(code) - in[i]));
          plain += nearest * nearest, error += std::pow(double(out[i]) - in[i], 2);
        }
      }
      EXPECT_LT(error, 0.95 * plain) << name << " " << fill_name(kind);
    }
  }
}

/// A block of nvfp4 whose groups have one scale; code(i) is that of weight i.
template <class Code>
std::vector<float> nvfp4_values(int scale, const Code& code) {
  NVFP4::Block block{};
  std::ranges::fill(block.scales, uint8_t(scale));
  for (int i = 0; i < NVFP4::kGroup; ++i) NVFP4::put_code(code(i), i, block);
  std::vector<float> values(NVFP4::kGroup);
  NVFP4::decode(block, values.data());
  return values;
}

TEST(Nvfp4Weights, EveryCodeUnderEveryScaleComesBack) {
  const WeightFormat& format = **find_weight_format("nvfp4");
  for (int scale = 1; scale < 0x7F; ++scale)
    for (const int largest : {6, 7}) {  // 4 or 6 times the scale, among all smaller codes of both signs
      const auto values = nvfp4_values(scale, [&](int i) { return (i + largest) % (largest + 1) | (i & 8); });
      EXPECT_EQ(decode(format, encode(format, values)), values) << scale << " " << largest;
    }
}

/// What one scale loses of 16 weights, in double.
double nvfp4_error(const float* x, double scale) {
  double error = 0;
  for (int i = 0; i < 16; ++i) {
    double least = INFINITY;
    for (int code = 0; code < 8; ++code)
      least = std::min(least, std::abs(std::abs(double(x[i])) - scale * 0.5 * MXFP4::doubled(code)));
    error += least * least;
  }
  return error;
}

TEST(Nvfp4Weights, NineScalesLoseAsLittleAsAllAndStayWithinTheBound) {
  const WeightFormat& format = **find_weight_format("nvfp4");
  for (const Fill kind : {Fill::normal, Fill::outliers, Fill::tiny})
    for (const float size : {0.01f, 1.0f, 10.0f}) {
      std::vector<float> in = random_floats(9, 64 * 64, kind);
      for (float& x : in) x *= size;
      const std::vector<float> out = decode(format, encode(format, in));
      double all = 0, least = 0, first = 0;
      for (size_t at = 0; at < in.size(); at += 16) {
        float largest = 0;
        double error = 0, best = INFINITY;
        for (size_t i = at; i < at + 16; ++i) {
          largest = std::max(largest, std::abs(in[i]));
          error += std::pow(double(out[i]) - in[i], 2);
        }
        int nearest = 1;
        for (int code = 1; code < 0x7F; ++code) {
          if (std::abs(e4m3_value(code) - largest / 6) < std::abs(e4m3_value(nearest) - largest / 6)) nearest = code;
          best = std::min(best, nvfp4_error(&in[at], e4m3_value(code)));
        }
        const double of_nearest = nvfp4_error(&in[at], e4m3_value(nearest));
        ASSERT_LE(error, of_nearest * (1 + 1e-5) + 1e-30) << fill_name(kind) << " " << size << " at " << at;
        ASSERT_LE(error, 16 * std::pow(std::max(double(e4m3_value(nearest)), 3.0 / 512), 2));
        all += error, least += best, first += of_nearest;
      }
      EXPECT_LE(all, 1.001 * least + 1e-30) << fill_name(kind) << " " << size;
      if (kind == Fill::normal && size >= 1) {
        EXPECT_LT(all, 0.8 * first) << "the search pays";
      }
    }
}

TEST(Nvfp4Weights, EncodeRowsRefusesAGroupBeyondTheLargestScale) {
  const WeightFormat& format = **find_weight_format("nvfp4");
  std::vector<std::byte> out(size_t(2 * format.block_bytes));
  std::vector<float> in(2 * 64, 0.5f);
  in[70] = -2688;
  ASSERT_TRUE(encode_rows(format, in, 64, out));
  EXPECT_EQ(decode(format, out)[70], -2688);
  for (const float large : {2784.0f, 65504.0f, 1e6f, std::numeric_limits<float>::max()}) {
    in[70] = -large;
    const Status status = encode_rows(format, in, 64, out);
    ASSERT_FALSE(status) << large;
    EXPECT_EQ(status.error().kind, ErrorKind::bad_file);
    EXPECT_THAT(status.error().message, testing::AllOf(testing::HasSubstr("row 1"), testing::HasSubstr("nvfp4")));
  }
}

TEST(F32Weights, KeepEveryBit) {
  const WeightFormat& f32 = **find_weight_format("f32");
  for (const float value : {1.0f, -0.0f, 1.4e-45f, -3.4e38f, 0.1f})
    EXPECT_EQ(std::bit_cast<uint32_t>(decode(f32, encode(f32, std::vector{value}))[0]), std::bit_cast<uint32_t>(value));
}

TEST(HalfWeights, ErrorIsHalfAUnitInTheLastPlace) {
  for (const Fill kind : kFills) {
    const std::vector<float> in = random_floats(8, 4096, kind);
    const std::vector<float> f16 = decode(**find_weight_format("f16"), encode(**find_weight_format("f16"), in));
    const std::vector<float> bf16 = decode(**find_weight_format("bf16"), encode(**find_weight_format("bf16"), in));
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_LE(std::abs(f16[i] - in[i]), most_rounding_f16(in[i]));
      ASSERT_LE(std::abs(bf16[i] - in[i]), std::abs(in[i]) * 0x1p-8);
    }
  }
}

/// value = q * scale, from the definition: fp16 scale at byte 0, then 32 signed bytes.
TEST(Q8_0Weights, EveryCodeAtEveryPlaceDecodesToItsDefinition) {
  const WeightFormat& format = **find_weight_format("q8_0");
  for (const uint16_t scale : kF16Classes)
    for (int place = 0; place < 32; ++place)
      for (int code = -128; code < 128; ++code) {
        std::array<uint8_t, 34> block{};
        block[0] = uint8_t(scale), block[1] = uint8_t(scale >> 8);
        block[size_t(2 + place)] = uint8_t(code);
        float out[32];
        format.decode(reinterpret_cast<const std::byte*>(block.data()), 32, out);
        for (int i = 0; i < 32; ++i)
          ASSERT_EQ(out[i], i == place ? float(code) * f16_to_f32(scale) : 0.0f) << place << " " << code;
      }
}

/// value = (nibble - 8) * scale; element i < 16 is the low nibble of byte i, element i >= 16 the high nibble of byte i
/// - 16.
TEST(Q4_0Weights, EveryByteAtEveryPlaceDecodesToItsDefinition) {
  const WeightFormat& format = **find_weight_format("q4_0");
  for (const uint16_t scale : kF16Classes)
    for (size_t place = 0; place < 16; ++place)
      for (int byte = 0; byte < 256; ++byte) {
        std::array<uint8_t, 18> block;
        block.fill(0x88);
        block[0] = uint8_t(scale), block[1] = uint8_t(scale >> 8);
        block[2 + place] = uint8_t(byte);
        float out[32];
        format.decode(reinterpret_cast<const std::byte*>(block.data()), 32, out);
        for (size_t i = 0; i < 32; ++i) {
          const int nibble = i == place ? byte % 16 : i == place + 16 ? byte / 16 : 8;
          ASSERT_EQ(out[i], float(nibble - 8) * f16_to_f32(scale)) << place << " " << byte;
        }
      }
}

TEST(Q8_0Weights, ErrorIsWithinItsBound) {
  for (const Fill kind : kFills)
    for (int seed = 0; seed < 200; ++seed) {
      const std::vector<float> in = random_floats(uint64_t(seed), 32, kind);
      const std::vector<float> out = decode(**find_weight_format("q8_0"), encode(**find_weight_format("q8_0"), in));
      double top = 0;
      for (const float x : in) top = std::max(top, double(std::abs(x)));
      const double scale = top / 127, bound = scale * (0.5 + 1e-4) + 127 * most_rounding_f16(scale);
      for (size_t i = 0; i < 32; ++i) ASSERT_LE(std::abs(out[i] - in[i]), bound) << fill_name(kind);
    }
}

TEST(Q4_0Weights, ErrorIsWithinItsBound) {
  // Steps of |m| / 8, half a step off inside the range; the end opposite to the extreme m stops at 7 steps.
  for (const Fill kind : kFills)
    for (int seed = 0; seed < 200; ++seed) {
      const std::vector<float> in = random_floats(uint64_t(seed), 32, kind);
      const std::vector<float> out = decode(**find_weight_format("q4_0"), encode(**find_weight_format("q4_0"), in));
      double extreme = 0;
      for (const float x : in)
        if (std::abs(x) > std::abs(extreme)) extreme = x;
      const double scale = extreme / -8;
      for (size_t i = 0; i < 32; ++i) {
        const double steps = scale == 0 ? 0 : in[i] / scale;
        const double bound = std::abs(scale) * (std::max(0.5, steps - 7) + 1e-5) + 8 * most_rounding_f16(scale);
        ASSERT_LE(std::abs(out[i] - in[i]), bound) << fill_name(kind) << " " << in[i];
      }
    }
}

TEST(Q8_0Weights, RoundTiesAwayFromZeroAtAScaleOfOne) {
  std::vector<float> in(32, 0.0f);
  const float ties[] = {127, 0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 126.5f};
  std::copy(std::begin(ties), std::end(ties), in.begin());
  const std::vector<float> out = decode(**find_weight_format("q8_0"), encode(**find_weight_format("q8_0"), in));
  EXPECT_THAT(std::vector<float>(out.begin(), out.begin() + 7), testing::ElementsAre(127, 1, -1, 2, 3, -3, 127));
}

TEST(Q4_0Weights, TheExtremeIsCodeMinusEightWhateverItsSign) {
  const WeightFormat& format = **find_weight_format("q4_0");
  for (const float sign : {1.0f, -1.0f}) {
    std::vector<float> in(32, 0.0f);
    const float values[] = {8, 7, -8, -7.4f, 0.4f, 0.6f, -0.6f, 3};
    for (size_t i = 0; i < 8; ++i) in[i] = sign * values[i];
    const std::vector<std::byte> block = encode(format, in);
    EXPECT_EQ(std::to_integer<int>(block[2]) & 15, 0);
    EXPECT_EQ(f16_to_f32(uint16_t(std::to_integer<int>(block[0]) | std::to_integer<int>(block[1]) << 8)), -sign);
    const float expected[] = {8, 7, -7, -7, 0, 1, -1, 3};  // -8 would need code +8: it stops at 7
    const std::vector<float> out = decode(format, block);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(out[i], sign * expected[i]) << values[i];
  }
}

}  // namespace
}  // namespace ridge
