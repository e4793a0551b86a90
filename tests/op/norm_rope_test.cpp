// The element-wise ops against the formulas in double.
#include <gtest/gtest.h>

#include <cmath>

#include "cases/guarded.h"
#include "op/norm_rope/norm_rope.h"

namespace ridge {
namespace {

constexpr double kRounding = 0x1p-24;

template <class Body>
void for_each_runnable(const Body& body) {
  for (const NormRopeVariant& variant : norm_rope_variants())
    if (variant.isa <= detect_isa() && variant.supports().ok) {
      SCOPED_TRACE(variant.name);
      body(variant);
    }
}

TEST(RmsNorm, EveryKernelIsWithinTheBoundOfItsSum) {
  // n squares summed in any order: (n + 1) u relative, halved by the root; three roundings after it.
  for_each_runnable([](const NormRopeVariant& variant) {
    for (const int n : {1, 7, 8, 15, 16, 17, 64, 100, 896, 1537})
      for (const Fill kind : kFills)
        for (const float eps : {1e-5f, 1e-6f}) {
          const std::vector<float> x = random_floats(uint64_t(n), n, kind), weight = random_floats(uint64_t(n) + 1, n);
          Guarded<float> in(n, 1, x), scale(n, 3, weight), out(n, 1);
          variant.rms_norm(in.data(), scale.data(), eps, n, out.data());
          ASSERT_TRUE(out.intact());
          double sum = 0;
          for (const float value : x) sum += double(value) * value;
          const double root = std::sqrt(sum / n + eps);
          for (int i = 0; i < n; ++i) {
            const double expected = x[size_t(i)] / root * weight[size_t(i)];
            ASSERT_LE(std::abs(out[i] - expected), ((n + 1) / 2.0 + 6) * kRounding * std::abs(expected) + 1e-44)
                << "n " << n << " " << fill_name(kind) << " element " << i;
          }
        }
  });
}

TEST(RmsNorm, WorksInPlaceAndOnEveryRow) {
  CpuContext context(2);
  GuardedMatrix x(5, 20);
  const std::vector<float> values = random_floats(1, 100), weight(20, 1.0f);
  for (int t = 0; t < 5; ++t) std::copy_n(&values[size_t(t * 20)], 20, &x.view()(t, 0));
  rms_norm(context, x.view(), weight.data(), 1e-6f, x.view());
  EXPECT_TRUE(x.intact());
  for (int t = 0; t < 5; ++t) {
    double sum = 0;
    for (const float value : x.view().row(t)) sum += double(value) * value;
    EXPECT_NEAR(sum / 20, 1, 1e-5) << "row " << t;
  }
}

TEST(SoftCap, IsTheTangentTimesTheCapInEveryBlockOfARow) {
  CpuContext context(2);
  constexpr int kColumns = 4096 + 37;  // a thread takes 4096
  std::vector<float> x = random_floats(5, 2 * kColumns);
  for (float& value : x) value *= 40;
  x[7] = -INFINITY;
  x[8] = NAN;
  const std::vector<float> before = x;
  soft_cap(context, View2<float>(x.data(), 2, kColumns), 12);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 12 * std::tanh(double(before[i]) / 12);
    if (std::isnan(expected)) EXPECT_TRUE(std::isnan(x[i]));
    else EXPECT_NEAR(x[i], expected, 12 * 4 * kRounding) << i;  // a division, the tangent within two units, a product
  }
}

TEST(Relu2, SquaresWhatIsAboveZero) {
  CpuContext context(2);
  std::vector<float> x = random_floats(6, 3 * 37);
  x[1] = NAN;
  const std::vector<float> before = x;
  relu2(context, View2<float>(x.data(), 3, 37));
  EXPECT_TRUE(std::isnan(x[1]));
  for (size_t i = 2; i < x.size(); ++i) EXPECT_EQ(x[i], before[i] > 0 ? before[i] * before[i] : 0) << i;
}

TEST(TakeMeanOff, LeavesRowsWithAMeanOfZeroAlsoInPlace) {
  CpuContext context(2);
  std::vector<float> x = random_floats(3, 3 * 37), y(x.size(), 7.0f);
  for (float& value : std::span(x).subspan(37, 37)) value += 1000;
  const std::vector<float> before = x;
  take_mean_off(context, View2<const float>(x.data(), 3, 37), View2<float>(y.data(), 3, 37));
  for (int64_t t = 0; t < 3; ++t) {
    double mean = 0;
    for (int64_t i = 0; i < 37; ++i) mean += double(before[size_t(37 * t + i)]) / 37;
    for (int64_t i = 0; i < 37; ++i)
      EXPECT_NEAR(y[size_t(37 * t + i)], before[size_t(37 * t + i)] - mean, 1100 * 2 * kRounding) << t << " " << i;
  }
  take_mean_off(context, View2<const float>(x.data(), 3, 37), View2<float>(x.data(), 3, 37));
  EXPECT_EQ(x, y);
}

TEST(Swiglu, EveryKernelIsCloseFromMinus100To100) {
  // exp is within 1.5e-7; addition, division and product round once each.
  for_each_runnable([](const NormRopeVariant& variant) {
    for (const int n : {1, 7, 8, 15, 16, 17, 33, 4001}) {
      std::vector<float> gate(size_t(n), 0.0f), up = random_floats(2, n);
      for (int i = 0; i < n; ++i) gate[size_t(i)] = n == 1 ? 3.0f : float(-100 + 200.0 * i / (n - 1));
      Guarded<float> out(n, 1, gate), in(n, 3, up);
      variant.swiglu(out.data(), in.data(), n);
      ASSERT_TRUE(out.intact() && in.intact());
      for (int i = 0; i < n; ++i) {
        const double g = gate[size_t(i)], expected = g / (1 + std::exp(-g)) * up[size_t(i)];
        // Below -87 the exponential stands still: silu is at most 100 e^-87 off, which is less than any normal weight
        // sees.
        ASSERT_LE(std::abs(out[i] - expected),
                  (1.5e-7 + 4 * kRounding) * std::abs(expected) + 2e-36 * std::abs(up[size_t(i)]))
            << "n " << n << " gate " << g << " up " << up[size_t(i)];
      }
    }
  });
}

TEST(Swiglu, NanStaysNan) {
  for_each_runnable([](const NormRopeVariant& variant) {
    for (int at = 0; at < 17; ++at) {
      std::vector<float> gate = random_floats(1, 17), up = random_floats(2, 17);
      gate[size_t(at)] = NAN;
      variant.swiglu(gate.data(), up.data(), 17);
      for (int i = 0; i < 17; ++i) ASSERT_EQ(std::isnan(gate[size_t(i)]), i == at);
    }
  });
}

Rope test_rope(RopePairs pairs, int rope_dim, float magnitude) {
  Rope rope{.pairs = pairs, .frequency = {}, .magnitude = magnitude};
  for (int i = 0; i < rope_dim / 2; ++i) rope.frequency.push_back(float(std::pow(10000.0, -2.0 * i / rope_dim)));
  return rope;
}

TEST(ApplyRope, TurnsEveryPairByItsAngle) {
  constexpr int kHeads = 3, kTokens = 4;
  CpuContext context(2);
  for (const RopePairs pairs : {RopePairs::interleaved, RopePairs::halves})
    for (const auto& [head_dim, rope_dim] : {std::pair(64, 64), std::pair(64, 32), std::pair(80, 80), std::pair(8, 2)})
      for (const int first : {0, 7, 131000})
        for (const float magnitude : {1.0f, 1.1386f}) {
          const Rope rope = test_rope(pairs, rope_dim, magnitude);
          const std::vector<float> before = random_floats(4, int64_t(kTokens) * kHeads * head_dim);
          GuardedMatrix x(kTokens, kHeads * head_dim);
          for (int t = 0; t < kTokens; ++t)
            std::copy_n(&before[size_t(t * kHeads * head_dim)], kHeads * head_dim, &x.view()(t, 0));
          std::vector<int32_t> positions;  // as sequences of a step bring them: in any order
          for (int t = 0; t < kTokens; ++t) positions.push_back(first + 5 * (kTokens - t));
          apply_rope(context, RopeAngles(context, rope, positions), head_dim, x.view());
          ASSERT_TRUE(x.intact());
          for (int t = 0; t < kTokens; ++t)
            for (int h = 0; h < kHeads; ++h)
              for (int i = 0; i < head_dim; ++i) {
                const float* in = &before[size_t((t * kHeads + h) * head_dim)];
                const float out = x.view()(t, h * head_dim + i);
                if (i >= rope_dim) {
                  ASSERT_EQ(out, in[i]) << "element past rope_dim";
                  continue;
                }
                const bool halves = pairs == RopePairs::halves;
                const int pair = halves ? i % (rope_dim / 2) : i / 2;
                const bool second = halves ? i >= rope_dim / 2 : i % 2 == 1;
                const double a = halves ? in[pair] : in[2 * pair],
                             b = halves ? in[pair + rope_dim / 2] : in[2 * pair + 1];
                const double angle = double(positions[size_t(t)]) * rope.frequency[size_t(pair)];
                const double expected = magnitude * (second ? a * std::sin(angle) + b * std::cos(angle)
                                                            : a * std::cos(angle) - b * std::sin(angle));
                // cos, its scaling, two products and a sum: five roundings on each term.
                ASSERT_LE(std::abs(out - expected), 5 * kRounding * magnitude * (std::abs(a) + std::abs(b)))
                    << "token " << t << " head " << h << " element " << i;
              }
        }
}

TEST(ApplyRope, ScoresDependOnTheDistanceOnly) {
  CpuContext context(1);
  const Rope rope = test_rope(RopePairs::halves, 64, 1);
  const auto score = [&](int query_at, int key_at) {
    std::vector<float> q = random_floats(1, 64), k = random_floats(2, 64);
    const int32_t positions[] = {query_at, key_at};
    const RopeAngles of_query(context, rope, {positions, 1}), of_key(context, rope, {positions + 1, 1});
    apply_rope(context, of_query, 64, {q.data(), 1, 64});
    apply_rope(context, of_key, 64, {k.data(), 1, 64});
    double dot = 0;
    for (size_t i = 0; i < 64; ++i) dot += double(q[i]) * k[i];
    return dot;
  };
  EXPECT_NEAR(score(9, 4), score(1005, 1000), 1e-4);
  EXPECT_GT(std::abs(score(9, 4) - score(9, 8)), 1e-2);
}

TEST(RmsNorm, ARowIsTheSameBitsAloneAndAmongOthers) {
  CpuContext one(1), three(3);
  const std::vector<float> values = random_floats(1, 40 * 96), weight = random_floats(2, 96);
  std::vector<float> all(values.size()), alone(96);
  rms_norm(three, {values.data(), 40, 96}, weight.data(), 1e-6f, {all.data(), 40, 96});
  for (size_t t = 0; t < 40; ++t) {
    rms_norm(one, {&values[t * 96], 1, 96}, weight.data(), 1e-6f, {alone.data(), 1, 96});
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + int64_t(t * 96))) << "row " << t;
  }
}

/// The largest |error| of a gated activation against its formula in double, relative to max(1, |g u|): roundings of a
/// factor between 0 and 1 are multiplied by both.
double glu_error(void (*glu)(CpuContext&, View2<float>, View2<const float>), double (*formula)(double g, double u)) {
  CpuContext context(2);
  std::vector<float> gate, up;
  for (int i = -300; i <= 300; ++i)
    for (const float u : {-30.0f, -7.5f, -1.0f, 0.0f, 0.3f, 6.9f, 8.0f})
      gate.push_back(0.1f * float(i)), up.push_back(u);
  const std::vector<float> from = gate;
  const int64_t n = ssize(gate);
  glu(context, View2<float>(gate.data(), 7, n / 7), View2<const float>(up.data(), 7, n / 7));
  double worst = 0;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = formula(from[i], up[i]);
    worst = std::max(worst, std::abs(gate[i] - expected) / std::max(1.0, std::abs(double(from[i]) * up[i])));
  }
  return worst;
}

TEST(GatedActivations, GeluByItsTanhForm) {
  EXPECT_LT(glu_error(gelu_glu,
                      [](double g, double u) {
                        return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
                      }),
            1e-6);
}

TEST(GatedActivations, EveryGeluKernelIsTheFormulaAndKeepsNan) {
  // 33 values: whole vectors of both widths and a tail.
  for (const NormRopeVariant& variant : norm_rope_variants()) {
    if (variant.isa > detect_isa()) continue;
    std::vector<float> gate, up(33, 1.5f);
    for (int i = 0; i < 33; ++i) gate.push_back(0.7f * float(i - 16));
    gate[3] = gate[32] = NAN, gate[4] = 1e15f, gate[5] = -1e15f;
    const std::vector<float> from = gate;
    variant.gelu_glu(gate.data(), up.data(), 33);
    for (size_t i = 0; i < 33; ++i) {
      const double g = from[i], tanh = std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g));
      if (std::isnan(from[i])) EXPECT_TRUE(std::isnan(gate[i])) << variant.name << " " << i;
      else EXPECT_NEAR(gate[i], 0.75 * g * (1 + tanh), 1e-6 * std::max(1.0, std::abs(g))) << variant.name << " " << i;
    }
  }
}

TEST(GatedActivations, ClampedSwigluOfGptOss) {
  EXPECT_LT(glu_error(clamped_swiglu,
                      [](double g, double u) {
                        g = std::min(g, 7.0), u = std::clamp(u, -7.0, 7.0);
                        return g / (1 + std::exp(-1.702 * g)) * (u + 1);
                      }),
            1e-6);
}

TEST(Additions, ScaleRowsAndWhatIsAdded) {
  CpuContext context(1);
  std::vector<float> x{1, 2, 3, 4}, y{10, 20, 30, 40};
  scale(context, View2<float>(x.data(), 2, 2), 3);
  EXPECT_EQ(x, (std::vector<float>{3, 6, 9, 12}));
  add(context, View2<float>(x.data(), 2, 2), View2<const float>(y.data(), 2, 2), 0.5f);
  EXPECT_EQ(x, (std::vector<float>{8, 16, 24, 32}));
}

TEST(Additions, AddRowsAndBiases) {
  CpuContext context(2);
  GuardedMatrix x(3, 10), y(3, 10);
  const std::vector<float> a = random_floats(1, 30), b = random_floats(2, 30), bias = random_floats(3, 10);
  for (int t = 0; t < 3; ++t)
    for (int i = 0; i < 10; ++i) x.view()(t, i) = a[size_t(t * 10 + i)], y.view()(t, i) = b[size_t(t * 10 + i)];
  add(context, x.view(), y.view());
  add_bias(context, x.view(), bias.data());
  EXPECT_TRUE(x.intact() && y.intact());
  for (int t = 0; t < 3; ++t)
    for (int i = 0; i < 10; ++i)
      EXPECT_EQ(x.view()(t, i), (a[size_t(t * 10 + i)] + b[size_t(t * 10 + i)]) + bias[size_t(i)]);
}

}  // namespace
}  // namespace ridge
