// Ternary times int8: all kernels equal the definition bit for bit, on every shape, tail and kind of data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cases/guarded.h"
#include "cases/linear_cases.h"
#include "cases/scratch.h"
#include "cases/test_context.h"
#include "op/gemv/ternary.h"
#include "op/kernels.h"
#include "op/norm_rope/norm_rope.h"

namespace ridge {
namespace {

struct TernaryProblem {
  LinearCase shape;
  std::vector<int> codes;  ///< [n_out, n_in]
  FencedBytes rows, panels;
  float scale = 0.0677f;

  TernaryProblem(const LinearCase& c, uint64_t seed, int only = 2)
      : shape(c), rows(int64_t(c.n_out) * c.n_in / 4), panels(ternary_panel_bytes(c.n_out, c.n_in)) {
    Rng rng(seed);
    std::vector<float> values;
    for (int64_t i = 0; i < int64_t(c.n_out) * c.n_in; ++i) {
      codes.push_back(only == 2 ? int(rng.next() % 3) - 1 : only);
      values.push_back(float(codes.back()));
    }
    EXPECT_TRUE(encode_rows(**find_weight_format("i2_s"), values, c.n_in, rows.span()));
    pack_ternary_panels(test_context(), c.n_out, c.n_in, rows.data(), panels.data());
  }
  Linear linear() const {
    return {.format = *find_weight_format("i2_s"),
            .n_out = shape.n_out,
            .n_in = shape.n_in,
            .rows = rows.data(),
            .panels = panels.data(),
            .scale = scale,
            .int8_activations = true};
  }
  /// The rule, written down once more.
  std::vector<float> expected(const std::vector<float>& x) const {
    std::vector<float> y;
    for (int t = 0; t < shape.n_tokens; ++t) {
      const float* token = &x[size_t(t) * size_t(shape.n_in)];
      float a = 1e-5f;
      for (int i = 0; i < shape.n_in; ++i) a = std::max(a, std::abs(token[i]));
      for (int r = 0; r < shape.n_out; ++r) {
        int64_t sum = 0;
        for (int i = 0; i < shape.n_in; ++i)
          sum += int64_t(std::nearbyint(token[i] * (127.0f / a))) * codes[size_t(r) * size_t(shape.n_in) + size_t(i)];
        y.push_back(float(sum) * (a / 127.0f) * scale);
      }
    }
    return y;
  }
};

template <class Body>
void for_each_ternary(const Linear& w, int n_tokens, const Body& body) {
  int n = 0;
  for (const LinearVariant& variant : gemv_variants()) {
    if (variant.isa > detect_isa() || !variant.supports(w).ok) continue;
    EXPECT_TRUE(variant.name.starts_with("ternary")) << variant.name << " does not round activations";
    SCOPED_TRACE(fmt::format("{} {}x{}x{}", variant.name, n_tokens, w.n_out, w.n_in));
    body(variant);
    ++n;
  }
  EXPECT_EQ(n, std::ranges::count_if(isas(), [](Isa isa) { return isa <= detect_isa(); }));
}

std::vector<float> run_guarded(const LinearVariant& variant, const TernaryProblem& p,
                               const std::vector<float>& x_values) {
  const LinearCase& c = p.shape;
  GuardedMatrix x(c.n_tokens, c.n_in, 5, 1), y(c.n_tokens, c.n_out, 3, 1);
  for (int64_t t = 0; t < c.n_tokens; ++t) std::copy_n(&x_values[size_t(t * c.n_in)], c.n_in, &x.view()(t, 0));
  CpuContext& context = test_context();
  expect_scratch(context, variant.scratch_bytes(p.linear(), c.n_tokens, context.pool.size()),
                 [&] { variant.run(context, p.linear(), x.view(), y.view()); });
  EXPECT_TRUE(x.intact() && y.intact()) << "wrote outside y";
  return y.values();
}

TEST(TernaryLinear, EveryKernelEqualsTheRuleOnEveryShape) {
  uint64_t seed = 0;
  for (const int n_tokens : {1, 2, 4, 7, 8, 9, 17})
    for (const int n_out : {1, 15, 16, 17, 33})
      for (const int n_in : {128, 384, 1280}) {
        const TernaryProblem p({n_out, n_in, n_tokens}, ++seed);
        const std::vector<float> x = random_floats(seed, int64_t(n_tokens) * n_in), expected = p.expected(x);
        for_each_ternary(p.linear(), n_tokens,
                         [&](const LinearVariant& variant) { ASSERT_EQ(run_guarded(variant, p, x), expected); });
      }
}

TEST(TernaryLinear, EveryKernelEqualsTheRuleOnEveryKindOfData) {
  for (const Fill kind : kFills)
    for (const int n_tokens : {1, 9}) {
      const TernaryProblem p({33, 512, n_tokens}, 7);
      const std::vector<float> x = random_floats(8, n_tokens * 512, kind), expected = p.expected(x);
      for_each_ternary(p.linear(), n_tokens,
                       [&](const LinearVariant& variant) { ASSERT_EQ(run_guarded(variant, p, x), expected); });
    }
}

TEST(TernaryLinear, ExtremeSumsAreExact) {
  // All codes and all activations at one end: the largest sum a row of this length can have.
  for (const int code : {-1, 1})
    for (const float value : {-3.5f, 3.5f}) {
      const TernaryProblem p({17, 6912, 8}, 1, code);
      const std::vector<float> x(8 * 6912, value);
      const float expected = float(6912 * 127 * code * (value > 0 ? 1 : -1)) * (3.5f / 127.0f) * p.scale;
      for_each_ternary(p.linear(), 8, [&](const LinearVariant& variant) {
        EXPECT_THAT(run_guarded(variant, p, x), testing::Each(expected));
      });
    }
}

TEST(TernaryLinear, TiesGoToEvenAndTinyTokensHaveTheLeastScale) {
  const TernaryProblem p({16, 128, 1}, 2, 1);
  std::vector<float> x(128, 0.0f);
  x[0] = 127, x[1] = 0.5f, x[2] = 1.5f, x[3] = -2.5f;  // 127 + 0 + 2 - 2
  for_each_ternary(p.linear(), 1, [&](const LinearVariant& variant) {
    EXPECT_THAT(run_guarded(variant, p, x), testing::Each(127 * p.scale));
  });
  std::fill(x.begin(), x.end(), 0.0f);
  x[0] = 1e-6f;  // below 1e-5: 1e-6 * 127 / 1e-5 = 12.7
  for_each_ternary(p.linear(), 1, [&](const LinearVariant& variant) {
    EXPECT_THAT(run_guarded(variant, p, x), testing::Each(13 * (1e-5f / 127.0f) * p.scale));
  });
}

TEST(TernaryLinear, NanAndInfinityReachEveryOutputOfTheirTokenOnly) {
  const TernaryProblem p({17, 256, 9}, 3);
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const int at : {0, 5, 255}) {
      std::vector<float> x = random_floats(4, 9 * 256);
      x[size_t(3 * 256 + at)] = bad;
      for_each_ternary(p.linear(), 9, [&](const LinearVariant& variant) {
        const std::vector<float> y = run_guarded(variant, p, x);
        for (int t = 0; t < 9; ++t)
          for (int r = 0; r < 17; ++r) ASSERT_EQ(std::isnan(y[size_t(t * 17 + r)]), t == 3) << "token " << t;
      });
    }
}

TEST(TernaryLinear, ResultsDoNotDependOnTheNumberOfThreads) {
  const TernaryProblem p({172, 512, 19}, 5);
  const std::vector<float> x = random_floats(6, 19 * 512), expected = p.expected(x);
  for (const int n_threads : {1, 3}) {
    CpuContext context(n_threads);
    std::vector<float> y(expected.size(), NAN);
    linear(context, p.linear(), {x.data(), 19, 512}, {y.data(), 19, 172});
    EXPECT_EQ(y, expected);
  }
}

TEST(TernaryLinear, PanelsHaveTheDocumentedLayout) {
  const TernaryProblem p({33, 256, 1}, 9);
  const auto* bytes = reinterpret_cast<const uint8_t*>(p.panels.data());
  ASSERT_EQ(p.panels.bytes(), 3 * 16 * 256 / 4);
  for (int row = 0; row < 48; ++row)
    for (int column = 0; column < 256; ++column) {
      const int unit = column / 16, k = column % 16 / 4, j = column % 4;
      const int code = bytes[row / 16 * (16 * 256 / 4) + 64 * unit + 4 * (row % 16) + j] >> (2 * k) & 3;
      ASSERT_EQ(code - 1, row < 33 ? p.codes[size_t(row * 256 + column)] : 0) << row << " " << column;
    }
}

TEST(TernaryLinear, InFloatTheScaleIsAppliedOnce) {
  const TernaryProblem p({17, 256, 3}, 10);
  Linear w = p.linear();
  w.int8_activations = false;
  const std::vector<float> x = random_floats(11, 3 * 256);
  std::vector<float> y(3 * 17, NAN);
  linear(test_context(), w, {x.data(), 3, 256}, {y.data(), 3, 17});
  for (int t = 0; t < 3; ++t)
    for (int r = 0; r < 17; ++r) {
      double sum = 0, size = 0;
      for (int i = 0; i < 256; ++i) {
        sum += double(p.codes[size_t(r * 256 + i)]) * x[size_t(t * 256 + i)];
        size += std::abs(x[size_t(t * 256 + i)]);
      }
      EXPECT_NEAR(y[size_t(t * 17 + r)], sum * p.scale, 258 * 0x1p-24 * size * p.scale);
    }
}

TEST(Relu2Glu, IsExactFarBeyondFp16AndKeepsNan) {
  // 300^2 does not fit fp16, 1e15^2 * 1e6 still fits f32.
  GuardedMatrix gate(2, 5), up(2, 5);
  const float gates[] = {-7, 0, 3, 300, 1e15f, 0.5f, -0.0f, 1000, -1e30f, NAN};
  const float ups[] = {5, 5, -2, 1, 1e6f, 4, 1, 1000, 1e30f, 1};
  for (int i = 0; i < 10; ++i) gate.view()(i / 5, i % 5) = gates[i], up.view()(i / 5, i % 5) = ups[i];
  relu2_glu(test_context(), gate.view(), up.view());
  EXPECT_TRUE(gate.intact() && up.intact());
  const float expected[] = {0, 0, -18, 90000, 1e15f * 1e15f * 1e6f, 1, 0, 1e9f, 0};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(gate.values()[size_t(i)], expected[i]) << i;
  EXPECT_TRUE(std::isnan(gate.values()[9]));
}

}  // namespace
}  // namespace ridge
