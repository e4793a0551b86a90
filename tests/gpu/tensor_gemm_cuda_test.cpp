// Products of many rows with weights in bricks, against double precision.
#include "gpu/brick_data.h"
#include "ridge/error.h"

namespace ridge {
namespace {

class TensorGemmCuda : public OnBricks {
 protected:
  void expect_close(const char* format, int64_t n_out, int64_t n_in, int n_tokens, int planes, int n_blocks = 0) {
    const BrickRows rows(format, n_out, n_in, uint64_t(n_out * 7 + n_in));
    const std::vector<float> x = normal_floats(uint64_t(n_tokens), n_tokens * n_in, 2);
    const BrickReference expected(rows, x, plane_error(format, planes));
    const auto y = product(bricks({&rows}), {.x = x, .n_blocks = n_blocks, .planes = planes});
    EXPECT_TRUE(within(y[0], expected.y, expected.bound))
        << format << " " << n_tokens << " x " << n_out << " x " << n_in << ", " << planes << " planes, " << n_blocks
        << " blocks";
  }
};

TEST_F(TensorGemmCuda, EveryFormatAndWidth) {
  for (const char* format : kBrickFormats)
    for (const int planes : {1, 2})
      for (const int n_tokens : {1, 17, 65, 130, 300})
        if (n_tokens == 300 ? planes == 1 && format[0] == 'f' : n_tokens * planes <= 130)
          expect_close(format, 49, 256, n_tokens, planes);
}

TEST_F(TensorGemmCuda, AColumnAloneIsTheWeights) {
  constexpr int kIn = 256, kOut = 17;
  std::vector<float> ones(kIn * kIn);
  for (size_t k = 0; k < kIn; ++k) ones[k * kIn + k] = 1;
  for (const char* format : kBrickFormats) {
    const BrickRows rows(format, kOut, kIn, 5);
    const std::vector<float> y = product(bricks({&rows}), {.x = ones, .planes = 1})[0];
    // A scale of the matrix is multiplied with those of groups first: two roundings there and one here.
    const double roundings = rows.matrix_scale == 1 ? 0 : 3;
    for (size_t k = 0; k < kIn; ++k)
      for (size_t o = 0; o < kOut; ++o) {
        const double weight = rows.weights[o * kIn + k];
        ASSERT_NEAR(y[k * kOut + o], weight, roundings * 0x1p-24 * std::abs(weight))
            << format << ", row " << o << ", column " << k;
      }
  }
}

TEST_F(TensorGemmCuda, EveryTail) {
  for (const char* format : kBrickFormats) {
    const int group = (*find_weight_format(format))->group;
    for (const int n_out : {1, 128, 261})
      for (const int n_in : {group, 96, 172, 512})
        if (n_in % group == 0) expect_close(format, n_out, n_in, 66 + n_out % 5, 1);
  }
}

TEST_F(TensorGemmCuda, EverySplitOfTheWork) {
  for (const char* format : {"f16", "q4_k"})
    for (const int n_blocks : {1, 2, 3, 7, 132}) expect_close(format, 200, 512, 130, 1, n_blocks);
}

TEST_F(TensorGemmCuda, HighAreas) {
  // A block reads 256 KiB of x and more.
  for (const char* format : kBrickFormats)
    for (const int n_tokens : {8, 15, 30}) expect_close(format, 300, 3072, n_tokens, 2, 1);
  expect_close("q8_0", 300, 8192, 15, 2, 3);
}

TEST_F(TensorGemmCuda, SameBitsEveryTime) {
  const BrickRows rows("q8_0", 150, 512, 3);
  const BrickMatrix w = bricks({&rows});
  const BrickRun run{.x = normal_floats(1, 140 * 512), .n_blocks = 5, .planes = 1};
  const auto first = product(w, run);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(product(w, run), first);
}

TEST_F(TensorGemmCuda, ScalesWhatF16CannotHold) {
  const BrickRows rows("f16", 17, 128, 9);
  std::vector<float> x;
  for (int t = 0; t < 70; ++t) {
    const std::vector<float> row = normal_floats(uint64_t(t), 128, std::pow(10.0, t - 35));
    x.insert(x.end(), row.begin(), row.end());
  }
  const BrickReference expected(rows, x, plane_error("f16", 1));
  EXPECT_TRUE(within(product(bricks({&rows}), {.x = x, .planes = 1})[0], expected.y, expected.bound));
}

TEST_F(TensorGemmCuda, ANormWhoseSquaresOverflowGivesNoNumbers) {
  const BrickRows rows("f16", 17, 128, 9);
  for (const int planes : {1, 2}) {
    BrickRun run{
        .x = normal_floats(4, 70 * 128), .norm_weight = normal_floats(5, 128), .norm_eps = 1e-6f, .planes = planes};
    const std::vector<float> good = product(bricks({&rows}), run)[0];
    run.x[9 * 128 + 5] = -1e25f;
    const std::vector<float> y = product(bricks({&rows}), run)[0];
    for (size_t i = 0; i < y.size(); ++i)
      if (i / 17 == 9) EXPECT_FALSE(std::isfinite(y[i]));
      else EXPECT_EQ(y[i], good[i]);
  }
}

TEST_F(TensorGemmCuda, GatedPairsAfterANorm) {
  constexpr int kTokens = 70, kIn = 256;
  const BrickRows gate("q6_k", 75, kIn, 1), up("q6_k", 75, kIn, 2);
  const BrickRun run{
      .x = normal_floats(4, kTokens * kIn, 5), .norm_weight = normal_floats(5, kIn), .norm_eps = 1e-6f, .planes = 2};
  std::vector<float> x = run.x;
  for (size_t row = 0; row < x.size(); row += kIn) {
    double squares = 0;
    for (size_t k = 0; k < kIn; ++k) squares += double(x[row + k]) * x[row + k];
    for (size_t k = 0; k < kIn; ++k)
      x[row + k] = float(x[row + k] * (1 / std::sqrt(squares / kIn + run.norm_eps)) * run.norm_weight[k]);
  }
  // The squares are added in another order, which can change the last bit of x.
  const BrickReference g(gate, x, 0x1p-21), u(up, x, 0x1p-21);
  std::vector<double> expected, bound;
  for (size_t i = 0; i < g.y.size(); ++i) {
    const double activated = g.y[i] / (1 + std::exp(-g.y[i]));
    expected.push_back(activated * u.y[i]);
    bound.push_back(1.1 * g.bound[i] * (std::abs(u.y[i]) + u.bound[i]) + std::abs(activated) * u.bound[i] +
                    0x1p-19 * std::abs(expected.back()));
  }
  EXPECT_TRUE(within(product(bricks({&gate, &up}, true), run)[0], expected, bound));
}

class WideGemmCuda : public OnBricks {
 protected:
  void SetUp() override {
    OnBricks::SetUp();
    if (!IsSkipped() && !gpu::device_has_warpgroups()) GTEST_SKIP() << "no products of warpgroups on this device";
  }
  void expect_close(const char* format, int64_t n_out, int64_t n_in, int n_tokens, int n_blocks = 0) {
    if (std::string_view(format) == "bf16") return;
    const BrickRows rows(format, n_out, n_in, uint64_t(n_out * 7 + n_in));
    const std::vector<float> x = normal_floats(uint64_t(n_tokens), n_tokens * n_in, 2);
    const BrickReference expected(rows, x, kWideError, kWideSmallWeights);
    const auto y = product(bricks({&rows}), {.x = x, .n_blocks = n_blocks, .planes = kWidePlanes});
    EXPECT_TRUE(within(y[0], expected.y, expected.bound))
        << format << " " << n_tokens << " x " << n_out << " x " << n_in << ", " << n_blocks << " blocks";
  }
};

TEST_F(WideGemmCuda, EveryFormatAndTail) {
  for (const char* format : kBrickFormats) {
    const int group = (*find_weight_format(format))->group;
    for (const int n_in : {group, 172, 512})
      if (n_in % group == 0) expect_close(format, n_in == 512 ? 261 : 17, n_in, n_in == 172 ? 65 : 17);
  }
}

TEST_F(WideGemmCuda, EverySplitOfTheWork) {
  // Rings go round, areas are shared, steps are of 64, 128 and 256 columns.
  for (const char* format : {"f16", "q8_0", "q4_k"})
    for (const int n_blocks : {1, 5}) expect_close(format, 261, 768, 130, n_blocks);
}

TEST_F(WideGemmCuda, SameBitsEveryTime) {
  const BrickRows rows("q6_k", 100, 512, 3);
  const BrickMatrix w = bricks({&rows});
  const BrickRun run{.x = normal_floats(1, 70 * 512), .n_blocks = 2, .planes = kWidePlanes};
  const auto first = product(w, run);
  EXPECT_EQ(product(w, run), first);
}

TEST_F(TensorGemmCuda, RefusesWhatItHasNotGot) {
  const int64_t n_out[] = {20};
  const BrickMatrix w = make_brick_matrix(BrickFormat::f16, 128, n_out);
  const gpu::Buffer memory(1 << 16);
  BrickCall call{.n_tokens = 70, .x = memory.as<float>()};
  call.y[0] = memory.as<float>();
  EXPECT_THROW(tensor_gemm_scratch_bytes(w, call, 3), Error);
  EXPECT_THROW(device_tensor_gemm(stream(), w, call, 0, memory), Error);
  EXPECT_THROW(device_tensor_gemm(stream(), w, call, 1, memory), Error);  // scratch of 64 KiB
}

}  // namespace
}  // namespace ridge
