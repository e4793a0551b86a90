// KV cache formats: what every row of the table must do, then each format against its definition.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <bit>
#include <cmath>
#include <functional>
#include <set>

#include "base/f16.h"
#include "cases/guarded.h"
#include "format/list.h"

namespace ridge {
namespace {

constexpr int kHeadDims[] = {8, 16, 32, 64, 80, 96, 128, 256};

struct Coded {
  std::vector<std::byte> row;
  int saturated;
};

Coded encode(const KvFormat& format, std::span<const float> in, const KvCoding& coding = {}) {
  Guarded<std::byte> row(format.row_bytes(int(in.size())), 1);
  const int saturated = format.encode(in.data(), int(in.size()), coding, row.data());
  EXPECT_TRUE(row.intact()) << "wrote outside its row";
  return {{row.begin(), row.end()}, saturated};
}

std::vector<float> decode(const KvFormat& format, std::span<const std::byte> row, int head_dim,
                          const KvCoding& coding = {}) {
  Guarded<float> out(head_dim, 1);
  format.decode(row.data(), head_dim, coding, out.data());
  EXPECT_TRUE(out.intact()) << "wrote outside its output";
  return {out.begin(), out.end()};
}

double norm(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += double(value) * value;
  return std::sqrt(sum);
}

/// A format under one of its scale rules.
struct Rule {
  const KvFormat* format;
  KvScale scale;
};

class EveryKvFormat : public testing::TestWithParam<Rule> {
 protected:
  template <class Body>
  void for_each_head_dim(const Body& body) {
    for (const int head_dim : kHeadDims)
      if (head_dim % format_.group == 0) body(head_dim);
  }
  /// Rows of standard normals times `spread`, at the size this format is made for.
  std::vector<float> normal_row(uint64_t seed, int head_dim, float spread = 1) const {
    std::vector<float> row = random_floats(seed, head_dim);
    if (assumes_unit_norm_) spread = 1 / std::sqrt(float(head_dim));
    for (float& x : row) x *= spread;
    return row;
  }
  KvCoding coding(float size = 1) const { return {.scale = GetParam().scale, .fixed = format_.head_scale ? size : 0}; }
  const KvFormat& format_ = *GetParam().format;
  const bool assumes_unit_norm_ = format_.name == "rotor-3u";
  const bool row_has_scale_ = !assumes_unit_norm_ && !format_.head_scale;
};
INSTANTIATE_TEST_SUITE_P(Formats, EveryKvFormat, testing::ValuesIn([] {
                           std::vector<Rule> rules;
                           for (const KvFormat& format : kv_formats())
                             for (const KvScale scale : format.scales) rules.push_back({&format, scale});
                           return rules;
                         }()),
                         [](const auto& test) {
                           std::string name(test.param.format->name);
                           if (test.param.format->scales.size() > 1)
                             name += fmt::format("_{}", scale_name(test.param.scale));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryKvFormat, IsFoundByName) { EXPECT_EQ(find_kv_format(format_.name).value(), &format_); }

TEST_P(EveryKvFormat, PolicyKeepsWholeTilesExactAndNamesARuleItHas) {
  EXPECT_GE(format_.policy.window, 0);
  EXPECT_GE(format_.policy.sinks, 0);
  EXPECT_EQ(format_.policy.window % 32, 0);
  EXPECT_THAT(std::vector<KvScale>(format_.scales.begin(), format_.scales.end()),
              testing::Contains(format_.policy.scale));
}

TEST_P(EveryKvFormat, NormalRowsAreNotCountedAndZeroRowsStayZero) {
  for_each_head_dim([&](int head_dim) {
    EXPECT_EQ(encode(format_, normal_row(1, head_dim), coding()).saturated, 0);
    for (const float zero : {0.0f, -0.0f}) {
      const Coded coded = encode(format_, std::vector<float>(size_t(head_dim), zero), coding());
      EXPECT_EQ(coded.saturated, 0);
      // A format whose rows cannot say that they are small gives the level next to zero.
      const float least = row_has_scale_ ? 0.0f : format_.head_scale ? 0.2451275f : 0.2451275f / std::sqrt(head_dim);
      for (const float x : decode(format_, coded.row, head_dim, coding())) ASSERT_LE(std::abs(x), least);
    }
  });
}

TEST_P(EveryKvFormat, CodingADecodedNormalRowKeepsItUpToTheScale) {
  // Least squares moves to a better scale for the same codes each time, so some values change cells.
  if (GetParam().scale == KvScale::lsq) return;
  for_each_head_dim([&](int head_dim) {
    if (head_dim < 64) return;  // short rows of few levels may move to other codes when their norm is matched again
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<float> in = normal_row(seed, head_dim);
      const std::vector<float> once = decode(format_, encode(format_, in, coding()).row, head_dim, coding());
      const std::vector<float> twice = decode(format_, encode(format_, once, coding()).row, head_dim, coding());
      for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], once[i], std::abs(once[i]) * 0x1p-10) << head_dim;
    }
  });
}

TEST_P(EveryKvFormat, ErrorOnNormalRowsFitsItsBits) {
  double error = 0, size = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> in = normal_row(seed, 128);
    const std::vector<float> out = decode(format_, encode(format_, in, coding()).row, 128, coding());
    for (size_t i = 0; i < 128; ++i) error += std::pow(double(out[i]) - in[i], 2), size += double(in[i]) * in[i];
  }
  EXPECT_LE(error / size, 4 * std::pow(0.25, std::min(8.0, std::floor(format_.bits_per_value(128)))));
}

TEST_P(EveryKvFormat, NanAndInfinityAreReplacedAndCounted) {
  for_each_head_dim([&](int head_dim) {
    for (int at = 0; at < head_dim; at += std::max(1, head_dim / 9))
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(), 1e30f, -70000.0f}) {
        std::vector<float> in = normal_row(3, head_dim);
        in[size_t(at)] = bad;
        const Coded coded = encode(format_, in, coding());
        const std::vector<float> out = decode(format_, coded.row, head_dim, coding());
        // f32 and bf16 hold what fp16 does not.
        const bool kept = std::isfinite(bad) && std::abs(out[size_t(at)] / bad - 1) < 0x1p-8;
        ASSERT_NE(coded.saturated > 0, kept) << bad;
        for (const float value : out) ASSERT_TRUE(std::isfinite(value)) << bad << " at " << at;
        if (std::isnan(bad)) ASSERT_LE(std::abs(out[size_t(at)]), 0.5f) << "NaN is coded as zero";
        else ASSERT_GE(out[size_t(at)] * std::copysign(1.0f, bad), 0.0f) << "infinity does not change its sign";
      }
    const std::vector<float> nans(size_t(head_dim), NAN);
    EXPECT_EQ(encode(format_, nans, coding()).saturated, head_dim);
    if (row_has_scale_) {
      EXPECT_THAT(decode(format_, encode(format_, nans, coding()).row, head_dim), testing::Each(0.0f));
    }
  });
}

TEST_P(EveryKvFormat, RowsOfTheLargestValuesStayFinite) {
  for_each_head_dim([&](int head_dim) {
    for (const float value : {65504.0f, -65504.0f, 65519.0f}) {
      const Coded coded = encode(format_, std::vector<float>(size_t(head_dim), value), coding(65504.0f));
      for (const float x : decode(format_, coded.row, head_dim, coding(65504.0f)))
        if (assumes_unit_norm_) ASSERT_LE(std::abs(x), 1);
        else ASSERT_NEAR(x / value, 1, 0.3);
      EXPECT_TRUE(!assumes_unit_norm_ || coded.saturated == head_dim) << "what is lost is counted";
    }
  });
}

TEST_P(EveryKvFormat, TinyRowsStayFiniteAndNearZero) {
  for_each_head_dim([&](int head_dim) {
    for (const float top : {1e-5f, 1e-7f, 1e-8f, 1e-30f, 1e-38f, 1e-40f, 1.4e-45f}) {
      std::vector<float> in = random_floats(4, head_dim);
      for (float& x : in) x *= top / 4;
      const std::vector<float> out =
          decode(format_, encode(format_, in, coding(top / 4)).row, head_dim, coding(top / 4));
      const float least = assumes_unit_norm_ ? 0.25f / std::sqrt(float(head_dim)) : 0;
      for (size_t i = 0; i < in.size(); ++i)
        ASSERT_LE(std::abs(out[i] - in[i]), 2 * top + 127 * 0x1p-25 + least) << top;
    }
  });
}

// Rows that real and broken models have produced. What every format owes them: finite values no larger than the row's
// largest (times the outermost level for formats without a scale), a count if and only if something was lost, and the
// other values of the row undisturbed as far as its scale allows.
struct HostileRow {
  std::string_view name;
  std::function<void(std::vector<float>&)> change;  // of a row of standard normals
  bool fits_f16;
};
const HostileRow kHostileRows[] = {
    {"one channel of a Qwen2.5-sized bias", [](auto& x) { x[5] += 300; }, true},
    {"a bias in every fourth channel",
     [](auto& x) {
       for (size_t i = 0; i < x.size(); i += 4) x[i] -= 150;
     },
     true},
    {"one value at the top of fp16", [](auto& x) { x[0] = 65504; }, true},
    {"one value past fp16", [](auto& x) { x[0] = 65520; }, false},
    {"alternating extremes",
     [](auto& x) {
       for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 ? 65504.0f : -65504.0f;
     },
     true},
    {"all past fp16", [](auto& x) { std::fill(x.begin(), x.end(), -1e38f); }, false},
    {"all infinite", [](auto& x) { std::fill(x.begin(), x.end(), INFINITY); }, false},
    {"NaN among zeros",
     [](auto& x) {
       std::fill(x.begin(), x.end(), 0.0f);
       x[3] = NAN;
     },
     false},
    {"signalling NaN last", [](auto& x) { x.back() = std::bit_cast<float>(0xFF800001u); }, false},
    {"one value among zeros",
     [](auto& x) {
       std::fill(x.begin(), x.end(), 0.0f);
       x.back() = -3;
     },
     true},
    {"f32 subnormals",
     [](auto& x) {
       for (float& v : x) v *= 1e-42f;
     },
     true},
    {"f16 subnormals",
     [](auto& x) {
       for (float& v : x) v *= 1e-7f;
     },
     true},
    {"all equal", [](auto& x) { std::fill(x.begin(), x.end(), 7.0f); }, true},
};

TEST_P(EveryKvFormat, HostileRowsGiveFiniteValuesAndAnHonestCount) {
  const bool wide = format_.name == "f32" || format_.name == "bf16";  // the range of f32
  for (const HostileRow& hostile : kHostileRows)
    for_each_head_dim([&](int head_dim) {
      SCOPED_TRACE(fmt::format("{}, head_dim {}", hostile.name, head_dim));
      std::vector<float> in = random_floats(11, head_dim);
      hostile.change(in);
      float top = 0;
      bool finite = true;
      for (const float x : in) {
        finite = finite && std::isfinite(x);
        if (!std::isnan(x)) top = std::max(top, std::min(std::abs(x), wide ? 3.4e38f : 65504.0f));
      }
      const Coded coded = encode(format_, in, coding());
      const std::vector<float> out = decode(format_, coded.row, head_dim, coding());
      // A scale that keeps the norm may put equal values up to sqrt(D) / |levels| higher; 8 bits of rounding on top.
      const float largest = row_has_scale_ ? top * 2.9f : 2.2f;
      for (const float x : out) ASSERT_TRUE(std::isfinite(x) && std::abs(x) <= largest + 1e-4f) << x << " of " << top;
      const bool lost = wide ? !finite : !hostile.fits_f16;
      // Without scales in the rows, less than half is left of what lies beyond twice the outermost level.
      const float unit = assumes_unit_norm_ ? std::sqrt(float(head_dim)) : 1;
      const bool too_large = !row_has_scale_ && top * unit > 2 * 2.1519143f;
      const bool near_the_top = row_has_scale_ && top > 60000;  // the scale of a rotor row may pass fp16 there
      EXPECT_TRUE(near_the_top || (coded.saturated > 0) == (lost || too_large)) << coded.saturated;
      EXPECT_TRUE(!lost || coded.saturated > 0);
      // Decoding is by value: the same row again gives the same bytes.
      EXPECT_EQ(encode(format_, in, coding()).row, coded.row);
    });
}

TEST(KvFormats, NamesAreUniqueAndUnknownOnesAreRefused) {
  std::set<std::string_view> names;
  for (const KvFormat& format : kv_formats()) EXPECT_TRUE(names.insert(format.name).second) << format.name;
  const auto unknown = find_kv_format("q3");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::usage);
  for (const std::string_view name : names) EXPECT_THAT(unknown.error().message, testing::HasSubstr(std::string(name)));
}

TEST(KvFormats, BitsPerValueAreThePublishedOnes) {
  const std::pair<std::string_view, double> published[] = {
      {"f32", 32},   {"f16", 16},        {"bf16", 16},       {"q8_0", 8.5},   {"p8", 8.5},    {"i8r", 8.125},
      {"q4_0", 4.5}, {"rotor-4", 4.125}, {"rotor-3", 3.125}, {"rotor-3s", 3}, {"rotor-3u", 3}};
  EXPECT_EQ(std::size(published), kv_formats().size());
  for (const auto& [name, bits] : published) EXPECT_EQ((*find_kv_format(name))->bits_per_value(128), bits) << name;
}

TEST(KvFormats, ScaleRulesAreFoundByNameAndOthersAreRefused) {
  const KvFormat& p8 = **find_kv_format("p8");
  EXPECT_EQ(find_scale(p8, "lsq").value(), KvScale::lsq);
  for (const std::string_view name : {"norm", "none", "", "LSQ"}) {
    const auto unknown = find_scale(p8, name);
    ASSERT_FALSE(unknown) << name;
    EXPECT_EQ(unknown.error().kind, ErrorKind::usage);
    EXPECT_THAT(unknown.error().message, testing::HasSubstr("absmax, lsq"));
  }
}

TEST(KvBf16, EveryFiniteCodeIsKept) {
  const KvFormat& format = **find_kv_format("bf16");
  for (uint32_t code = 0; code < 65536; code += 128) {  // 128 codes share their exponent
    std::vector<float> in;
    for (uint32_t i = 0; i < 128; ++i) in.push_back(bf16_to_f32(uint16_t(code + i)));
    if (!std::isfinite(in[0])) continue;
    const Coded coded = encode(format, in);
    EXPECT_EQ(coded.saturated, 0);
    EXPECT_EQ(decode(format, coded.row, 128), in);
  }
}

TEST(KvBf16, ValuesBeyondItsRangeTakeItsLargest) {
  const float top = bf16_to_f32(0x7F7F);
  const std::vector<float> in = {INFINITY, -INFINITY, 3.4e38f, -3.4e38f, top, -top, NAN, 1e30f};
  const Coded coded = encode(**find_kv_format("bf16"), in);
  EXPECT_EQ(coded.saturated, 5);
  const std::vector<float> out = decode(**find_kv_format("bf16"), coded.row, 8);
  EXPECT_THAT(std::span(out).first(7), testing::ElementsAre(top, -top, top, -top, top, -top, 0));
}

TEST(KvQ4_0, RowsAreTheWeightFormatsBlocks) {
  const std::vector<float> in = random_floats(5, 128);
  std::vector<std::byte> blocks(72);
  (*find_weight_format("q4_0"))->encode(in.data(), 128, blocks.data());
  EXPECT_EQ(encode(**find_kv_format("q4_0"), in).row, blocks);
}

TEST(KvP8, WithAbsmaxItsNumbersAreQ8_0s) {
  for (const Fill kind : kFills)
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> in = random_floats(seed, 96, kind);
      const Coded p8 = encode(**find_kv_format("p8"), in), q8 = encode(**find_kv_format("q8_0"), in);
      EXPECT_EQ(p8.saturated, q8.saturated);
      ASSERT_EQ(decode(**find_kv_format("p8"), p8.row, 96), decode(**find_kv_format("q8_0"), q8.row, 96));
    }
}

TEST(KvP8, CodesComeFirstThenScales) {
  std::vector<float> in(64, 0.0f);
  for (size_t i = 0; i < 64; ++i) in[i] = float(int(i) - 32) * (i < 32 ? 2.0f : 4.0f);  // tops 64 and 124
  const std::vector<std::byte> row = encode(**find_kv_format("p8"), in).row;
  ASSERT_EQ(row.size(), 68u);
  for (size_t i = 0; i < 64; ++i) {
    const double scale = (i < 32 ? 64 : 124) / 127.0;
    EXPECT_EQ(int8_t(row[i]), int8_t(std::round(in[i] / scale))) << i;
  }
  for (size_t block = 0; block < 2; ++block) {
    const auto half =
        uint16_t(std::to_integer<int>(row[64 + 2 * block]) | std::to_integer<int>(row[65 + 2 * block]) << 8);
    EXPECT_EQ(half, f32_to_f16((block == 0 ? 64 : 124) / 127.0f));
  }
}

TEST(KvI8r, EveryCodeUnderOneScaleDecodesToTheirProduct) {
  const KvFormat& format = **find_kv_format("i8r");
  for (const uint16_t scale : kF16Classes) {
    std::vector<std::byte> row(258);
    for (int code = 0; code < 256; ++code) row[size_t(code)] = std::byte(code);
    row[256] = std::byte(scale & 255), row[257] = std::byte(scale >> 8);
    const std::vector<float> out = decode(format, row, 256);
    for (int code = 0; code < 256; ++code) ASSERT_EQ(out[size_t(code)], float(int8_t(code)) * f16_to_f32(scale));
  }
}

TEST(KvScaleRules, LeastSquaresIsNeverWorseThanTheOtherRuleOnAverageAndNearItsOptimum) {
  for (const KvFormat& format : kv_formats()) {
    if (format.scales.size() < 2) continue;
    double errors[2] = {0, 0};
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const std::vector<float> in = random_floats(seed, 128);
      for (int lsq = 0; lsq < 2; ++lsq) {
        const KvCoding coding{.scale = lsq ? KvScale::lsq : format.scales[0]};
        const std::vector<float> out = decode(format, encode(format, in, coding).row, 128, coding);
        for (size_t i = 0; i < 128; ++i) errors[lsq] += std::pow(double(out[i]) - in[i], 2);
      }
    }
    EXPECT_LT(errors[1], errors[0]) << format.name;
    EXPECT_GT(errors[1], 0.9 * errors[0]) << format.name;
  }
}

TEST(KvF16, EveryFiniteCodeIsKept) {
  const KvFormat& format = **find_kv_format("f16");
  for (uint32_t code = 0; code < 65536; code += 8) {
    std::vector<float> in;
    for (uint32_t i = 0; i < 8; ++i) in.push_back(f16_to_f32(uint16_t(code + i)));
    if (!std::isfinite(in[0])) continue;  // a block of 8 codes shares its exponent
    const Coded coded = encode(format, in);
    EXPECT_EQ(coded.saturated, 0);
    for (uint32_t i = 0; i < 8; ++i)
      ASSERT_EQ(std::to_integer<uint32_t>(coded.row[2 * i]) | std::to_integer<uint32_t>(coded.row[2 * i + 1]) << 8,
                code + i);
  }
}

TEST(KvF16, ValuesBeyondItsRangeTakeItsLargest) {
  const std::vector<float> in = {INFINITY, -INFINITY, 1e30f, -65519.0f, 65504.0f, NAN, -1e-30f, 3};
  const Coded coded = encode(**find_kv_format("f16"), in);
  EXPECT_EQ(coded.saturated, 5);
  EXPECT_THAT(decode(**find_kv_format("f16"), coded.row, 8),
              testing::ElementsAre(65504, -65504, 65504, -65504, 65504, 0, 0, 3));
}

TEST(KvQ8_0, RowsAreTheWeightFormatsBlocks) {
  const std::vector<float> in = random_floats(5, 128);
  std::vector<std::byte> blocks(136);
  (*find_weight_format("q8_0"))->encode(in.data(), 128, blocks.data());
  EXPECT_EQ(encode(**find_kv_format("q8_0"), in).row, blocks);
}

// The rotor formats, from their definition: levels, code k of a row in bits n k .. n k + n - 1 of the row read as a
// little-endian number.
constexpr double kLevels[8] = {-2.1519143, -1.3439092, -0.7560054, -0.2451275,
                               0.2451275,  0.7560054,  1.3439092,  2.1519143};
constexpr double kLevels16[16] = {-2.732589571, -2.069017227, -1.618046386, -1.256231197, -0.942340456, -0.656759119,
                                  -0.388048299, -0.128395030, 0.128395030,  0.388048299,  0.656759119,  0.942340456,
                                  1.256231197,  1.618046386,  2.069017227,  2.732589571};

int code_at(std::span<const std::byte> row, int k, int bits = 3) {
  int code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const int at = bits * k + bit;
    code |= (std::to_integer<int>(row[size_t(at / 8)]) >> (at % 8) & 1) << bit;
  }
  return code;
}
void set_code(std::span<std::byte> row, int k, int code, int bits) {
  for (int bit = 0; bit < bits; ++bit)
    if (code >> bit & 1) row[size_t((bits * k + bit) / 8)] |= std::byte(1 << (bits * k + bit) % 8);
}

/// How far the levels are from the Lloyd-Max quantiser of a standard normal, whose levels are the means of their cells.
double distance_from_lloyd_max(std::span<const double> levels) {
  const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); };
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  double worst = 0;
  for (size_t i = 0; i < levels.size(); ++i) {
    const double low = i == 0 ? -40 : (levels[i - 1] + levels[i]) / 2,
                 high = i + 1 == levels.size() ? 40 : (levels[i] + levels[i + 1]) / 2;
    worst = std::max(worst, std::abs((density(low) - density(high)) / (below(high) - below(low)) - levels[i]));
  }
  return worst;
}

TEST(KvRotor, LevelsAreTheLloydMaxQuantiserOfANormal) {
  EXPECT_LT(distance_from_lloyd_max(kLevels), 3e-5) << "as published; the error this leaves is flat there";
  EXPECT_LT(distance_from_lloyd_max(kLevels16), 1e-7);
}

TEST(KvRotor, EveryCodeAtEveryPlaceDecodesToItsDefinition) {
  struct Definition {
    std::string_view name;
    int bits;
    bool has_scale;
  };
  for (const Definition& d :
       {Definition{"rotor-3", 3, true}, {"rotor-4", 4, true}, {"rotor-3s", 3, false}, {"rotor-3u", 3, false}})
    for (const int head_dim : {8, 16, 80, 128})
      for (const uint16_t half : kF16Classes)
        for (int place = 0; place < head_dim; ++place)
          for (int code = 0; code < 1 << d.bits; ++code) {
            const KvFormat& format = **find_kv_format(d.name);
            const int others = code * 5 % 8 + (place & 1);
            std::vector<std::byte> row(size_t(d.bits * head_dim / 8 + (d.has_scale ? 2 : 0)));
            ASSERT_EQ(int64_t(row.size()), format.row_bytes(head_dim));
            for (int k = 0; k < head_dim; ++k)
              set_code(row, k, k == place ? code : others & ((1 << d.bits) - 1), d.bits);
            if (d.has_scale) {
              row[row.size() - 2] = std::byte(half & 255);
              row[row.size() - 1] = std::byte(half >> 8);
            }
            const KvCoding coding{.fixed = f16_to_f32(half)};
            const float scale = d.name == "rotor-3u" ? 1.0f / std::sqrt(float(head_dim)) : f16_to_f32(half);
            const std::vector<float> out = decode(format, row, head_dim, coding);
            for (const int k : {0, place, (place + 1) % head_dim, head_dim - 1}) {
              const auto at = size_t(k == place ? code : others & ((1 << d.bits) - 1));
              ASSERT_EQ(out[size_t(k)], float(d.bits == 3 ? kLevels[at] : kLevels16[at]) * scale) << d.name << place;
            }
            if (!d.has_scale && half != kF16Classes[0] && d.name == "rotor-3u") break;  // no scale to vary
          }
}

TEST(KvRotor4, EveryValueGoesToTheNearestLevelAndItsErrorIsLloydMaxs) {
  const KvFormat& format = **find_kv_format("rotor-4");
  double error = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const std::vector<float> in = random_floats(seed, 128);
    const std::vector<std::byte> row = encode(format, in).row;
    const double to_unit = std::sqrt(128.0) / norm(in);
    for (int k = 0; k < 128; ++k) {
      const double u = in[size_t(k)] * to_unit, distance = std::abs(u - kLevels16[code_at(row, k, 4)]);
      for (const double level : kLevels16) ASSERT_LE(distance, std::abs(u - level) + 1e-5);
      error += distance * distance;
    }
  }
  EXPECT_NEAR(error / (500 * 128), 0.009501, 0.0003);
}

TEST(KvRotor3s, IsRotor3UnderTheHeadsScale) {
  // A row whose own scale would be exactly the head's: the same codes, the same values up to the fp16 of rotor-3.
  const KvFormat& with_scale = **find_kv_format("rotor-3");
  const KvFormat& without = **find_kv_format("rotor-3s");
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> in = random_floats(seed, 128);
    const KvCoding coding{.fixed = float(norm(in) / std::sqrt(128.0))};
    const std::vector<std::byte> row = encode(without, in, coding).row, full = encode(with_scale, in).row;
    for (int k = 0; k < 128; ++k) ASSERT_EQ(code_at(row, k), code_at(full, k));
    const std::vector<float> out = decode(without, row, 128, coding);
    for (int k = 0; k < 128; ++k) ASSERT_EQ(out[size_t(k)], float(kLevels[code_at(row, k)]) * coding.fixed);
  }
}

TEST(KvRotor3s, ValuesLongerThanTheHeadsAreCounted) {
  std::vector<float> in(64, 1.0f);
  in[3] = 4.2f, in[9] = -4.4f, in[10] = 400;
  EXPECT_EQ(encode(**find_kv_format("rotor-3s"), in, {.fixed = 1}).saturated, 2) << "twice the outermost level is 4.30";
}

TEST(KvRotor3u, KeepsUnitRowsAndLosesOthers) {
  const KvFormat& format = **find_kv_format("rotor-3u");
  std::vector<float> in = random_floats(1, 128);
  const auto relative_error = [&](float row_norm) {
    const double factor = row_norm / norm(in);
    std::vector<float> x = in;
    for (float& value : x) value *= float(factor);
    const std::vector<float> out = decode(format, encode(format, x).row, 128);
    double error = 0;
    for (size_t i = 0; i < 128; ++i) error += std::pow(double(out[i]) - x[i], 2);
    return error / (row_norm * row_norm);
  };
  EXPECT_LT(relative_error(1), 0.05);
  EXPECT_GT(relative_error(11), 0.7) << "a row of a real model";
  EXPECT_GT(relative_error(0.01f), 0.7);
}

TEST(KvRotor3, EveryValueGoesToTheNearestLevel) {
  const KvFormat& format = **find_kv_format("rotor-3");
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> in = random_floats(seed, 128, seed % 2 ? Fill::outliers : Fill::normal);
    const std::vector<std::byte> row = encode(format, in).row;
    const double to_unit = std::sqrt(128.0) / norm(in);
    for (int k = 0; k < 128; ++k) {
      const double u = in[size_t(k)] * to_unit, distance = std::abs(u - kLevels[code_at(row, k)]);
      for (const double level : kLevels) ASSERT_LE(distance, std::abs(u - level) + 1e-5);
    }
  }
}

TEST(KvRotor3, MidpointsGoUp) {
  // The other seven values make the norm exactly sqrt(8), so u is the value itself: u^2 + 7 y^2 = 8, up to rounding
  // that a nudge of 1e-6 on both sides brackets; zero is an exact tie.
  const KvFormat& format = **find_kv_format("rotor-3");
  for (int i = 0; i < 7; ++i) {
    const double middle = (kLevels[i] + kLevels[i + 1]) / 2;
    for (const double nudge : {-2e-6, 2e-6}) {
      const double u = middle + nudge;
      std::vector<float> in(8, float(std::sqrt((8 - u * u) / 7)));
      in[3] = float(u);
      EXPECT_EQ(code_at(encode(format, in).row, 3), nudge < 0 ? i : i + 1) << "midpoint " << i << " nudge " << nudge;
    }
  }
  std::vector<float> in(8, 1.0f);
  in[5] = 0;
  EXPECT_EQ(code_at(encode(format, in).row, 5), 4);
  in[5] = -0.0f;
  EXPECT_EQ(code_at(encode(format, in).row, 5), 4);
}

TEST(KvRotor3, DecodedNormIsTheInputNormUpToTheScalesRounding) {
  const KvFormat& format = **find_kv_format("rotor-3");
  for (const int head_dim : {8, 64, 128, 256})
    for (const Fill kind : {Fill::normal, Fill::outliers})
      for (uint64_t seed = 0; seed < 100; ++seed) {
        const std::vector<float> in = random_floats(seed, head_dim, kind);
        const double ratio = norm(decode(format, encode(format, in).row, head_dim)) / norm(in);
        ASSERT_NEAR(ratio, 1, 0x1p-11 + 1e-6);
      }
}

TEST(KvRotor3, ErrorOnNormalDataIsLloydMaxs) {
  // 0.03455 for the codes. Keeping the norm instead of the least squares costs 1 % of it, a scale that fits the codes
  // of each row gains a little more.
  const KvFormat& format = **find_kv_format("rotor-3");
  double code_error = 0, row_error = 0, size = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const std::vector<float> in = random_floats(seed, 128);
    const std::vector<std::byte> row = encode(format, in).row;
    const std::vector<float> out = decode(format, row, 128);
    const double to_unit = std::sqrt(128.0) / norm(in);
    for (int k = 0; k < 128; ++k) {
      code_error += std::pow(in[size_t(k)] * to_unit - kLevels[code_at(row, k)], 2);
      row_error += std::pow(double(in[size_t(k)]) - out[size_t(k)], 2);
      size += double(in[size_t(k)]) * in[size_t(k)];
    }
  }
  EXPECT_NEAR(code_error / (2000 * 128), 0.03455, 0.0005);
  EXPECT_NEAR(row_error / size, 0.0342, 0.0008);
}

TEST(KvRotor3, ARowTooLargeForItsScaleIsCounted) {
  // Equal values all take level 0.756: the scale would be 65504 / 0.756.
  const Coded coded = encode(**find_kv_format("rotor-3"), std::vector<float>(64, 65504.0f));
  EXPECT_EQ(coded.saturated, 1);
}

/// <a, b> in the metric.
double product(const std::vector<float>& a, const std::vector<float>& metric, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j) sum += double(a[i]) * metric[i * b.size() + j] * b[j];
  return sum;
}

TEST(WeightedRows, EveryScaleRuleKeepsItsPromiseInTheMetric) {
  constexpr size_t kDim = 64;
  Rng rng(11);
  std::vector<float> metric(kDim * kDim, 0.0f), seen(kDim);
  for (int direction = 0; direction < 20; ++direction) {
    for (float& x : seen) x = float(rng.normal());
    for (size_t i = 0; i < kDim; ++i)
      for (size_t j = 0; j < kDim; ++j) metric[i * kDim + j] += seen[i] * seen[j] / 20;
  }
  for (size_t i = 0; i < kDim; ++i) metric[i * kDim + i] += 0.05f;
  for (const char* name : {"rotor-3", "rotor-4"}) {
    const KvFormat& format = *find_kv_format(name).or_throw();
    ASSERT_TRUE(format.can_weigh);
    for (const KvScale rule : format.scales) {
      std::vector<float> x(kDim), decoded(kDim), plain(kDim);
      for (float& value : x) value = float(3 * rng.normal());
      std::vector<std::byte> row(size_t(format.row_bytes(kDim)));
      const KvCoding coding{.scale = rule, .metric = metric.data()};
      EXPECT_EQ(format.encode(x.data(), kDim, coding, row.data()), 0);
      format.decode(row.data(), kDim, coding, decoded.data());
      const double xx = product(x, metric, x), xd = product(x, metric, decoded), dd = product(decoded, metric, decoded);
      const double bound = 2e-3 * xx;  // the scale is an fp16: 2^-11 of it, twice where it enters squared
      const auto [kept, of] = rule == KvScale::norm  ? std::pair(dd, xx)
                              : rule == KvScale::lsq ? std::pair(xd, dd)
                                                     : std::pair(xd, xx);
      EXPECT_NEAR(kept, of, bound) << name << ", scale " << scale_name(rule);
      EXPECT_EQ(format.encode(x.data(), kDim, {.scale = rule}, row.data()), 0);
      format.decode(row.data(), kDim, coding, plain.data());
      const auto error = [&](const std::vector<float>& y) {
        std::vector<float> e(kDim);
        for (size_t i = 0; i < kDim; ++i) e[i] = x[i] - y[i];
        return product(e, metric, e);
      };
      EXPECT_LT(error(decoded), 0.8 * error(plain)) << name << ": rounding by the metric must pay in it";
      // Rows that say nothing and rows that cannot be coded.
      const std::vector<float> zeros(kDim, 0.0f);
      EXPECT_EQ(format.encode(zeros.data(), kDim, coding, row.data()), 0);
      format.decode(row.data(), kDim, coding, decoded.data());
      EXPECT_EQ(decoded, zeros);
      x[3] = NAN, x[9] = INFINITY;
      EXPECT_GE(format.encode(x.data(), kDim, coding, row.data()), 2);
      format.decode(row.data(), kDim, coding, decoded.data());
      for (const float value : decoded) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

}  // namespace
}  // namespace ridge
