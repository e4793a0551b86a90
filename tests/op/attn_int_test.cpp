// Decode attention that multiplies integers (AttnDecodeVariant::rounds) against attention in double over the integers
// it is said to use: queries in their steps, levels of rotor formats as IntLevels has them. What is left is the
// rounding of weights, which is bounded by its mean square, and float's.
#include <gtest/gtest.h>

#include <cmath>

#include "cases/attn_data.h"
#include "format/kv_rotor.h"
#include "op/cache/levels.h"

namespace ridge {
namespace {

constexpr const char* kFormats[] = {"q8_0", "p8", "i8r", "q4_0", "rotor-4", "rotor-3", "rotor-3s"};
const KvFormat& kv(const char* name) { return **find_kv_format(name); }

std::vector<const AttnDecodeVariant*> rounding_variants() {
  std::vector<const AttnDecodeVariant*> found;
  for (const AttnDecodeVariant& variant : attn_decode_variants())
    if (variant.rounds && variant.isa <= detect_isa()) found.push_back(&variant);
  return found;
}

/// Row i of a packed format with the integers for its levels.
template <int kBits>
std::vector<double> int_row(const std::byte* row, int head_dim, double scale) {
  std::vector<double> values;
  for (int d = 0; d < head_dim; ++d) {
    int code = 0;
    for (int b = 0; b < kBits; ++b) {
      const int at = kBits * d + b;
      code |= int(row[at / 8] >> (at % 8) & std::byte(1)) << b;
    }
    values.push_back(IntLevels<kBits>::of(code) * double(IntLevels<kBits>::kUnit) * scale);
  }
  return values;
}

/// One position of a side as the kernel multiplies it, and the largest scale of its blocks.
struct IntRow {
  std::vector<double> values;
  IntRounding rounding;  ///< of its format; no steps: floats
};
IntRow row_of(const KvSide& side, int kv_head, int position, int head_dim) {
  for (int s = 0; s < side.n_segments; ++s) {
    const KvSegment& segment = side.segments[size_t(s)];
    if (position >= segment.first + segment.count) continue;
    const std::byte* row =
        segment.rows + kv_head * segment.head_stride + (position - segment.first) * segment.row_bytes;
    const KvFormat& format = *segment.format;
    IntRow found{{}, int_rounding(format, head_dim).value_or(IntRounding{})};
    const bool fixed = format.head_scale;
    const KvCoding coding = segment.coding(kv_head);
    if (found.rounding.query_steps > 0 && format.name.starts_with("rotor-3")) {
      found.values = int_row<3>(row, head_dim, fixed ? coding.fixed : RotorRow<3>::row_scale(row, head_dim, coding));
    } else if (found.rounding.query_steps > 0 && format.name == "rotor-4") {
      found.values = int_row<4>(row, head_dim, RotorRow<4>::row_scale(row, head_dim, coding));
    } else {
      std::vector<float> values(size_t(head_dim), 0.0f);
      format.decode(row, head_dim, coding, values.data());
      found.values.assign(values.begin(), values.end());
    }
    return found;
  }
  ADD_FAILURE() << "no segment has position " << position;
  return {};
}

struct Problem {
  HeadLayout heads;
  int head_dim, n_keys;
  CachedSide k, v;
  std::vector<float> q;
  float scale;

  Problem(HeadLayout h, int dim, int n, uint64_t seed, double spread = 1)
      : heads(h),
        head_dim(dim),
        n_keys(n),
        k(h.n_kv_heads, n, dim, seed, spread),
        v(h.n_kv_heads, n, dim, seed + 1),
        q(random_floats(seed + 2, h.n_heads * dim)),
        scale(float(1 / std::sqrt(double(dim)))) {}

  AttnDecode args(float* out, int split = 0) const {
    AttnDecode a;
    a.n_heads = heads.n_heads, a.n_kv_heads = heads.n_kv_heads, a.head_dim = head_dim, a.n_keys = n_keys;
    a.scale = scale, a.q = q.data(), a.k = k.side(), a.v = v.side(), a.out = out, a.split = split;
    return a;
  }
  int64_t size() const { return int64_t(heads.n_heads) * head_dim; }
};

/// Every head against the reference: |error| of a head, root mean square over its values, within float's error and
/// three times the mean rounding of weights. A key's weight is off by its own rounding and what a neighbour passed on,
/// uniform in half a step each: a sixth of a squared step, times the square of its integers.
void expect_attention(const std::vector<float>& actual, const Problem& p) {
  const auto size = size_t(p.head_dim);
  for (int head = 0; head < p.heads.n_heads; ++head) {
    const int kv_head = head / (p.heads.n_heads / p.heads.n_kv_heads);
    const float* q = &p.q[size_t(head) * size];
    float q_top = 0;
    for (size_t d = 0; d < size; ++d) q_top = std::max(q_top, std::abs(q[d]));

    std::vector<double> weight;
    std::vector<IntRow> values;
    double top = -INFINITY, total = 0, score_error = 0;
    for (int i = 0; i < p.n_keys; ++i) {
      const IntRow key = row_of(p.k.side(), kv_head, i, p.head_dim);
      const auto steps = float(key.rounding.query_steps);
      double dot = 0, magnitude = 0;
      for (size_t d = 0; d < size; ++d) {
        // The kernel's own float arithmetic up to the integer: a value between two steps must go the same way.
        const double x = steps > 0 ? double(std::nearbyint(q[d] * (steps / q_top))) * q_top / steps : double(q[d]);
        dot += x * key.values[d];
        magnitude += std::abs(x * key.values[d]);
      }
      weight.push_back(dot * p.scale);
      score_error = std::max(score_error, (p.head_dim + 8) * 0x1p-24 * magnitude * p.scale);
      top = std::max(top, weight.back());
      values.push_back(row_of(p.v.side(), kv_head, i, p.head_dim));
    }
    for (double& w : weight) total += w = std::exp(w - top);

    std::vector<double> out(size, 0.0), size_of(size, 0.0);
    double rounding = 0;
    for (int i = 0; i < p.n_keys; ++i) {
      const IntRow& value = values[size_t(i)];
      double square = 0, largest = 0;
      for (size_t d = 0; d < size; ++d) {
        out[d] += weight[size_t(i)] / total * value.values[d];
        size_of[d] += weight[size_t(i)] / total * std::abs(value.values[d]);
        square += value.values[d] * value.values[d] / double(size);
      }
      if (value.rounding.weight_steps == 0) continue;
      // The step is of the largest weight of the tile, which lies within 64 keys of this one; scales differ by some.
      for (int j = std::max(0, i - 63); j < std::min(p.n_keys, i + 64); ++j) {
        double other = 0;
        for (const double x : values[size_t(j)].values) other += x * x / double(size);
        largest = std::max(largest, weight[size_t(j)] / total * std::sqrt(other / std::max(square, 1e-30)));
      }
      rounding += std::pow(largest / value.rounding.weight_steps, 2) * square / 6;
    }
    const double relative = 2 * (2 * score_error + 4 * 0x1p-24 * 87 + 1e-6) + 2 * (p.n_keys + 8) * 0x1p-24;
    double error = 0, bound = 0;
    for (size_t d = 0; d < size; ++d) {
      error += std::pow(actual[size_t(head) * size + d] - out[d], 2) / double(size);
      bound += std::pow(relative * size_of[d], 2) / double(size);
    }
    ASSERT_LE(std::sqrt(error), std::sqrt(bound) + 3 * std::sqrt(rounding) + 1e-30) << "head " << head;
  }
}

void expect_every_variant(const Problem& p, int split = 0) {
  for (const AttnDecodeVariant* variant : rounding_variants()) {
    CpuContext context(2);
    Guarded<float> out(p.size(), 1);
    ASSERT_TRUE(variant->supports(p.args(out.data())).ok);
    variant->run(context, p.args(out.data(), split));
    ASSERT_TRUE(out.intact()) << "wrote outside the output";
    SCOPED_TRACE(fmt::format("{} split {}", variant->name, split));
    expect_attention({out.begin(), out.end()}, p);
  }
}

TEST(AttnInt, EveryFormatOnEitherSideAtEveryHeadSize) {
  for (const int head_dim : {64, 128, 256})
    for (const char* name : kFormats)
      for (const bool is_k : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {} head_dim {}", is_k ? "K" : "V", name, head_dim));
        Problem p({6, 2}, head_dim, 200, 11);
        p.k.add(kv(is_k ? name : "f16"), 0, 200);
        p.v.add(kv(is_k ? "f16" : name), 0, 200);
        expect_every_variant(p);
      }
}

TEST(AttnInt, EveryPairOfFormats) {
  for (const char* k : kFormats)
    for (const char* v : kFormats) {
      SCOPED_TRACE(fmt::format("K {} V {}", k, v));
      Problem p({8, 2}, 64, 130, 12);
      p.k.add(kv(k), 0, 130);
      p.v.add(kv(v), 0, 130);
      expect_every_variant(p);
    }
}

TEST(AttnInt, EveryNumberOfHeadsAGroup) {
  for (int group = 1; group <= 9; ++group)
    for (const char* name : {"q8_0", "i8r", "q4_0", "rotor-3"}) {
      SCOPED_TRACE(fmt::format("{} {} heads", name, group));
      Problem p({group, 1}, 64, 70, 13);
      p.k.add(kv(name), 0, 70);
      p.v.add(kv(name), 0, 70);
      expect_every_variant(p);
    }
}

TEST(AttnInt, EveryLengthOfATile) {
  for (const int n_keys : {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129})
    for (const char* name : {"p8", "q4_0", "rotor-4", "rotor-3"}) {
      SCOPED_TRACE(fmt::format("{} {} keys", name, n_keys));
      Problem p({3, 1}, 128, n_keys, 14);
      p.k.add(kv(name), 0, n_keys);
      p.v.add(kv(name), 0, n_keys);
      expect_every_variant(p);
    }
}

TEST(AttnInt, SegmentsOfFloatsAndOfIntegersInOneCacheAtEverySplit) {
  for (const char* recent : {"f16", "i8r"})
    for (const int split : {1, 32, 64, 96, 1000, 0}) {
      SCOPED_TRACE(recent);
      Problem p({12, 2}, 128, 500, 15);
      add_cache_like_segments(p.k, kv("rotor-3"), 500, recent);
      add_cache_like_segments(p.v, kv("q4_0"), 500, recent);
      expect_every_variant(p, split);
    }
}

TEST(AttnInt, OneKeyThatTakesAllLeavesTheOthersTheirWeight) {
  // The first key of every tile has e^8 times the weight of the others: they round to nothing one by one, and what
  // rounding takes must not be lost. Values are 1 everywhere, so the output is the sum of the weights.
  for (const char* name : {"q4_0", "rotor-3s", "q8_0"}) {
    const int n_keys = 640;
    Problem p({2, 1}, 64, n_keys, 16);
    for (int i = 0; i < n_keys; ++i)
      for (int d = 0; d < 64; ++d) {
        p.k.row(0, i)[d] = i % 64 == 0 && d == 0 ? 8.0f : 0.0f;
        p.v.row(0, i)[d] = 1;
      }
    for (size_t i = 0; i < p.q.size(); ++i) p.q[i] = i % 64 == 0 ? 1.0f : 0.0f;
    p.scale = 1;
    p.k.add(kv("q8_0"), 0, n_keys);
    p.v.add(kv(name), 0, n_keys);
    for (const AttnDecodeVariant* variant : rounding_variants()) {
      CpuContext context(1);
      std::vector<float> out(size_t(p.size()), NAN);
      variant->run(context, p.args(out.data(), n_keys));
      // 10 keys of weight 1 and 630 of e^-8, 0.21 in all: without them the output would be 2 % low.
      for (const float x : out) EXPECT_NEAR(x / p.v.row(0, 5)[0], 1, 0.003) << name << " " << variant->name;
    }
  }
}

TEST(AttnInt, AValueThatIsNoNumberStaysInItsHead) {
  Problem p({4, 2}, 128, 90, 17);
  p.k.add(kv("rotor-3"), 0, 90);
  p.v.add(kv("q4_0"), 0, 90);
  p.q[2 * 128 + 7] = NAN;
  for (const AttnDecodeVariant* variant : rounding_variants()) {
    CpuContext context(2);
    std::vector<float> out(size_t(p.size()), 0.0f);
    variant->run(context, p.args(out.data()));
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i / 128 == 2) << "element " << i;
  }
}

TEST(AttnInt, ServesWhereThereAreIntegers) {
  for (const AttnDecodeVariant* variant : rounding_variants()) {
    AttnDecode a;
    const auto served = [&](const char* k, const char* v, int head_dim) {
      a.head_dim = head_dim;
      a.k = kv_side_without_rows(kv(k), head_dim, 8), a.v = kv_side_without_rows(kv(v), head_dim, 8);
      return variant->supports(a).ok;
    };
    for (const char* name : kFormats) {
      EXPECT_TRUE(served(name, "f16", 64)) << name;
      EXPECT_TRUE(served("f16", name, 256)) << name;
      EXPECT_FALSE(served(name, name, 96)) << name;
    }
    EXPECT_FALSE(served("f16", "bf16", 128));
    EXPECT_FALSE(served("rotor-3u", "f32", 128));
    EXPECT_NE(variant->supports(a).why_not.find("head_dim 128"), std::string::npos);
  }
}

TEST(IntLevels, AreAsNearAsTheySay) {
  const auto error = [](const auto& levels, auto of, double unit) {
    double sum = 0;
    const auto below = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
    for (int code = 0; code < levels.kCount; ++code) {
      const double low = code == 0 ? -40 : 0.5 * (levels.at[code] + levels.at[code - 1]);
      const double high = code + 1 == levels.kCount ? 40 : 0.5 * (levels.at[code] + levels.at[code + 1]);
      sum += (below(high) - below(low)) * std::pow(levels.at[code] - of(code) * unit, 2);
    }
    return std::sqrt(sum);
  };
  EXPECT_NEAR(error(LloydMax<3>::kLevels, IntLevels<3>::of, IntLevels<3>::kUnit), IntLevels<3>::kError, 2e-5);
  EXPECT_NEAR(error(LloydMax<4>::kLevels, IntLevels<4>::of, IntLevels<4>::kUnit), IntLevels<4>::kError, 2e-5);
}

}  // namespace
}  // namespace ridge
