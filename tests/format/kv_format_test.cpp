// KV cache formats: what every row of the table must do, then each format against its definition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
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

Coded encode(const KvFormat& format, std::span<const float> in) {
  Guarded<std::byte> row(format.row_bytes(int(in.size())), 1);
  const int saturated = format.encode(in.data(), int(in.size()), row.data());
  EXPECT_TRUE(row.intact()) << "wrote outside its row";
  return {{row.begin(), row.end()}, saturated};
}

std::vector<float> decode(const KvFormat& format, std::span<const std::byte> row, int head_dim) {
  Guarded<float> out(head_dim, 1);
  format.decode(row.data(), head_dim, out.data());
  EXPECT_TRUE(out.intact()) << "wrote outside its output";
  return {out.begin(), out.end()};
}

double norm(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += double(value) * value;
  return std::sqrt(sum);
}

class EveryKvFormat : public testing::TestWithParam<const KvFormat*> {
 protected:
  template <class Body>
  void for_each_head_dim(const Body& body) {
    for (const int head_dim : kHeadDims)
      if (head_dim % format_.group == 0) body(head_dim);
  }
  const KvFormat& format_ = *GetParam();
};
INSTANTIATE_TEST_SUITE_P(Formats, EveryKvFormat, testing::ValuesIn([] {
                           std::vector<const KvFormat*> formats;
                           for (const KvFormat& format : kv_formats()) formats.push_back(&format);
                           return formats;
                         }()),
                         [](const auto& test) {
                           std::string name(test.param->name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryKvFormat, IsFoundByName) { EXPECT_EQ(find_kv_format(format_.name).value(), &format_); }

TEST_P(EveryKvFormat, PolicyKeepsWholeTilesExact) {
  EXPECT_GE(format_.policy.window, 0);
  EXPECT_GE(format_.policy.sinks, 0);
  EXPECT_EQ(format_.policy.window % 32, 0);
}

TEST_P(EveryKvFormat, NormalRowsAreNotCountedAndZeroRowsStayZero) {
  for_each_head_dim([&](int head_dim) {
    EXPECT_EQ(encode(format_, random_floats(1, head_dim)).saturated, 0);
    for (const float zero : {0.0f, -0.0f}) {
      const Coded coded = encode(format_, std::vector<float>(size_t(head_dim), zero));
      EXPECT_EQ(coded.saturated, 0);
      EXPECT_THAT(decode(format_, coded.row, head_dim), testing::Each(0.0f));
    }
  });
}

TEST_P(EveryKvFormat, CodingADecodedNormalRowKeepsItUpToTheScale) {
  for_each_head_dim([&](int head_dim) {
    if (head_dim < 64) return;  // short rows of few levels may move to other codes when their norm is matched again
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<float> once = decode(format_, encode(format_, random_floats(seed, head_dim)).row, head_dim);
      const std::vector<float> twice = decode(format_, encode(format_, once).row, head_dim);
      for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], once[i], std::abs(once[i]) * 0x1p-10) << head_dim;
    }
  });
}

TEST_P(EveryKvFormat, ErrorOnNormalRowsFitsItsBits) {
  double error = 0, size = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> in = random_floats(seed, 128), out = decode(format_, encode(format_, in).row, 128);
    for (size_t i = 0; i < 128; ++i) error += std::pow(double(out[i]) - in[i], 2), size += double(in[i]) * in[i];
  }
  EXPECT_LE(error / size, 4 * std::pow(0.25, std::min(8.0, std::floor(format_.bits_per_value(128)))));
}

TEST_P(EveryKvFormat, NanAndInfinityAreReplacedAndCounted) {
  for_each_head_dim([&](int head_dim) {
    for (int at = 0; at < head_dim; at += std::max(1, head_dim / 9))
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(), 1e30f, -70000.0f}) {
        std::vector<float> in = random_floats(3, head_dim);
        in[size_t(at)] = bad;
        const Coded coded = encode(format_, in);
        const std::vector<float> out = decode(format_, coded.row, head_dim);
        const bool kept = std::isfinite(bad) && out[size_t(at)] == bad;  // f32 holds what fp16 does not
        ASSERT_NE(coded.saturated > 0, kept) << bad;
        for (const float value : out) ASSERT_TRUE(std::isfinite(value)) << bad << " at " << at;
        if (std::isnan(bad)) ASSERT_LE(std::abs(out[size_t(at)]), 0.5f) << "NaN is coded as zero";
        else ASSERT_GE(out[size_t(at)] * std::copysign(1.0f, bad), 0.0f) << "infinity does not change its sign";
      }
    EXPECT_EQ(encode(format_, std::vector<float>(size_t(head_dim), NAN)).saturated, head_dim);
    EXPECT_THAT(decode(format_, encode(format_, std::vector<float>(size_t(head_dim), NAN)).row, head_dim),
                testing::Each(0.0f));
  });
}

TEST_P(EveryKvFormat, RowsOfTheLargestValuesStayFinite) {
  for_each_head_dim([&](int head_dim) {
    for (const float value : {65504.0f, -65504.0f, 65519.0f}) {
      const std::vector<float> out =
          decode(format_, encode(format_, std::vector<float>(size_t(head_dim), value)).row, head_dim);
      for (const float x : out) ASSERT_NEAR(x / value, 1, 0.3);
    }
  });
}

TEST_P(EveryKvFormat, TinyRowsStayFiniteAndNearZero) {
  for_each_head_dim([&](int head_dim) {
    for (const float top : {1e-5f, 1e-7f, 1e-8f, 1e-30f, 1e-38f, 1e-40f, 1.4e-45f}) {
      std::vector<float> in = random_floats(4, head_dim);
      for (float& x : in) x *= top / 4;
      const std::vector<float> out = decode(format_, encode(format_, in).row, head_dim);
      for (size_t i = 0; i < in.size(); ++i) ASSERT_LE(std::abs(out[i] - in[i]), 2 * top + 127 * 0x1p-25) << top;
    }
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
  const std::pair<std::string_view, double> published[] = {{"f16", 16}, {"q8_0", 8.5}, {"rotor-3", 3.125}};
  for (const auto& [name, bits] : published) EXPECT_EQ((*find_kv_format(name))->bits_per_value(128), bits) << name;
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

// rotor-3, from its definition: 8 levels, code k of a row in bits 3k .. 3k+2 of the row read as a little-endian number,
// then an fp16 scale.
constexpr double kLevels[8] = {-2.1519143, -1.3439092, -0.7560054, -0.2451275,
                               0.2451275,  0.7560054,  1.3439092,  2.1519143};

int code_at(std::span<const std::byte> row, int k) {
  int code = 0;
  for (int bit = 0; bit < 3; ++bit) {
    const int at = 3 * k + bit;
    code |= (std::to_integer<int>(row[size_t(at / 8)]) >> (at % 8) & 1) << bit;
  }
  return code;
}

TEST(KvRotor3, LevelsAreTheLloydMaxQuantiserOfANormal) {
  // Each level is the mean of a standard normal between the midpoints to its neighbours. The published levels are
  // within 3e-5 of that; the error they leave is flat there.
  const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); };
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  for (int i = 0; i < 8; ++i) {
    const double low = i == 0 ? -40 : (kLevels[i - 1] + kLevels[i]) / 2,
                 high = i == 7 ? 40 : (kLevels[i] + kLevels[i + 1]) / 2;
    EXPECT_NEAR((density(low) - density(high)) / (below(high) - below(low)), kLevels[i], 3e-5) << i;
  }
}

TEST(KvRotor3, EveryCodeAtEveryPlaceDecodesToItsDefinition) {
  const KvFormat& format = **find_kv_format("rotor-3");
  for (const int head_dim : {8, 16, 80, 128})
    for (const uint16_t scale : kF16Classes)
      for (int place = 0; place < head_dim; ++place)
        for (int code = 0; code < 8; ++code)
          for (const int others : {0, 5, 7}) {
            std::vector<std::byte> row(size_t(3 * head_dim / 8 + 2));
            for (int k = 0; k < head_dim; ++k)
              for (int bit = 0; bit < 3; ++bit)
                if ((k == place ? code : others) >> bit & 1)
                  row[size_t((3 * k + bit) / 8)] |= std::byte(1 << (3 * k + bit) % 8);
            row[size_t(3 * head_dim / 8)] = std::byte(scale & 255);
            row[size_t(3 * head_dim / 8 + 1)] = std::byte(scale >> 8);
            const std::vector<float> out = decode(format, row, head_dim);
            for (int k = 0; k < head_dim; ++k)
              ASSERT_EQ(out[size_t(k)], float(kLevels[k == place ? code : others]) * f16_to_f32(scale))
                  << place << " " << code;
          }
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

}  // namespace
}  // namespace ridge
