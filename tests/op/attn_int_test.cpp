// Attention that multiplies integers (AttentionVariant::rounds) against attention in double over the integers
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

std::vector<const AttentionVariant*> rounding_variants() {
  std::vector<const AttentionVariant*> found;
  for (const AttentionVariant& variant : attention_variants())
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

/// One position of a side as the kernel multiplies it.
struct IntRow {
  std::vector<double> values;
  IntRounding rounding;  ///< of its format; no steps: floats
};
IntRow row_of(const KvTiles& t, const KvSpan& span, int kv_head, int position, int n) {
  const bool exact = position < t.n_sinks || position >= t.retention.coded_end(n);
  const KvFormat& format = kv_formats()[size_t(exact ? t.recent : t.format)];
  const std::byte* const row = position < t.n_sinks ? nullptr
                               : exact              ? t.ring_row(span.slot, kv_head, position)
                                                    : t.coded_row(span.pages, kv_head, position);
  IntRow found;
  if (row) found.rounding = int_rounding(format, t.head_dim).value_or(IntRounding{});
  const KvCoding coding = t.coding(span.slot, kv_head);
  if (found.rounding.query_steps > 0 && format.name.starts_with("rotor-3")) {
    const double scale = format.head_scale ? coding.fixed : RotorRow<3>::row_scale(row, t.head_dim, coding);
    found.values = int_row<3>(row, t.head_dim, scale);
  } else if (found.rounding.query_steps > 0 && format.name == "rotor-4") {
    found.values = int_row<4>(row, t.head_dim, RotorRow<4>::row_scale(row, t.head_dim, coding));
  } else {
    std::vector<float> values(size_t(t.head_dim), 0.0f);
    read_cached_row(t, span, kv_head, position, n, values.data());
    found.values.assign(values.begin(), values.end());
  }
  return found;
}

/// One sequence, whose newest token asks.
struct IntProblem {
  AttnCase shape;
  TokenRows rows;
  Caches caches;
  KvSpan span;

  IntProblem(HeadLayout heads, int head_dim, int n_keys, const KvSideConfig& k, const KvSideConfig& v, uint64_t seed)
      : shape{heads, head_dim, n_keys},
        rows(shape, 1, seed),
        caches({.k = k, .v = v, .n_kv_heads = heads.n_kv_heads, .head_dim = head_dim, .rope = rope_of(head_dim, seed)},
               rows, seed) {}
  Attention ask() {
    CpuContext context(2);
    if (shape.n_keys > 1) caches.bring(context, {{Bring{0, shape.n_keys - 1}}});
    caches.bring(context, {{Bring{0, 1}}}, [&](std::span<const KvSpan> spans) { span = spans[0]; });
    return caches.problem({&span, 1});
  }
};

/// Every head against the reference: |error| of a head, root mean square over its values, within float's error and
/// three times the mean rounding of weights. A key's weight is off by its own rounding and what a neighbour passed on,
/// uniform in half a step each: a sixth of a squared step, times the square of its integers. Coming back from cache
/// space costs 22 u of the row and the centre, as in attention_test.cpp.
void expect_attention(const Attention& a, const KvSpan& span) {
  const int dim = a.k.head_dim, n = span.n_keys();
  const auto size = size_t(dim);
  const auto mean_square = [&](const auto& row) {
    double sum = 0;
    for (const double x : row) sum += x * x / dim;
    return sum;
  };
  for (int head = 0; head < a.n_heads; ++head) {
    const int kv_head = head / a.group();
    const float* const from = &a.q(span.first_row, int64_t(head) * dim);
    std::vector<float> q(from, from + dim);
    a.k.rotation.forward(q.data());
    float q_top = 0;
    for (const float x : q) q_top = std::max(q_top, std::abs(x));

    std::vector<double> weight, squares;
    std::vector<IntRow> values;
    double top = -INFINITY, total = 0, score_error = 0;
    for (int i = 0; i < n; ++i) {
      const IntRow key = row_of(a.k, span, kv_head, i, n);
      const auto steps = float(key.rounding.query_steps);
      const CentreScore of_centre(a.k, span.slot, kv_head, i, from);
      double dot = of_centre.score, magnitude = 2 * of_centre.size;
      for (size_t d = 0; d < size; ++d) {
        // The kernel's own float arithmetic up to the integer: a value between two steps must go the same way.
        const double x = steps > 0 ? double(std::nearbyint(q[d] * (steps / q_top))) * q_top / steps : double(q[d]);
        dot += x * key.values[d];
        magnitude += std::abs(x * key.values[d]);
      }
      weight.push_back(dot * a.scale);
      score_error = std::max(score_error, (dim + 8) * 0x1p-24 * magnitude * a.scale);
      top = std::max(top, weight.back());
      values.push_back(row_of(a.v, span, kv_head, i, n));
      squares.push_back(mean_square(values.back().values));
    }
    for (double& w : weight) total += w = std::exp(w - top);

    std::vector<double> out(size, 0.0), size_of(size, 0.0);
    double rounding = 0;
    for (int i = 0; i < n; ++i) {
      const IntRow& value = values[size_t(i)];
      const double square = squares[size_t(i)];
      for (size_t d = 0; d < size; ++d) {
        out[d] += weight[size_t(i)] / total * value.values[d];
        size_of[d] += weight[size_t(i)] / total * std::abs(value.values[d]);
      }
      if (value.rounding.weight_steps == 0) continue;
      // The step is of the largest weight of the tile, which lies within 64 keys of this one; scales differ by some.
      double largest = 0;
      for (int j = std::max(0, i - 63); j < std::min(n, i + 64); ++j)
        largest =
            std::max(largest, weight[size_t(j)] / total * std::sqrt(squares[size_t(j)] / std::max(square, 1e-30)));
      rounding += std::pow(largest / value.rounding.weight_steps, 2) * square / 6;
    }
    const double relative = 2 * (2 * score_error + 4 * 0x1p-24 * 87 + 1e-6) + 2 * (n + 8) * 0x1p-24;
    std::vector<float> expected(out.begin(), out.end()), centre(size, 0.0f);
    if (a.v.centre) centre.assign(a.v.centre_of(span.slot, kv_head), a.v.centre_of(span.slot, kv_head) + dim);
    a.v.rotation.backward(expected.data());
    for (size_t d = 0; d < size; ++d) expected[d] += centre[d];
    double error = 0;
    for (size_t d = 0; d < size; ++d)
      error += std::pow(a.out(span.first_row, head * dim + int64_t(d)) - double(expected[d]), 2) / dim;
    const double back = 22 * 0x1p-24 * (std::sqrt(mean_square(out)) + std::sqrt(mean_square(centre)));
    ASSERT_LE(std::sqrt(error), relative * std::sqrt(mean_square(size_of)) + 3 * std::sqrt(rounding) + back + 1e-30)
        << "head " << head;
  }
}

void expect_every_variant(IntProblem p) {
  const Attention a = p.ask();
  for (const AttentionVariant* variant : rounding_variants()) {
    CpuContext context(2);
    ASSERT_TRUE(variant->supports(a).ok);
    variant->run(context, a);
    SCOPED_TRACE(fmt::format("{} {} K {} V {}", variant->name, p.shape.name(), p.caches.k.layout.config.format->name,
                             p.caches.v.layout.config.format->name));
    expect_attention(a, p.span);
  }
}

TEST(AttnInt, EveryFormatOnEitherSideAtEveryHeadSize) {
  for (const int head_dim : {64, 128, 256})
    for (const char* name : kFormats)
      for (const KvSide side : kKvSides)
        expect_every_variant({{6, 2},
                              head_dim,
                              200,
                              side_of(kv(side == KvSide::k ? name : "f16")),
                              side_of(kv(side == KvSide::k ? "f16" : name)),
                              11});
}

TEST(AttnInt, EveryPairOfFormats) {
  for (const char* k : kFormats)
    for (const char* v : kFormats) expect_every_variant({{8, 2}, 64, 130, side_of(kv(k)), side_of(kv(v)), 12});
}

TEST(AttnInt, EveryNumberOfHeadsAGroup) {
  for (int group = 1; group <= 9; ++group)
    for (const char* name : {"q8_0", "i8r", "q4_0", "rotor-3"})
      expect_every_variant({{group, 1}, 64, 70, side_of(kv(name)), side_of(kv(name)), 13});
}

TEST(AttnInt, EveryLengthOfATile) {
  for (const int n_keys : {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129})
    for (const char* name : {"p8", "q4_0", "rotor-4", "rotor-3"})
      expect_every_variant({{3, 1}, 128, n_keys, side_of(kv(name)), side_of(kv(name)), 14});
}

TEST(AttnInt, RowsOfFloatsAndOfIntegersInOneCacheAroundItsBorders) {
  for (const char* recent : {"f16", "i8r"})
    for (const int n_keys : {40, 63, 64, 95, 96, 129, 160, 500, 513, 600}) {
      KvPolicy bare = kWindowPolicy, full = kFullPolicy;
      bare.recent = full.recent = recent;
      expect_every_variant({{12, 2}, 128, n_keys, side_of(kv("rotor-3"), full), side_of(kv("q4_0"), bare), 15});
      expect_every_variant({{2, 2}, 64, n_keys, side_of(kv("q8_0"), bare), side_of(kv("rotor-3s"), full), 16});
    }
}

TEST(AttnInt, OneKeyThatTakesAllLeavesTheOthersTheirWeight) {
  // The first key of every tile has e^8 times the weight of the others: they round to nothing one by one, and what
  // rounding takes must not be lost. Values are 1 everywhere, so the output is the sum of the weights.
  for (const char* name : {"q4_0", "rotor-3s", "q8_0"}) {
    const int n_keys = 640;
    IntProblem p({2, 1}, 64, n_keys, side_of(kv("q8_0")), side_of(kv(name)), 16);
    for (int i = 0; i < n_keys * 64; ++i) {
      p.rows.k[0][size_t(i)] = i % (64 * 64) == 0 ? 8.0f : 0.0f;
      p.rows.v[0][size_t(i)] = 1;
    }
    for (size_t i = 0; i < p.rows.q[0].size(); ++i) p.rows.q[0][i] = i % 64 == 0 ? 1.0f : 0.0f;
    p.caches.scale = 1;
    const Attention a = p.ask();
    std::vector<float> value(64);
    read_cached_row(a.v, p.span, 0, 5, n_keys, value.data());
    for (const AttentionVariant* variant : rounding_variants()) {
      CpuContext context(1);
      variant->run(context, a);
      // 10 keys of weight 1 and 630 of e^-8, 0.21 in all: without them the output would be 2 % low. Of 8 bits up to
      // half a step waits in each of 16 lanes at the end of each of two splits.
      for (const float x : p.caches.out())
        EXPECT_NEAR(x / value[0], 1, 2 * 16 * 0.5 / 255 / 10.21) << name << " " << variant->name;
    }
  }
}

TEST(AttnInt, ServesWhereThereAreIntegers) {
  for (const AttentionVariant* variant : rounding_variants()) {
    const auto serves = [&](const KvSideConfig& k, const KvSideConfig& v, int head_dim) {
      return variant->supports(AttentionProblem({k, v, 2, head_dim}, 8, 100).get());
    };
    for (const char* name : kFormats) {
      EXPECT_TRUE(serves(side_of(kv(name)), side_of(kv("f16")), 64).ok) << name;
      EXPECT_TRUE(serves(side_of(kv("f16")), side_of(kv(name)), 256).ok) << name;
      EXPECT_FALSE(serves(side_of(kv(name)), side_of(kv(name)), 96).ok) << name;
    }
    EXPECT_TRUE(serves(side_of(kv("f16")), side_of(kv("f32"), kWindowPolicy), 128).ok) << "a window of i8r";
    EXPECT_FALSE(serves(side_of(kv("f16")), side_of(kv("bf16")), 128).ok);
    const Support none = serves(side_of(kv("rotor-3u")), side_of(kv("f32")), 128);
    EXPECT_NE(none.why_not.find("head_dim 128"), std::string::npos);
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
