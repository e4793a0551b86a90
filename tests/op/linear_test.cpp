// Every linear kernel, every weight format, every shape it supports, with bounds derived from the arithmetic.
//
// u = 2^-24 is float's unit roundoff. A float kernel that sums n products in any order is within n u sum|w x| of the
// exact sum. A panel kernel is exact in integers inside a group (of 32 or 16 columns) and adds one product of scales
// and one fma per group, and another fma per minimum: within (4 n_groups + 3) u sum|terms| of the same integer
// arithmetic in double; against the float oracle it is off by the activations' rounding too, at most half an activation
// scale for every unit of |w|.
#define XXH_INLINE_ALL
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "base/rng.h"
#include "cases/guarded.h"
#include "cases/linear_cases.h"
#include "cases/scratch.h"
#include "cases/test_context.h"
#include "op/gemv/panels.h"
#include "op/kernels.h"

namespace ridge {

#if defined(__x86_64__)
LinearsKernel panel_2planes_ymm_vnni;  // panel_ymm_vnni_avx512.cpp
#endif

namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kLeast = 0x1p-149;  // smallest float: what an underflowing product or sum can lose

/// One product with its oracle: y, and the magnitudes the bounds are made of.
struct LinearProblem {
  const WeightFormat& format;
  LinearCase shape;
  FencedBytes rows, panels;
  std::vector<float> x;
  std::vector<double> y;          ///< [n_tokens, n_out] exact sums
  std::vector<double> magnitude;  ///< sum |w x|
  /// The arithmetic of panel kernels in double, by planes of the activations less one.
  struct Integers {
    std::vector<double> y, magnitude, rounding;
  };
  Integers integers[2];

  LinearProblem(const WeightFormat& f, const LinearCase& c, Fill kind, uint64_t seed);
  void sum_integers(int planes, Integers& out) const;
  Linear linear() const {
    return {.format = &format,
            .n_out = shape.n_out,
            .n_in = shape.n_in,
            .rows = rows.data(),
            .panels = has_panels(format) ? panels.data() : nullptr};
  }
};

bool has_integer_panels(const WeightFormat& format) { return has_panels(format) && !has_float_panels(format); }

/// `values` in rows of n_in, encoded; random blocks where the format has no encoder of all values.
void put_rows(const WeightFormat& format, const std::vector<float>& values, int64_t n_in, uint64_t seed,
              std::span<std::byte> rows) {
  if (format.encode && format.largest == 0) {
    EXPECT_TRUE(encode_rows(format, values, n_in, rows));
    return;
  }
  Rng rng(seed);
  std::ranges::copy(random_blocks(format, rng, 1, int64_t(values.size())), rows.begin());
}

/// The largest magnitude of a minimum among a block's groups; 0 for formats without minima.
double largest_minimum(const WeightFormat& format, const std::byte* block) {
  const auto f16_at = [&](int at) {
    uint16_t half;
    std::memcpy(&half, block + at, 2);
    return std::abs(double(f16_to_f32(half)));
  };
  if (format.name == "q4_1" || format.name == "q5_1") return f16_at(2);
  if (format.name == "q4_k" || format.name == "q5_k") return 63 * f16_at(2);
  if (format.name == "q2_k") return 15 * f16_at(82);
  if (format.name == "iq1_s") return 15 * f16_at(0) / 8;
  return 0;
}

LinearProblem::LinearProblem(const WeightFormat& f, const LinearCase& c, Fill kind, uint64_t seed)
    : format(f),
      shape(c),
      rows(c.n_out * f.row_bytes(c.n_in)),
      panels(has_panels(f) ? panel_bytes(f, c.n_out, c.n_in) : 0) {
  const int64_t n_in = c.n_in, n_groups = has_integer_panels(f) ? n_in / kPanelGroup : 0;
  x = random_floats(seed, c.n_tokens * n_in, kind);
  const std::vector<float> w = random_floats(seed + 1000, c.n_out * n_in, kind);
  put_rows(f, w, n_in, seed, rows.span());
  if (has_panels(f)) pack_panels(test_context(), f, c.n_out, n_in, rows.data(), panels.data());

  std::vector<float> row(size_t(n_in), 0.0f);
  for (int64_t t = 0; t < c.n_tokens; ++t)
    for (int64_t r = 0; r < c.n_out; ++r) {
      f.decode(rows.data() + r * f.row_bytes(n_in), n_in, row.data());
      double sum = 0, size = 0;
      for (int64_t i = 0; i < n_in; ++i) {
        const double term = double(row[size_t(i)]) * x[size_t(t * n_in + i)];
        sum += term;
        size += std::abs(term);
      }
      y.push_back(sum);
      magnitude.push_back(size);
    }
  if (n_groups > 0)
    for (const int planes : {1, 2}) sum_integers(planes, integers[planes - 1]);
}

void LinearProblem::sum_integers(int planes, Integers& out) const {
  const int64_t n_in = shape.n_in, n_groups = n_in / kPanelGroup;
  std::vector<int> q(x.size());
  std::vector<float> scale(x.size() / kPanelGroup), row(size_t(n_in), 0.0f);
  for (int64_t g = 0; g < shape.n_tokens * n_groups; ++g) {
    int8_t codes[2 * kPanelGroup];
    int32_t sums[2];
    quantize_group_ref(&x[size_t(g * kPanelGroup)], planes, kPanelGroup, codes, scale[size_t(g)], sums);
    for (int i = 0; i < kPanelGroup; ++i)
      q[size_t(g * kPanelGroup + i)] = planes == 1 ? codes[i] : 128 * codes[i] + codes[kPanelGroup + i];
  }
  for (int64_t t = 0; t < shape.n_tokens; ++t)
    for (int64_t r = 0; r < shape.n_out; ++r) {
      const std::byte* const bytes = rows.data() + r * format.row_bytes(n_in);
      format.decode(bytes, n_in, row.data());
      double sum = 0, magnitude_of_sum = 0, rounding = 0;
      for (int64_t g = 0; g < n_groups; ++g) {
        const double minimum = largest_minimum(format, bytes + g * kPanelGroup / format.group * format.block_bytes);
        const double s = scale[size_t(t * n_groups + g)];
        double dot = 0, weights = 0, terms = 0;
        for (int64_t i = g * kPanelGroup; i < (g + 1) * kPanelGroup; ++i) {
          const double code = q[size_t(t * n_in + i)], size_of_w = std::abs(row[size_t(i)]);
          dot += double(row[size_t(i)]) * code;
          terms += (size_of_w + 2 * minimum) * std::abs(code);  // |scale * code of w| and |minimum| apart
          weights += size_of_w;
        }
        sum += dot * s;
        magnitude_of_sum += terms * s;
        // limit * 3 u: the product x * inverse is rounded before it is rounded to an integer.
        rounding += weights * s * (0.5 + 3 * double(panel_limit(planes)) * kUnit);
      }
      out.y.push_back(sum);
      out.magnitude.push_back(magnitude_of_sum);
      out.rounding.push_back(rounding);
    }
}

/// Runs a kernel on strided, guarded matrices and gives y.
std::vector<float> run_guarded(const LinearVariant& variant, const LinearProblem& p) {
  const LinearCase& c = p.shape;
  GuardedMatrix x(c.n_tokens, c.n_in, 5, 1), y(c.n_tokens, c.n_out, 3, 1);
  for (int64_t t = 0; t < c.n_tokens; ++t) std::copy_n(&p.x[size_t(t * c.n_in)], c.n_in, &x.view()(t, 0));
  CpuContext& context = test_context();
  expect_scratch(context, variant.scratch_bytes(p.linear(), c.n_tokens, context.pool.size()),
                 [&] { variant.run(context, p.linear(), x.view(), y.view()); });
  EXPECT_TRUE(x.intact() && y.intact()) << "wrote outside y";
  return y.values();
}

void expect_within_bounds(const LinearVariant& variant, const LinearProblem& p) {
  const std::vector<float> y = run_guarded(variant, p);
  const int64_t n_in = p.shape.n_in, n_groups = n_in / kPanelGroup;
  int n_bad = 0;
  const auto check = [&](const char* against, size_t i, double expected, double bound) {
    if (std::abs(y[i] - expected) <= bound) return;  // false for NaN
    if (++n_bad <= 3)
      ADD_FAILURE() << "token " << int64_t(i) / p.shape.n_out << " row " << int64_t(i) % p.shape.n_out << ": " << y[i]
                    << ", " << against << " " << expected << ", bound " << bound;
  };
  for (size_t i = 0; i < y.size(); ++i) {
    if (variant.planes > 0) {
      const LinearProblem::Integers& of = p.integers[variant.planes - 1];
      const double bound = double(4 * n_groups + 3) * kUnit * of.magnitude[i] + double(n_groups) * 1e6 * kLeast;
      check("integer arithmetic", i, of.y[i], bound);
      check("exact", i, p.y[i], bound + of.rounding[i] + double(n_groups) * 1e6 * kLeast);
    } else {
      check("exact", i, p.y[i], double(n_in + 2) * kUnit * p.magnitude[i] + double(n_in) * kLeast);
    }
  }
}

bool runnable(const LinearVariant& variant, const Linear& w) {
  return variant.isa <= detect_isa() && variant.supports(w).ok;
}

/// The shape with rows of the next length that the format's group divides.
LinearCase fitted(const WeightFormat& format, LinearCase c) {
  c.n_in = (c.n_in + format.group - 1) / format.group * format.group;
  return c;
}

class LinearOfFormat : public testing::TestWithParam<const WeightFormat*> {};
INSTANTIATE_TEST_SUITE_P(Formats, LinearOfFormat, testing::ValuesIn([] {
                           std::vector<const WeightFormat*> formats;
                           for (const WeightFormat& format : weight_formats()) formats.push_back(&format);
                           return formats;
                         }()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(LinearOfFormat, EveryKernelIsWithinItsBoundOnEveryShape) {
  const WeightFormat& format = *GetParam();
  uint64_t seed = 0;
  int n_run = 0;
  for (const LinearCase& c : linear_cases()) {
    if (c.n_in % format.group != 0) continue;
    const LinearProblem p(format, c, Fill::normal, ++seed);
    for (const LinearVariant& variant : gemm_variants()) {
      if (!runnable(variant, p.linear())) continue;
      SCOPED_TRACE(fmt::format("{} {} {}", variant.name, format.name, c.name()));
      expect_within_bounds(variant, p);
      ++n_run;
    }
  }
  EXPECT_GE(n_run, 20 * std::ranges::count_if(isas(), [](Isa isa) { return isa <= detect_isa(); }));
}

TEST_P(LinearOfFormat, EveryKernelIsWithinItsBoundOnEveryKindOfData) {
  const WeightFormat& format = *GetParam();
  for (const Fill kind : kFills)
    for (const LinearCase c : {fitted(format, {33, 544, 1}), fitted(format, {33, 544, 9})}) {
      const LinearProblem p(format, c, kind, 42);
      for (const LinearVariant& variant : gemm_variants()) {
        if (!runnable(variant, p.linear())) continue;
        SCOPED_TRACE(fmt::format("{} {} {} {}", variant.name, format.name, c.name(), fill_name(kind)));
        expect_within_bounds(variant, p);
      }
    }
}

TEST_P(LinearOfFormat, ATokensResultsAreTheSameBitsAloneAndAmongOthers) {
  // Whatever the number of tokens and threads. Numbers of tokens leave tails of every tile and stand on both sides of
  // where kernels change their way; rows of weights leave a tail of strips, panels and tasks; columns one of vectors,
  // where the format's group leaves one, and one of blocks.
  const WeightFormat& format = *GetParam();
  constexpr int kMostTokens = 70, kOut = 53;
  CpuContext contexts[] = {CpuContext(1), CpuContext(2), CpuContext(3)};
  for (const int n_in : {41, 1100, 2048}) {
    const LinearCase shape = fitted(format, {kOut, n_in, 1});
    const LinearProblem p(format, shape, Fill::normal, 6);
    const std::vector<float> x = random_floats(7, int64_t(kMostTokens) * shape.n_in);
    for (const LinearVariant& variant : gemm_variants()) {
      if (!runnable(variant, p.linear())) continue;
      const auto run = [&](CpuContext& context, int first, int n_tokens) {
        std::vector<float> y(size_t(n_tokens * kOut), NAN);
        variant.run(context, p.linear(), {&x[size_t(first) * size_t(shape.n_in)], n_tokens, shape.n_in},
                    {y.data(), n_tokens, kOut});
        return y;
      };
      std::vector<float> alone;
      for (int t = 0; t < kMostTokens; ++t)
        for (const float value : run(contexts[0], t, 1)) alone.push_back(value);
      for (const int n_tokens : {1, 2, 3, 5, 8, 16, 17, 32, 33, kMostTokens})
        for (CpuContext& context : contexts) {
          const int first = (kMostTokens - n_tokens) / 2;
          const std::vector<float> together = run(context, first, n_tokens);
          ASSERT_EQ(std::memcmp(together.data(), &alone[size_t(first * kOut)], 4 * together.size()), 0)
              << variant.name << ", rows of " << shape.n_in << ", " << n_tokens << " tokens, " << context.pool.size()
              << " threads";
        }
    }
  }
}

TEST_P(LinearOfFormat, ANanActivationReachesEveryOutputOfItsTokenOnly) {
  const WeightFormat& format = *GetParam();
  LinearProblem p(format, fitted(format, {17, 64, 9}), Fill::normal, 9);
  p.x[size_t(3 * p.shape.n_in + 40)] = NAN;
  for (const LinearVariant& variant : gemm_variants()) {
    if (!runnable(variant, p.linear())) continue;
    const std::vector<float> y = run_guarded(variant, p);
    for (int t = 0; t < 9; ++t)
      for (int r = 0; r < 17; ++r)
        EXPECT_EQ(std::isnan(y[size_t(t * 17 + r)]), t == 3) << variant.name << " token " << t;
  }
}

TEST_P(LinearOfFormat, AFewTokensMoreThanTheFewGiveTheSameProductWithinTheBound) {
  // Kernels change their way behind 32 tokens (AVX2: 16); n_in leaves a tail behind whole vectors and whole blocks.
  const WeightFormat& format = *GetParam();
  for (const int n_tokens : {16, 17, 32, 33, 47})
    for (const int n_in : {549, 1100}) {
      const LinearProblem p(format, fitted(format, {50, n_in, n_tokens}), Fill::normal, 21);
      for (const LinearVariant& variant : gemm_variants()) {
        if (!runnable(variant, p.linear())) continue;
        SCOPED_TRACE(fmt::format("{} {} tokens", variant.name, n_tokens));
        expect_within_bounds(variant, p);
      }
    }
}

TEST_P(LinearOfFormat, UnalignedRowsAreRead) {
  // A safetensors file may put a tensor at any byte.
  const WeightFormat& format = *GetParam();
  for (const int n_tokens : {2, 40}) {
    const LinearProblem p(format, fitted(format, {17, 96, n_tokens}), Fill::normal, 8);
    Linear w = p.linear();
    std::vector<std::byte> shifted(size_t(w.bytes()) + 1);
    std::memcpy(shifted.data() + 1, w.rows, size_t(w.bytes()));
    for (const LinearVariant& variant : gemm_variants()) {
      w.rows = p.rows.data();
      if (!runnable(variant, w)) continue;
      const std::vector<float> expected = run_guarded(variant, p);
      w.rows = shifted.data() + 1;
      std::vector<float> y(expected.size(), NAN);
      variant.run(test_context(), w, {p.x.data(), n_tokens, p.shape.n_in}, {y.data(), n_tokens, 17});
      EXPECT_EQ(y, expected) << variant.name;
    }
  }
}

TEST(Panels, Avx2AndAvx512GiveTheSameBits) {
  // Integer sums are exact, and floats are added in one order. Panels of floats have activations without planes.
  if (detect_isa() < Isa::avx512) GTEST_SKIP() << "this processor has no AVX-512";
  int n_formats = 0;
  for (const WeightFormat& format : weight_formats()) {
    if (!has_panels(format)) continue;
    ++n_formats;
    for (const int n_tokens : {1, 9}) {
      const LinearProblem p(format, fitted(format, {172, 2176, n_tokens}), Fill::outliers, 11);
      const bool of_floats = has_float_panels(format);
      for (const int planes : of_floats ? std::vector{0} : std::vector{1, 2}) {
        std::vector<std::vector<float>> y;
        for (const LinearVariant& variant : gemm_variants())
          if (variant.name.starts_with("panel-") && variant.planes == planes && runnable(variant, p.linear()))
            y.push_back(run_guarded(variant, p));
        ASSERT_GE(y.size(), 2u);
        for (const std::vector<float>& of_isa : y)
          ASSERT_EQ(std::memcmp(y[0].data(), of_isa.data(), 4 * y[0].size()), 0)
              << format.name << " " << n_tokens << " tokens, " << planes << " planes";
      }
    }
  }
  EXPECT_GE(n_formats, 25);
}

/// Columns that stand in another order than x: the bits of the product with x in their order, alone and together.
TEST(Linears, SortedColumnsMeetTheirX) {
  for (const char* name : {"f32", "q5_0"}) {
    const WeightFormat& format = *find_weight_format(name).or_throw();
    const LinearProblem p(format, {37, 96, 3}, Fill::normal, 5);
    std::vector<int32_t> order(96);
    for (int i = 0; i < 96; ++i) order[size_t(i)] = (i * 35 + 7) % 96;  // 35 and 96 have no common factor
    Linear plain = p.linear(), sorted = plain;
    sorted.order = order.data();
    sorted.scale = plain.scale = 0.5f;
    std::vector<float> x(p.x.size()), expected(3 * 37), y(3 * 37), alone(3 * 37), beside(3 * 37);
    for (size_t t = 0; t < 3; ++t)
      for (size_t i = 0; i < 96; ++i) x[t * 96 + size_t(order[i])] = p.x[t * 96 + i];
    CpuContext context(2);
    const auto view = [](std::vector<float>& values) { return View2<float>(values.data(), 3, 37); };
    linear(context, plain, {p.x.data(), 3, 96}, view(expected));
    linear(context, sorted, {x.data(), 3, 96}, view(y));
    EXPECT_EQ(y, expected) << name;
    linear(context, plain, {x.data(), 3, 96}, view(alone));
    y.assign(y.size(), NAN);
    linear(context, {x.data(), 3, 96}, {{&sorted, view(y)}, {&plain, view(beside)}});
    EXPECT_EQ(y, expected) << name;
    EXPECT_EQ(beside, alone) << name;
    EXPECT_NE(alone, expected) << name;
  }
}

TEST(Panels, EveryKindOfProcessorGivesTheSameBits) {
  // A digest of the outputs over all formats, the same on x86 and ARM. No function of a mathematics library makes the
  // data.
  constexpr int kOut = 53, kTokens = 9;
  Rng rng(29);
  std::map<std::string_view, XXH3_state_t> digests;
  for (const WeightFormat& format : weight_formats()) {
    if (!has_integer_panels(format)) continue;
    const int n_in = fitted(format, {kOut, 544, 1}).n_in;
    std::vector<std::byte> rows(size_t(kOut * format.row_bytes(n_in)));
    for (std::byte& byte : rows) byte = std::byte(rng.next() & 0xBF);  // fp16 stays finite
    std::vector<std::byte> panels(size_t(panel_bytes(format, kOut, n_in)));
    pack_panels(test_context(), format, kOut, n_in, rows.data(), panels.data());
    std::vector<float> x(size_t(kTokens * n_in));
    for (float& value : x) value = float(16 * rng.uniform() - 8);
    const Linear w{.format = &format, .n_out = kOut, .n_in = n_in, .rows = rows.data(), .panels = panels.data()};
    for (const LinearVariant& variant : gemm_variants()) {
      if (variant.planes == 0 || !runnable(variant, w)) continue;
      std::vector<float> y(size_t(kTokens * kOut), NAN);
      variant.run(test_context(), w, {x.data(), kTokens, n_in}, {y.data(), kTokens, kOut});
      const auto [digest, is_new] = digests.try_emplace(variant.name);
      if (is_new) XXH3_64bits_reset(&digest->second);
      XXH3_64bits_update(&digest->second, y.data(), 4 * y.size());
    }
  }
  for (const auto& [name, digest] : digests) {
    const bool one_plane = name.starts_with("panel-1plane");
    EXPECT_EQ(XXH3_64bits_digest(&digest), one_plane ? 4513250922206224360u : 16894784135325441356u) << name;
  }
  EXPECT_GE(digests.size(), detect_isa() == Isa::scalar ? 0u : 2u);
}

/// The same bits on every format, with rows, columns and tokens that leave tails.
void expect_same_bits(LinearsKernel& known, LinearsKernel& kernel, std::initializer_list<int> n_tokens_of) {
  for (const WeightFormat& format : weight_formats()) {
    if (!has_integer_panels(format)) continue;
    for (const int n_tokens : n_tokens_of) {
      const LinearCase c = fitted(format, {53, 544, 1});
      const LinearProblem p(format, c, Fill::outliers, 17);
      const std::vector<float> x = random_floats(18, int64_t(n_tokens) * c.n_in, Fill::outliers);
      const Linear w = p.linear();
      std::vector<float> expected(size_t(n_tokens * c.n_out), NAN), y(expected);
      const LinearOutput to_expected{&w, {expected.data(), n_tokens, c.n_out}}, to_y{&w, {y.data(), n_tokens, c.n_out}};
      known(test_context(), {x.data(), n_tokens, c.n_in}, {&to_expected, 1});
      kernel(test_context(), {x.data(), n_tokens, c.n_in}, {&to_y, 1});
      EXPECT_EQ(y, expected) << format.name << ", " << n_tokens << " tokens";
    }
  }
}

#if defined(__x86_64__)
TEST(Panels, AvxVnniGivesTheBitsOfAvx2) {
  // The kernels of AVX-VNNI with the form of their instruction that AVX-512 has.
  if (detect_isa() < Isa::avx512) GTEST_SKIP() << "this processor has no AVX-512";
  expect_same_bits(panel_2planes_avx2, panel_2planes_ymm_vnni, {1, 3, 9});
}
#elif defined(__aarch64__)
TEST(Panels, I8mmGivesTheBitsOfNeon) {
  if (!has_ability("i8mm")) GTEST_SKIP() << "this processor has no i8mm";
  expect_same_bits(panel_1plane_neon, panel_1plane_i8mm, {4, 5, 8, 131});
  expect_same_bits(panel_2planes_neon, panel_2planes_i8mm, {4, 5, 8, 131});
}
#endif

/// As experts of a few tokens are multiplied: every matrix has rows of its own, many enough for tiles, one, and some.
TEST(Linears, RowsOfOneInputGiveTheBitsOfSingleCalls) {
  struct Rows {
    int64_t first, n;
  };
  constexpr Rows kRows[] = {{0, 7}, {7, 1}, {5, 2}, {0, 12}};
  constexpr int64_t kTokens = 12;
  for (const WeightFormat& format : weight_formats()) {
    const LinearCase c = fitted(format, {53, 544, int(kTokens)});
    const LinearProblem p(format, c, Fill::normal, 23);
    const Linear w = p.linear();
    const View2<const float> x(p.x.data(), kTokens, c.n_in);
    std::vector<std::vector<float>> together, alone;
    std::vector<LinearOutput> all;
    for (const Rows& rows : kRows) {
      together.emplace_back(size_t(rows.n * c.n_out), NAN);
      all.push_back({&w, {together.back().data(), rows.n, c.n_out}, rows.first});
      linear(test_context(), w, x.slice(rows.first, rows.n),
             {alone.emplace_back(size_t(rows.n * c.n_out), NAN).data(), rows.n, c.n_out});
    }
    linear(test_context(), x, all);
    EXPECT_EQ(together, alone) << format.name;
  }
}

TEST(Linears, MatricesOfOneInputGiveTheBitsOfSingleCalls) {
  // Formats of panels together; one without panels among them, so that each matrix is on its own.
  constexpr int kIn = 512;
  for (const std::vector<std::string_view>& names : {std::vector<std::string_view>{"q4_k", "q6_k", "q8_0"},
                                                     {"q4_1", "f16", "q4_1"},
                                                     {"fp8_g32", "fp8_g32", "fp8_g32"}})
    for (const int n_tokens : {1, 3, 40}) {
      std::vector<std::unique_ptr<LinearProblem>> problems;
      for (const int n_out : {53, 17, 160})
        problems.push_back(std::make_unique<LinearProblem>(*find_weight_format(names[problems.size()]).or_throw(),
                                                           LinearCase{n_out, kIn, n_tokens}, Fill::normal, 31));
      const View2<const float> x(problems[0]->x.data(), n_tokens, kIn);
      std::vector<Linear> w;
      std::vector<std::vector<float>> together, alone;
      for (const auto& p : problems) {
        w.push_back(p->linear());
        together.emplace_back(size_t(n_tokens * w.back().n_out), NAN);
        alone.emplace_back(together.back());
      }
      w[1].scale = 0.5f;
      const auto out = [&](std::vector<std::vector<float>>& y, size_t i) {
        return View2<float>(y[i].data(), n_tokens, w[i].n_out);
      };
      linear(test_context(), x, {{&w[0], out(together, 0)}, {&w[1], out(together, 1)}, {&w[2], out(together, 2)}});
      for (size_t i = 0; i < w.size(); ++i) {
        linear(test_context(), w[i], x, out(alone, i));
        EXPECT_EQ(together[i], alone[i]) << names[i] << ", " << n_tokens << " tokens";
      }
    }
}

TEST(Panels, ExtremeCodesDoNotSaturateTheIntegerSums) {
  // Every weight and every activation at its largest magnitude: products of 255 x 127 would overflow 16-bit pairs.
  const WeightFormat& format = **find_weight_format("q8_0");
  constexpr int kIn = 64;
  for (const int code : {127, -127, -128}) {
    std::vector<Q8_0::Block> blocks(16 * kIn / 32);
    for (Q8_0::Block& block : blocks) {
      block.scale = 0x3C00;
      std::fill(std::begin(block.q), std::end(block.q), int8_t(code));
    }
    const auto* rows = reinterpret_cast<const std::byte*>(blocks.data());
    AlignedBuffer panels(panel_bytes(format, 16, kIn));
    pack_panels(test_context(), format, 16, kIn, rows, panels.data());
    const Linear w{.format = &format, .n_out = 16, .n_in = kIn, .rows = rows, .panels = panels.data()};
    for (const float x_value : {127.0f, -127.0f})
      for (const LinearVariant& variant : gemm_variants()) {
        if (!runnable(variant, w)) continue;
        const std::vector<float> x(kIn, x_value);
        std::vector<float> y(16, NAN);
        variant.run(test_context(), w, {x.data(), 1, kIn}, {y.data(), 1, 16});
        EXPECT_THAT(y, testing::Each(float(code) * x_value * kIn)) << variant.name << " code " << code;
      }
  }
}

/// The codes of a format where op/gemv/panels.h says they are: their weights, decoded by hand, are those of the rows.
template <class F>
void expect_documented_layout(int n_out, int n_in,
                              const std::function<double(const uint8_t* unit, int row, int column)>& scale,
                              const std::function<double(int code)>& level) {
  using Unit = PanelUnit<F>;
  const WeightFormat& format = **find_weight_format(F::kName);
  const int n_units = n_in / F::kGroup, n_panels = (n_out + 15) / 16;
  Rng rng(3);
  const std::vector<std::byte> rows = random_blocks(format, rng, 1, int64_t(n_out) * n_in);
  ASSERT_EQ(panel_bytes(format, n_out, n_in), n_panels * n_units * Unit::kBytes);
  Guarded<std::byte> panels(panel_bytes(format, n_out, n_in), 1);
  ASSERT_EQ(pack_panels(test_context(), format, n_out, n_in, rows.data(), panels.data()), -1);
  ASSERT_TRUE(panels.intact());
  std::vector<float> expected(size_t(n_in), 0.0f);
  for (int row = 0; row < 16 * n_panels; ++row) {
    if (row < n_out) format.decode(rows.data() + row * format.row_bytes(n_in), n_in, expected.data());
    else std::ranges::fill(expected, 0.0f);
    for (int column = 0; column < n_in; ++column) {
      const auto* const unit =
          reinterpret_cast<const uint8_t*>(panels.data()) + (row / 16 * n_units + column / F::kGroup) * Unit::kBytes;
      const int in_unit = column % F::kGroup, k = column % 32 / 4, at = 4 * (row % 16) + column % 4;
      const uint8_t* const codes = unit + Unit::kHeadBytes + in_unit / 32 * Unit::kGroupBytes;
      const uint8_t* const high = codes + 64 * Unit::kLow;
      int code = 0;
      if (Unit::kLow == 8) code = codes[64 * k + at];
      if (Unit::kLow == 4) code = codes[64 * (k % 4) + at] >> (k / 4 * 4) & 0xF;
      if (Unit::kLow == 2) code = codes[64 * (k / 4) + at] >> (k % 4 * 2) & 3;
      if (Unit::kHigh == 1) code |= (high[at] >> k & 1) << Unit::kLow;
      if (Unit::kHigh == 2) code |= (high[64 * (k / 4) + at] >> (k % 4 * 2) & 3) << Unit::kLow;
      const double weight = scale(unit, row % 16, in_unit) * level(code);
      ASSERT_NEAR(weight, expected[size_t(column)], 1e-6 * std::abs(weight)) << "row " << row << " column " << column;
    }
  }
}

double f16_of_row(const uint8_t* at, int row) { return f16_to_f32(uint16_t(at[2 * row] | at[2 * row + 1] << 8)); }

TEST(Panels, LayoutIsTheDocumentedOne) {
  const auto f16_scale = [](const uint8_t* unit, int row, int) { return f16_of_row(unit, row); };
  for (const int n_out : {1, 15, 16, 17, 33})
    for (const int n_in : {256, 768}) {
      expect_documented_layout<Q8_0>(n_out, n_in / 8, f16_scale, [](int code) { return code - 128; });
      expect_documented_layout<Q4_0>(n_out, n_in / 8, f16_scale, [](int code) { return code - 8; });
      expect_documented_layout<Q5_0>(n_out, n_in / 8, f16_scale, [](int code) { return code - 16; });
      expect_documented_layout<Int4G128>(n_out, n_in, f16_scale, [](int code) { return code - 8; });
      expect_documented_layout<IQ4_NL>(n_out, n_in, f16_scale, iq4_level);
      expect_documented_layout<Q6_K>(
          n_out, n_in,
          [](const uint8_t* unit, int row, int column) {
            return f16_of_row(unit, row) * int8_t(unit[32 + column / 16 * 16 + row]);
          },
          [](int code) { return code - 32; });
    }
}

TEST(Panels, FloatsAreWhereTheLayoutSays) {
  const WeightFormat& format = **find_weight_format("fp8_g32");
  constexpr int kIn = 96, kUnits = kIn / 32;
  for (const int n_out : {1, 16, 33}) {
    const int n_panels = (n_out + 15) / 16;
    Rng rng(5);
    const std::vector<std::byte> rows = random_blocks(format, rng, 1, int64_t(n_out) * kIn);
    Guarded<std::byte> panels(panel_bytes(format, n_out, kIn), 1);
    ASSERT_EQ(pack_panels(test_context(), format, n_out, kIn, rows.data(), panels.data()), -1);
    ASSERT_TRUE(panels.intact());
    std::vector<float> expected(kIn);
    for (int row = 0; row < 16 * n_panels; ++row) {
      if (row < n_out) format.decode(rows.data() + row * format.row_bytes(kIn), kIn, expected.data());
      else std::ranges::fill(expected, 0.0f);
      for (int column = 0; column < kIn; ++column) {
        const std::byte* const unit = panels.data() + (row / 16 * kUnits + column / 32) * FloatPanels::kUnitBytes;
        float scale;
        std::memcpy(&scale, unit + 4 * (row % 16), 4);
        const float code = e4m3_value(int(unit[64 + 16 * (column % 32) + row % 16]));
        ASSERT_EQ(code / 256 * scale, expected[size_t(column)]) << "row " << row << " column " << column;
      }
    }
  }
}

TEST(Panels, AScaleThatNoFloatCanHoldIsNamed) {
  const WeightFormat& format = **find_weight_format("fp8_g32");
  std::vector<FP8_G32::Block> blocks(20 * 2, FP8_G32::Block{.scale = 1});
  AlignedBuffer panels(panel_bytes(format, 20, 64));
  const auto packed = [&] {
    return pack_panels(test_context(), format, 20, 64, reinterpret_cast<const std::byte*>(blocks.data()),
                       panels.data());
  };
  EXPECT_EQ(packed(), -1);
  blocks[2 * 18 + 1].scale = 0x1p121f;  // 256 times it is infinite
  EXPECT_EQ(packed(), 18);
  blocks[2 * 7].scale = NAN;
  EXPECT_EQ(packed(), 7);
}

TEST(Panels, PackingAFormatWithoutPanelsIsOurBug) {
  const WeightFormat& format = **find_weight_format("f16");
  EXPECT_FALSE(has_panels(format));
  std::byte bytes[64] = {};
  EXPECT_THROW(pack_panels(test_context(), format, 1, 32, bytes, bytes), Error);
}

TEST(Panels, AreWantedExactlyWhereAVectorKernelReadsThem) {
  for (const WeightFormat& format : weight_formats()) {
    for (const Isa isa : isas())
      EXPECT_EQ(wants_panels(format, 256, isa), isa != Isa::scalar && has_panels(format)) << isa_name(isa);
    EXPECT_FALSE(wants_panels(format, 48, isas().back()));
  }
}

std::string message_of(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

class LinearSelection : public testing::Test {
 protected:
  void run() { linear(context_, w_, {p_.x.data(), n_tokens_, 64}, {y_.data(), n_tokens_, 17}); }
  LinearProblem p_{**find_weight_format("q4_0"), {17, 64, 2}, Fill::normal, 1};
  Linear w_ = p_.linear();
  int n_tokens_ = 1;
  std::vector<float> y_ = std::vector<float>(34, NAN);
  CpuContext context_{1};
};

TEST_F(LinearSelection, TakesTheLastSupportedRow) {
  const auto name = [&] { return select_variant(context_, "gemv", gemv_variants(), w_).name; };
  context_.isa = Isa::scalar;
  EXPECT_EQ(name(), "ref");
  for (const Isa isa : isas().subspan(1)) {
    if (isa > detect_isa()) break;
    context_.isa = isa;
    const bool of_vnni = isa == Isa::avx2 && has_ability("avx_vnni");
    const std::string panels = fmt::format("panel-2planes-{}", of_vnni ? "avxvnni" : isa_name(isa));
    w_ = p_.linear();
    EXPECT_EQ(name(), panels);
    w_.panels = nullptr;
    EXPECT_EQ(name(), fmt::format("rows-{}", isa_name(isa)));
    w_ = p_.linear();
    w_.rows = nullptr;
    EXPECT_EQ(name(), panels);
  }
}

TEST_F(LinearSelection, AForcedKernelIsTaken) {
  context_.forced["gemv"] = "ref";
  EXPECT_EQ(select_variant(context_, "gemv", gemv_variants(), w_).name, "ref");
  run();
  for (int r = 0; r < 17; ++r) EXPECT_EQ(y_[size_t(r)], float(p_.y[size_t(r)]));
}

TEST_F(LinearSelection, AForcedKernelThatCannotServeSaysWhy) {
  const Isa best = isas().back();
  const std::string kernel = fmt::format("panel-1plane-{}", isa_name(best));
  context_.forced["gemv"] = kernel;
  context_.isa = Isa::scalar;
  EXPECT_THAT(
      message_of([&] { run(); }, ErrorKind::usage),
      testing::AllOf(testing::HasSubstr("gemv"), testing::HasSubstr(kernel),
                     testing::HasSubstr(fmt::format("needs {}", isa_name(best))), testing::HasSubstr("scalar")));
  context_.isa = detect_isa();
  if (context_.isa < best) return;
  w_.panels = nullptr;
  EXPECT_THAT(message_of([&] { run(); }, ErrorKind::usage), testing::HasSubstr("not packed"));
}

TEST_F(LinearSelection, AnUnknownKernelNamesTheOnesThereAre) {
  context_.forced["gemv"] = "pannel";
  EXPECT_THAT(message_of([&] { run(); }, ErrorKind::usage),
              testing::AllOf(testing::HasSubstr("pannel"), testing::HasSubstr("ref"),
                             testing::HasSubstr(fmt::format("panel-2planes-{}", isa_name(isas().back())))));
}

TEST_F(LinearSelection, AForcedKernelOfOneOpLeavesTheOthersAlone) {
  context_.forced["gemv"] = "pannel";
  n_tokens_ = 2;
  EXPECT_NO_THROW(run());  // two tokens run gemm
}

TEST_F(LinearSelection, AProblemWithoutAKernelSaysWhyNot) {
  w_.rows = nullptr;
  w_.panels = nullptr;
  EXPECT_THAT(message_of([&] { run(); }, ErrorKind::usage),
              testing::AllOf(testing::HasSubstr("gemv"), testing::HasSubstr("row-major weights were not kept")));
}

TEST_F(LinearSelection, WrongShapesAreOurBug) {
  EXPECT_THROW(linear(context_, w_, {p_.x.data(), 1, 32}, {y_.data(), 1, 17}), Error);
  EXPECT_THROW(linear(context_, w_, {p_.x.data(), 1, 64}, {y_.data(), 1, 16}), Error);
  EXPECT_THROW(linear(context_, w_, {p_.x.data(), 2, 64}, {y_.data(), 1, 17}), Error);
  EXPECT_NO_THROW(linear(context_, w_, {p_.x.data(), 0, 64}, {y_.data(), 0, 17}));
}

TEST(LinearWork, CountsWeightsOnceAndActivationsPerToken) {
  const WeightFormat& format = **find_weight_format("q4_0");
  const Linear w{.format = &format, .n_out = 48, .n_in = 64};
  EXPECT_EQ(w.bytes(), 48 * 2 * 18);
  const Work work = linear_work(w, 3);
  EXPECT_EQ(work.read_bytes, 48 * 2 * 18 + 4 * 3 * 64);
  EXPECT_EQ(work.write_bytes, 4 * 3 * 48);
  EXPECT_EQ(work.flops, 2 * 3 * 48 * 64);
}

}  // namespace
}  // namespace ridge
