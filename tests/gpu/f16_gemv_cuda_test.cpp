// Products of a few tokens with weights in bricks, against double precision.
#include <algorithm>

#include "gpu/brick_data.h"
#include "gpu/graph.h"
#include "ridge/error.h"

namespace ridge {
namespace {

class F16GemvCuda : public OnBricks {
 protected:
  void expect_close(const char* format, int64_t n_out, int64_t n_in, int n_tokens, int n_blocks = 0) {
    const BrickRows rows(format, n_out, n_in, uint64_t(n_out * 7 + n_in));
    const std::vector<float> x = normal_floats(uint64_t(n_tokens), n_tokens * n_in, 2);
    const BrickReference expected(rows, x, plane_error(format, 2));
    const auto y = product(bricks({&rows}), {.x = x, .n_blocks = n_blocks});
    EXPECT_TRUE(within(y[0], expected.y, expected.bound))
        << format << " " << n_tokens << " x " << n_out << " x " << n_in << ", " << n_blocks << " blocks";
  }
};

TEST_F(F16GemvCuda, BricksAreAsLargeAsTheFile) {
  for (const char* name : kBrickFormats) {
    const WeightFormat& format = **find_weight_format(name);
    const int64_t n_out[] = {48, 16};
    const int64_t scale_bytes = keeps_matrix_scale(*find_brick_format(name)) ? 1536 / 128 : 0;  // of a row
    const int64_t row_bytes = format.row_bytes(1536) + scale_bytes;
    EXPECT_EQ(make_brick_matrix(*find_brick_format(name), 1536, n_out).bytes(), 64 * row_bytes) << name;
    const int64_t n_ff[] = {40};
    EXPECT_EQ(make_brick_matrix(*find_brick_format(name), 1536, n_ff, true).bytes(), 80 * row_bytes) << name;
  }
  EXPECT_FALSE(find_brick_format("tq2_0"));
}

TEST_F(F16GemvCuda, EveryFormatAtEveryBatch) {
  for (const char* format : kBrickFormats)
    for (const int n_tokens : {1, 2, 3, 4, 5, 8, 9, 16}) expect_close(format, 49, 768, n_tokens);
}

TEST_F(F16GemvCuda, WideBatches) {
  for (const char* format : kBrickFormats)
    for (const int n_tokens : {17, 33, 64}) expect_close(format, 33, 256, n_tokens);
}

TEST_F(F16GemvCuda, EveryShape) {
  for (const char* format : kBrickFormats) {
    const int group = (*find_weight_format(format))->group;
    for (const int n_out : {1, 15, 16, 17, 140})
      for (const int n_in : {group, 3 * group, 8, 32, 96, 172, 1536})
        if (n_in % group == 0) expect_close(format, n_out, n_in, 1 + n_out % 4);
  }
}

TEST_F(F16GemvCuda, EverySplitOfTheWork) {
  for (const char* format : kBrickFormats)
    for (const int n_blocks : {1, 2, 3, 7, 132}) {
      expect_close(format, 40, 768, 2, n_blocks);
      expect_close(format, 140, 512, 6, n_blocks);
    }
}

TEST_F(F16GemvCuda, LongRowsInSegments) {
  for (const char* format : {"f16", "q4_k"})
    for (const int n_tokens : {1, 4})
      for (const int n_blocks : {0, 1, 13}) expect_close(format, 17, 28672, n_tokens, n_blocks);
}

TEST_F(F16GemvCuda, SameBitsEveryTime) {
  for (const char* format : {"f16", "q6_k"})
    for (const int n_tokens : {3, 7}) {
      const BrickRows rows(format, 50, 1024, 3);
      const BrickMatrix w = bricks({&rows});
      const BrickRun run{.x = normal_floats(1, n_tokens * 1024), .n_blocks = 5};
      const auto first = product(w, run);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(product(w, run), first);
    }
}

TEST_F(F16GemvCuda, ReplaysInAGraph) {
  for (const int64_t n_tokens : {2, 6}) {
    const BrickRows rows("q4_0", 70, 512, 3);
    const BrickMatrix w = bricks({&rows});
    const std::vector<float> x = normal_floats(1, n_tokens * 512);
    const auto expected = product(w, {.x = x, .n_blocks = 7});
    const gpu::Buffer dx = up(x), y(n_tokens * 70 * 4);
    BrickCall call{.n_tokens = n_tokens, .x = dx.as<float>(), .residual = true, .n_blocks = 7, .overlap = true};
    call.y[0] = y.as<float>();
    const gpu::Buffer scratch(brick_scratch_bytes(w, call));
    const gpu::Graph graph(stream(), [&] {
      for (int i = 0; i < 2; ++i) device_f16_gemv(stream(), w, call, scratch);
    });
    for (int i = 0; i < 3; ++i) graph.launch(stream());
    const std::vector<float> sum = down(y.as<float>(), n_tokens * 70);  // of six equal products
    for (size_t i = 0; i < sum.size(); ++i) {
      float added = 0;
      for (int n = 0; n < 6; ++n) added += expected[0][i];
      EXPECT_EQ(sum[i], added);
    }
  }
}

TEST_F(F16GemvCuda, BothPlanesCount) {
  // Every value lies between two f16, and all errors of the first plane have one sign.
  for (const char* format : {"f16", "bf16"})
    for (const int n_tokens : {1, 5}) {
      const float off = format[0] == 'b' ? 0x1p-9f : 0x1p-12f;
      BrickRows rows(format, 16, 512, 1);
      std::fill(rows.weights.begin(), rows.weights.end(), 0.5f);
      rows.format.encode(rows.weights.data(), 16 * 512, rows.bytes.data());
      const auto y = product(bricks({&rows}), {.x = std::vector<float>(size_t(n_tokens * 512), 1 + off)});
      for (const float value : y[0]) EXPECT_EQ(value, 256 * (1 + off)) << format;
    }
}

TEST_F(F16GemvCuda, XOfEverySize) {
  for (const char* format : {"f16", "bf16", "q4_k"})
    for (const int n_tokens : {4, 6}) {
      const BrickRows rows(format, 17, 512, 9);
      std::vector<float> x;
      for (int t = 0; t < n_tokens; ++t) {
        constexpr double kSpread[] = {1e-36, 1e-12, 0, 1e5, 3e15, 1e30};
        const std::vector<float> row = normal_floats(uint64_t(t), 512, kSpread[t]);
        x.insert(x.end(), row.begin(), row.end());
      }
      const BrickReference expected(rows, x, plane_error(format, 2));
      EXPECT_TRUE(within(product(bricks({&rows}), {.x = x})[0], expected.y, expected.bound)) << format;
    }
}

TEST_F(F16GemvCuda, ExponentsOfEverySize) {
  for (const int n_tokens : {2, 5})
    for (const int first : {0, 64, 128}) {
      BrickRows rows("mxfp4", 16, 2048, 3);
      for (size_t block = 0; block < rows.bytes.size(); block += 17)
        rows.bytes[block] = std::byte(first + int(block / 17 % 64));
      rows.format.decode(rows.bytes.data(), 16 * 2048, rows.weights.data());
      for (size_t i = 0; i < rows.weights.size(); ++i) rows.magnitude[i] = std::abs(rows.weights[i]);
      std::vector<float> x = normal_floats(1, n_tokens * 2048);  // as small as the weights are large
      for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], 120 - first - int(i % 2048 / 32));
      for (const size_t group : {0, 1, 2, 31, 32, 63}) {  // alone: no other group's products are so large as to hide it
        std::vector<float> part(x.size());
        for (size_t i = 0; i < x.size(); ++i)
          if (i % 2048 / 32 == group) part[i] = x[i];
        const BrickReference expected(rows, part, plane_error("mxfp4", 2));
        EXPECT_TRUE(within(product(bricks({&rows}), {.x = part})[0], expected.y, expected.bound))
            << first << " " << group;
      }
    }
}

TEST_F(F16GemvCuda, ABadTokenIsAlone) {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const int n_tokens : {4, 6}) {
      const BrickRows rows("q8_0", 20, 128, 9);
      std::vector<float> x = normal_floats(4, n_tokens * 128);
      const std::vector<float> good = product(bricks({&rows}), {.x = x})[0];
      x[128 + 77] = bad;
      const std::vector<float> y = product(bricks({&rows}), {.x = x})[0];
      for (size_t i = 0; i < y.size(); ++i)
        if (i / 20 == 1) EXPECT_FALSE(std::isfinite(y[i]));
        else EXPECT_EQ(y[i], good[i]);
    }
}

TEST_F(F16GemvCuda, ANormWhoseSquaresOverflowGivesNoNumbers) {
  for (const int n_tokens : {1, 3, 6}) {
    const BrickRows rows("q8_0", 20, 128, 9);
    BrickRun run{.x = normal_floats(4, n_tokens * 128), .norm_weight = normal_floats(5, 128), .norm_eps = 1e-5f};
    const std::vector<float> good = product(bricks({&rows}), run)[0];
    run.x[77] = 1e25f;  // of token 0
    const std::vector<float> y = product(bricks({&rows}), run)[0];
    for (size_t i = 0; i < y.size(); ++i)
      if (i < 20) EXPECT_FALSE(std::isfinite(y[i]));
      else EXPECT_EQ(y[i], good[i]);
  }
}

/// x as rms_norm of op/norm_rope has it, in double.
std::vector<float> normalised(const std::vector<float>& x, const std::vector<float>& weight, float eps) {
  const size_t n = weight.size();
  std::vector<float> y(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    double squares = 0;
    for (size_t k = 0; k < n; ++k) squares += double(x[row + k]) * x[row + k];
    const double factor = 1 / std::sqrt(squares / double(n) + eps);
    for (size_t k = 0; k < n; ++k) y[row + k] = float(x[row + k] * factor * weight[k]);
  }
  return y;
}

TEST_F(F16GemvCuda, NormBiasAndResidual) {
  for (const char* format : {"f16", "q4_k", "q6_k"})
    for (const int n_tokens : {1, 3, 6})
      for (const int n_blocks : {0, 9}) {
        const BrickRows rows(format, 37, 768, 9);
        BrickRun run{.x = normal_floats(4, n_tokens * 768, 30),
                     .norm_weight = normal_floats(5, 768),
                     .norm_eps = 1e-5f,
                     .bias = {normal_floats(6, 37)},
                     .residual = {normal_floats(7, n_tokens * 37, 5)},
                     .n_blocks = n_blocks};
        // The normalised x may differ in its last bit, as the squares are added in another order.
        BrickReference expected(rows, normalised(run.x, run.norm_weight, run.norm_eps), 0x1p-21);
        for (size_t i = 0; i < expected.y.size(); ++i) {
          expected.y[i] += double(run.bias[0][i % 37]) + run.residual[0][i];
          expected.bound[i] += 0x1p-22 * (std::abs(expected.y[i]) + 10);
        }
        EXPECT_TRUE(within(product(bricks({&rows}), run)[0], expected.y, expected.bound)) << format << n_tokens;
      }
}

TEST_F(F16GemvCuda, SeveralMatricesInOneLaunch) {
  for (const int n_tokens : {2, 5}) {
    const BrickRows q("q8_0", 40, 256, 1), k("q8_0", 9, 256, 2), v("q8_0", 16, 256, 3);
    const std::vector<float> x = normal_floats(4, n_tokens * 256);
    const auto y =
        product(bricks({&q, &k, &v}),
                {.x = x, .bias = {normal_floats(1, 40), normal_floats(2, 9), normal_floats(3, 16)}, .n_blocks = 3});
    int part = 0;
    for (const BrickRows* rows : {&q, &k, &v}) {
      BrickReference expected(*rows, x, 0x1p-22);
      const std::vector<float> bias = normal_floats(uint64_t(part + 1), rows->n_out);
      for (size_t i = 0; i < expected.y.size(); ++i) {
        expected.y[i] += double(bias[i % bias.size()]);
        expected.bound[i] += 0x1p-23 * std::abs(expected.y[i]);
      }
      EXPECT_TRUE(within(y[size_t(part++)], expected.y, expected.bound));
    }
  }
}

TEST_F(F16GemvCuda, GatedPairs) {
  for (const char* format : {"f16", "q4_0"})
    for (const BrickGlu glu : {BrickGlu::silu, BrickGlu::relu2})
      for (const int n_tokens : {1, 4, 5}) {
        const BrickRows gate(format, 43, 512, 1), up(format, 43, 512, 2);
        const std::vector<float> x = normal_floats(4, n_tokens * 512, 5);
        const BrickReference g(gate, x, 0x1p-22), u(up, x, 0x1p-22);
        std::vector<double> expected, bound;
        for (size_t i = 0; i < g.y.size(); ++i) {
          const double a = g.y[i], positive = std::max(a, 0.0);
          const double activated = glu == BrickGlu::silu ? a / (1 + std::exp(-a)) : positive * positive;
          const double slope = glu == BrickGlu::silu ? 1.1 : 2 * (positive + g.bound[i]);
          expected.push_back(activated * u.y[i]);
          bound.push_back(slope * g.bound[i] * (std::abs(u.y[i]) + u.bound[i]) + std::abs(activated) * u.bound[i] +
                          0x1p-19 * std::abs(expected.back()) + 1e-30);
        }
        EXPECT_TRUE(within(product(bricks({&gate, &up}, true), {.x = x, .glu = glu})[0], expected, bound)) << format;
      }
}

TEST_F(F16GemvCuda, RefusesCallsThatMakeNoSense) {
  const int64_t n_out[] = {20}, none[] = {0};
  EXPECT_THROW(make_brick_matrix(BrickFormat::q4_k, 128, n_out), Error);
  EXPECT_THROW(make_brick_matrix(BrickFormat::f16, 128, none), Error);
  const BrickMatrix pair = make_brick_matrix(BrickFormat::q8_0, 128, n_out, true);
  const gpu::Buffer memory(1 << 16);
  auto* const floats = memory.as<float>();
  EXPECT_THROW(device_fill_bricks(stream(), pair, 0, 4, 8, floats, floats), Error);
  EXPECT_THROW(device_fill_bricks(stream(), pair, 0, 0, 9, floats, floats), Error);
  EXPECT_THROW(device_fill_bricks(stream(), pair, 0, 8, 16, floats, floats), Error);
  EXPECT_THROW(device_fill_bricks(stream(), pair, 0, 0, 8, floats), Error);
  BrickCall call{.n_tokens = 5, .x = floats};
  call.y[0] = floats;
  EXPECT_THROW(device_f16_gemv(stream(), pair, call, memory), Error);  // scratch of 64 KiB
  const gpu::Buffer scratch(brick_scratch_bytes(pair, call));
  EXPECT_NO_THROW(device_f16_gemv(stream(), pair, call, scratch));
  call.residual = true;
  EXPECT_THROW(device_f16_gemv(stream(), pair, call, scratch), Error);
  call = {.n_tokens = 1, .x = floats};
  EXPECT_THROW(device_f16_gemv(stream(), pair, call, scratch), Error);
  call.y[0] = floats, call.n_tokens = 0;
  EXPECT_THROW(device_f16_gemv(stream(), pair, call, scratch), Error);
  stream().synchronize();
}

}  // namespace
}  // namespace ridge
