// The device's matrix product and element-wise ops against double arithmetic and the CPU's reference kernels.
#include <cmath>

#include "base/metrics.h"
#include "cases/linear_cases.h"
#include "gpu/device_data.h"
#include "op/cache/append_cuda.h"
#include "op/gemm/gemm_cuda.h"
#include "op/gemv/rows_cuda.h"
#include "op/linear.h"
#include "op/norm_rope/kernels.h"
#include "op/norm_rope/norm_rope.h"
#include "op/norm_rope/norm_rope_cuda.h"
#include "op/score/score.h"
#include "op/score/score_cuda.h"

namespace ridge {
namespace {

class OpsCuda : public OnDevice {};

TEST_F(OpsCuda, GemmIsWithinItsRoundingAtEveryShape) {
  for (const LinearCase& c : linear_cases()) {
    const auto x = normal_floats(1, int64_t(c.n_tokens) * c.n_in), w = normal_floats(2, int64_t(c.n_out) * c.n_in);
    const gpu::Buffer dx = up(x), dw = up(w), dy = up(std::vector<float>(size_t(c.n_tokens * c.n_out) + 1, 7.0f));
    device_gemm(stream(), c.n_tokens, c.n_out, c.n_in, dx.as<float>(), dw.as<float>(), dy.as<float>());
    const auto y = down(dy.as<float>(), int64_t(c.n_tokens) * c.n_out + 1);
    for (int t = 0; t < c.n_tokens; ++t)
      for (int o = 0; o < c.n_out; ++o) {
        double sum = 0, size = 0;
        for (int i = 0; i < c.n_in; ++i) {
          const double product = double(x[size_t(t * c.n_in + i)]) * w[size_t(o * c.n_in + i)];
          sum += product;
          size += std::abs(product);
        }
        // n_in fused steps, each off by half an ulp of a partial sum.
        ASSERT_NEAR(y[size_t(t * c.n_out + o)], sum, c.n_in * 0x1p-24 * size) << c.name() << " " << t << " " << o;
      }
    EXPECT_EQ(y.back(), 7.0f) << c.name() << " wrote past its end";
  }
}

TEST_F(OpsCuda, GemmRowsDoNotDependOnTheBatch) {
  constexpr int kRows = 130, kOut = 70, kIn = 96;
  const gpu::Buffer x = up(normal_floats(3, kRows * kIn)), w = up(normal_floats(4, kOut * kIn));
  gpu::Buffer together(4 * kRows * kOut), alone(4 * kOut);
  device_gemm(stream(), kRows, kOut, kIn, x.as<float>(), w.as<float>(), together.as<float>());
  const auto all = down(together.as<float>(), kRows * kOut);
  for (const int row : {0, 1, 63, 64, 129}) {
    device_gemm(stream(), 1, kOut, kIn, x.as<float>() + row * kIn, w.as<float>(), alone.as<float>());
    EXPECT_EQ(down(alone.as<float>(), kOut), std::vector(all.begin() + row * kOut, all.begin() + (row + 1) * kOut));
  }
}

TEST_F(OpsCuda, RmsNormIsTheReference) {
  for (const int n : {8, 33, 128, 512, 1000}) {
    constexpr int kRows = 5;
    const auto x = normal_floats(5, kRows * n, 3), weight = normal_floats(6, n);
    const gpu::Buffer dx = up(x), dw = up(weight);
    device_rms_norm(stream(), kRows, n, dx.as<float>(), dw.as<float>(), 1e-5f, dx.as<float>());  // in place
    const auto y = down(dx.as<float>(), kRows * n);
    std::vector<float> expected(size_t(n), 0.0f);
    for (int r = 0; r < kRows; ++r) {
      rms_norm_ref(&x[size_t(r * n)], weight.data(), 1e-5f, n, expected.data());
      // The sums of squares differ in the order of their double additions: at most the float rounding flips.
      for (int i = 0; i < n; ++i)
        ASSERT_NEAR(y[size_t(r * n + i)], expected[size_t(i)], 0x1p-23 * std::abs(expected[size_t(i)])) << n;
    }
  }
}

/// Two parts of rows, normed by the sum of both's squares as floats: it may be off by two roundings, its root by half
/// of that.
TEST_F(OpsCuda, RmsNormOfPartsIsThatOfTheWhole) {
  constexpr int kRows = 5;
  for (const int n : {8, 33, 1000}) {
    const auto x = normal_floats(5, 2 * kRows * n, 3), weight = normal_floats(6, 2 * n);
    std::vector<float> parts[2];
    for (int r = 0; r < 2 * kRows; ++r)
      parts[r % 2].insert(parts[r % 2].end(), x.begin() + r * n, x.begin() + (r + 1) * n);
    const gpu::Buffer in[] = {up(parts[0]), up(parts[1])}, dw = up(weight), sums(4 * 2 * kRows);
    for (int part = 0; part < 2; ++part)
      device_sum_squares(stream(), kRows, n, in[part].as<float>(), sums.as<float>() + part * kRows);
    device_add(stream(), kRows, sums.as<float>(), sums.as<float>() + kRows);
    for (int part = 0; part < 2; ++part) {
      device_rms_norm_part(stream(), kRows, n, 2 * n, sums.as<float>(), dw.as<float>() + part * n, 1e-5f,
                           in[part].as<float>());
      const auto y = down(in[part].as<float>(), kRows * n);
      std::vector<float> expected(size_t(2 * n), 0.0f);
      for (int r = 0; r < kRows; ++r) {
        rms_norm_ref(&x[size_t(2 * r * n)], weight.data(), 1e-5f, 2 * n, expected.data());
        for (int i = 0; i < n; ++i) {
          const float whole = expected[size_t(part * n + i)];
          ASSERT_NEAR(y[size_t(r * n + i)], whole, 1.5f * 0x1p-23f * std::abs(whole)) << n << ", part " << part;
        }
      }
    }
  }
}

TEST_F(OpsCuda, SquaresOfPartsThatOverflowGiveNoNumbers) {
  std::vector<float> x = normal_floats(5, 2 * 33, 3);
  x[7] = 1e25f;  // of row 0
  const gpu::Buffer dx = up(x), dw = up(normal_floats(6, 33)), sums(4 * 2);
  device_sum_squares(stream(), 2, 33, dx.as<float>(), sums.as<float>());
  device_rms_norm_part(stream(), 2, 33, 66, sums.as<float>(), dw.as<float>(), 1e-5f, dx.as<float>());
  const auto y = down(dx.as<float>(), 2 * 33);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i >= 33) << i;
}

/// x += factor norm(y) and x += factor y: the norm's float may be off by an ulp, the sum is one fused step here.
TEST_F(OpsCuda, ScaledSumsAreTheReference) {
  constexpr int kRows = 3;
  constexpr float kFactor = 0.22f;
  for (const int n : {1, 33, 1000}) {
    const auto x = normal_floats(1, kRows * n), y = normal_floats(2, kRows * n, 3), weight = normal_floats(3, n);
    const gpu::Buffer plain = up(x), normed = up(x), dy = up(y), dw = up(weight);
    device_add(stream(), kRows * n, plain.as<float>(), dy.as<float>(), kFactor);
    device_add_normed(stream(), kRows, n, normed.as<float>(), dy.as<float>(), dw.as<float>(), 1e-5f, kFactor);
    const auto sums = down(plain.as<float>(), kRows * n), normed_sums = down(normed.as<float>(), kRows * n);
    std::vector<float> of_row(size_t(n), 0.0f);
    for (int r = 0; r < kRows; ++r) {
      rms_norm_ref(&y[size_t(r * n)], weight.data(), 1e-5f, n, of_row.data());
      for (int i = 0; i < n; ++i) {
        const auto at = size_t(r * n + i);
        const double added = double(kFactor) * of_row[size_t(i)], of_y = double(kFactor) * y[at];
        ASSERT_NEAR(normed_sums[at], x[at] + added, 0x1p-23 * (std::abs(x[at] + added) + std::abs(added))) << n;
        ASSERT_NEAR(sums[at], x[at] + of_y, 0x1p-24 * std::abs(x[at] + of_y)) << n;
      }
    }
  }
}

TEST_F(OpsCuda, ElementWiseOpsAreTheReference) {
  constexpr int kRows = 3, kN = 300;
  const auto a = normal_floats(8, kRows * kN, 4), b = normal_floats(9, kRows * kN);
  const gpu::Buffer db = up(b);
  const gpu::Buffer gate = up(a), sum = up(a), biased = up(a);
  device_swiglu(stream(), kRows * kN, gate.as<float>(), db.as<float>());
  device_add(stream(), kRows * kN, sum.as<float>(), db.as<float>());
  device_add_bias(stream(), kRows, kN, biased.as<float>(), db.as<float>());
  std::vector<float> expected = a;
  swiglu_ref(expected.data(), b.data(), kRows * kN);
  const auto got_gate = down(gate.as<float>(), kRows * kN), got_sum = down(sum.as<float>(), kRows * kN),
             got_biased = down(biased.as<float>(), kRows * kN);
  for (size_t i = 0; i < size_t(kRows) * kN; ++i) {
    ASSERT_NEAR(got_gate[i], expected[i], 0x1p-23 * std::abs(expected[i])) << i;
    ASSERT_EQ(got_sum[i], a[i] + b[i]);
    ASSERT_EQ(got_biased[i], a[i] + b[i % kN]);
  }
}

TEST_F(OpsCuda, OpsOfOneMatrixAreTheReference) {
  constexpr int kRows = 3, kN = 300;
  const auto a = normal_floats(8, kRows * kN, 4), weight = normal_floats(9, kN);
  const float factor = 0.37f;
  const gpu::Buffer dw = up(weight), df = up(std::vector{factor}), normed = up(a), squared = up(a), scaled = up(a),
                    capped = up(a);
  device_layer_norm(stream(), kRows, kN, normed.as<float>(), dw.as<float>(), 1e-5f, normed.as<float>());  // in place
  device_relu2(stream(), kRows * kN, squared.as<float>());
  device_scale(stream(), kRows * kN, scaled.as<float>(), df.as<float>());
  device_soft_cap(stream(), kRows * kN, capped.as<float>(), 3.0f);
  CpuContext context(1, Isa::scalar);
  const auto expect = [&](const gpu::Buffer& given, double relative, const auto& op) {
    std::vector<float> expected = a;
    op(View2<float>(expected.data(), kRows, kN));
    const std::vector<float> got = down(given.as<float>(), kRows * kN);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], relative * std::abs(expected[i])) << i;
  };
  // A mean is a double's rounded to float: where it rounds the other way, values are off by an ulp of the mean, which
  // is below one, beside values that may be as small as 2^-6.
  expect(normed, 0x1p-16, [&](View2<float> x) { layer_norm(context, x, weight.data(), 1e-5f, x); });
  expect(squared, 0, [&](View2<float> x) { relu2(context, x); });
  expect(scaled, 0, [&](View2<float> x) { scale(context, x, factor); });
  expect(capped, 0x1p-21, [&](View2<float> x) { soft_cap(context, x, 3.0f); });
}

/// Heads of rows in any order, whose angles are in the order of the list.
TEST_F(OpsCuda, HeadsAreTurnedAndThenNormed) {
  constexpr int kRows = 5, kHeads = 3, kDim = 44, kPairs = 16;
  const std::vector<int32_t> order = {4, 0, 3, 1, 2}, positions = {7, 0, 100, 3, 41};
  std::vector<StepRow> list;
  for (int i = 0; i < kRows; ++i) list.push_back({.row = order[size_t(i)], .position = positions[size_t(i)]});
  Rope rope;
  for (int i = 0; i < kPairs; ++i) rope.frequency.push_back(std::pow(1e-3, double(i) / kPairs));
  const auto x = normal_floats(3, kRows * kHeads * kDim), weight = normal_floats(4, kDim);
  const gpu::Buffer rows = up(list), dw = up(weight), frequency = up(rope.frequency), cosines(4 * kRows * kPairs),
                    sines(4 * kRows * kPairs);
  const StepRows step{.n = kRows, .rows = rows.as<StepRow>()};
  device_rope_angles(stream(), step, kPairs, frequency.as<double>(), 1, cosines.as<float>(), sines.as<float>());
  for (const RopePairs pairs : {RopePairs::halves, RopePairs::interleaved}) {
    const gpu::Buffer dx = up(x);
    device_turn_and_norm(stream(), {.rows = step,
                                    .n_heads = kHeads,
                                    .head_dim = kDim,
                                    .norm = dw.as<float>(),
                                    .norm_eps = 1e-5f,
                                    .cosines = cosines.as<float>(),
                                    .sines = sines.as<float>(),
                                    .n_pairs = kPairs,
                                    .rope_halves = pairs == RopePairs::halves,
                                    .x = dx.as<float>()});
    rope.pairs = pairs;
    std::vector<int32_t> of_row(kRows, 0);
    for (int i = 0; i < kRows; ++i) of_row[size_t(order[size_t(i)])] = positions[size_t(i)];
    CpuContext context(1, Isa::scalar);
    std::vector<float> expected = x;
    apply_rope(context, RopeAngles(context, rope, of_row), kDim, View2<float>(expected.data(), kRows, kHeads * kDim));
    const View2<float> heads(expected.data(), kRows * kHeads, kDim);
    rms_norm(context, heads, weight.data(), 1e-5f, heads);
    const std::vector<float> got = down(dx.as<float>(), ssize(x));
    for (size_t i = 0; i < got.size(); ++i)  // a turn is a sum of two products, each of values below 8
      ASSERT_NEAR(got[i], expected[i], 0x1p-20 * (1 + std::abs(expected[i]))) << i;
  }
}

TEST_F(OpsCuda, RowsAndColumnsAreCopied) {
  constexpr int kRows = 5, kN = 300, kFirst = 7, kColumns = 33;
  const auto a = normal_floats(8, kRows * kN);
  const std::vector<int32_t> rows = {4, 0, 4, 1};
  const gpu::Buffer from = up(a), ids = up(rows), gathered(4 * 4 * kN), columns(4 * kRows * kColumns);
  device_gather_rows(stream(), 4, kN, ids.as<int32_t>(), from.as<float>(), gathered.as<float>());
  device_copy_columns(stream(), kRows, kColumns, from.as<float>() + kFirst, kN, columns.as<float>());
  const auto got = down(gathered.as<float>(), 4 * kN), got_columns = down(columns.as<float>(), kRows * kColumns);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], a[size_t(rows[i / kN]) * kN + i % kN]);
  for (size_t i = 0; i < got_columns.size(); ++i)
    ASSERT_EQ(got_columns[i], a[i / kColumns * kN + kFirst + i % kColumns]);
}

/// The embedding's rows are the bits of decode, in every format.
TEST_F(OpsCuda, EmbeddingsAreTheFormatsRows) {
  constexpr int kRows = 6, kCols = 768;  // blocks of most formats do not divide by those of a warp
  for (const WeightFormat& format : weight_formats())
    for (const float scale : {1.0f, 0.37f}) {
      Rng rng(3);
      const std::vector<std::byte> blocks = random_blocks(format, rng, 1, kRows * kCols);
      const DeviceRows table = upload_rows(
          stream(), {.format = &format, .n_out = kRows, .n_in = kCols, .rows = blocks.data(), .scale = scale});
      const std::vector<int32_t> tokens = {2, 5, 2};
      const gpu::Buffer ids = up(tokens), x = up(std::vector<float>(3 * kCols + 1, 7.0f));
      device_embed(stream(), 3, ids.as<int32_t>(), table, x.as<float>());
      const auto got = down(x.as<float>(), 3 * kCols + 1);
      std::vector<float> row(kCols);
      for (size_t i = 0; i < tokens.size(); ++i) {
        format.decode(blocks.data() + tokens[i] * format.row_bytes(kCols), kCols, row.data());
        for (size_t d = 0; d < row.size(); ++d)
          ASSERT_EQ(got[i * kCols + d], scale == 1 ? row[d] : row[d] * scale) << format.name << ", column " << d;
      }
      EXPECT_EQ(got.back(), 7.0f) << format.name << " wrote past its end";
    }
}

TEST_F(OpsCuda, ScoresAreTheHostsStatistics) {
  constexpr int kRows = 6;
  for (const int vocab : {2, 31, 512, 1000}) {
    auto base = normal_floats(10, kRows * vocab, 5);
    auto candidate = base;
    const auto noise = normal_floats(11, kRows * vocab, 0.1);
    for (size_t i = 0; i < candidate.size(); ++i) candidate[i] += noise[i];
    candidate[0] = candidate[1] = 40;        // two equal largest: the first counts
    base[size_t(vocab)] = -800;              // a probability that underflows
    candidate[size_t(2 * vocab + 1)] = NAN;  // row 2
    base[size_t(3 * vocab)] = INFINITY;      // row 3
    std::vector<int32_t> targets;
    for (int r = 0; r < kRows; ++r) targets.push_back(r * 7 % vocab);
    const gpu::Buffer db = up(base), dc = up(candidate), dt = up(targets);
    gpu::Buffer out(kRows * int64_t(sizeof(RowScore)));
    for (const bool has_base : {true, false}) {
      device_score(stream(), kRows, vocab, has_base ? db.as<float>() : nullptr, dc.as<float>(), dt.as<int32_t>(),
                   out.as<RowScore>());
      const auto scores = down(out.as<RowScore>(), kRows);
      for (int r = 0; r < kRows; ++r) {
        const auto row = [&](const std::vector<float>& rows) {
          return std::span(rows).subspan(size_t(r * vocab), size_t(vocab));
        };
        const RowScore& score = scores[size_t(r)];
        const RowScore expected =
            score_row(has_base ? row(base) : std::span<const float>(), row(candidate), targets[size_t(r)]);
        ASSERT_EQ(score.finite, expected.finite) << vocab << " " << r;
        if (score.finite != (has_base ? 3 : 1)) continue;
        EXPECT_NEAR(score.nll, expected.nll, 1e-11);
        EXPECT_NEAR(score.nll_base, expected.nll_base, 1e-11);
        EXPECT_NEAR(score.kld, expected.kld, 1e-11);
        EXPECT_NEAR(score.delta_p, expected.delta_p, 1e-11);
        EXPECT_EQ(score.same_top, expected.same_top) << vocab << " " << r;
      }
    }
  }
}

}  // namespace
}  // namespace ridge
