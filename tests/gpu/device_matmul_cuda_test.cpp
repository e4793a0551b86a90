// DeviceMatmul with every format and kernel of the device's table against double precision, within bounds that follow
// from how the kernels round, and against the CPU bit for bit where the design says so; the embedding's rows likewise.
#include "op/device_matmul.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "gpu/brick_data.h"
#include "op/gemv/rows_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using Floats = std::vector<float>;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kIn = 256;

Linear linear_of(const BrickRows& rows) {
  return {.format = &rows.format,
          .n_out = rows.n_out,
          .n_in = rows.n_in,
          .rows = rows.bytes.data(),
          .scale = rows.matrix_scale};
}

/// Ternary rows: codes -1, 0 and 1.
struct TernaryRows {
  std::vector<std::byte> bytes;
  Linear matrix;

  TernaryRows(int64_t n_out, uint64_t seed, bool int8_activations) {
    const WeightFormat& format = **find_weight_format("i2_s");
    bytes.resize(size_t(n_out * format.row_bytes(kIn)));
    format.encode(normal_floats(seed, n_out * kIn).data(), n_out * kIn, bytes.data());
    matrix = {.format = &format,
              .n_out = n_out,
              .n_in = kIn,
              .rows = bytes.data(),
              .scale = 0.0677f,
              .int8_activations = int8_activations};
  }
};

/// Of a product: values in double, and how far a kernel may be off.
struct Bounded {
  std::vector<double> y, bound;
};

/// int4_g128, or bricks in super-blocks of 256, with activations of one or two bytes. Half a step for every weight of a
/// group, where the step itself is known to 2^-13 (one plane) or 2^-6 (two); three rounded factors a group (of a
/// super-block 20, with its minima), float sums of groups and warps.
Bounded with_int8(const BrickRows& w, const Floats& x, int planes, size_t columns = 128) {
  const std::vector<double> sizes = product_sizes(w);
  Bounded e;
  for (size_t t = 0; t < x.size() / kIn; ++t)
    for (int64_t row = 0; row < w.n_out; ++row) {
      double value = 0, size = 0, error = 0;
      for (size_t group = 0; group < kIn; group += columns) {
        double top = 0, weights = 0;
        for (size_t k = group; k < group + columns; ++k) {
          const double weight = w.weights[size_t(row) * kIn + k], v = x[t * kIn + k];
          top = std::max(top, std::abs(v));
          weights += std::abs(weight);
          value += weight * v;
          size += sizes[size_t(row) * kIn + k] * std::abs(v);
        }
        const double half = planes == 1 ? top / 254 * (1 + 0x1p-13) : top / 127 / 508 * (1 + 0x1p-6);
        error += half * weights;
        size += half * weights;
      }
      e.y.push_back(value);
      e.bound.push_back(error + double((columns == 128 ? 5 : 22) * kIn / columns + 48) * 0x1p-24 * size);
    }
  return e;
}

/// `factor` is a bound for sums of |w x|, the second one for sums of |w| times the largest |x|.
Bounded with_factors(const BrickRows& w, const Floats& x, double of_products, double of_top) {
  Bounded e;
  for (size_t t = 0; t < x.size() / kIn; ++t)
    for (int64_t row = 0; row < w.n_out; ++row) {
      double value = 0, size = 0, top = 0, weights = 0;
      for (size_t k = 0; k < kIn; ++k) {
        const double weight = w.weights[size_t(row) * kIn + k], v = x[t * kIn + k];
        value += weight * v;
        size += std::abs(weight * v);
        top = std::max(top, std::abs(v));
        weights += std::abs(weight);
      }
      e.y.push_back(value);
      e.bound.push_back(of_products * size + of_top * top * weights);
    }
  return e;
}

/// What a kernel of the table gives, up to rounding.
Bounded expected_of(const BrickRows& w, const Floats& x, std::string_view kernel) {
  // A chain of kIn fused steps.
  if (kernel == "f32") return with_factors(w, x, double(kIn + 2) * 0x1p-24, 0);
  if (kernel == "int-1plane") return with_int8(w, x, 1);
  if (kernel == "int-2planes") return with_int8(w, x, 2);
  if (kernel == "bricks-int8" && ssize(x) <= kIntBrickTokens * kIn)
    return with_int8(w, x, 2, w.format.group == 256 ? 256 : 128);
  // Weights and activations to 2^-11 each; small activations to 2^-25 where the token's largest is at least 2^14; the
  // weights here are in f16's normal range or off by 2^-25.
  const bool is_wide = kernel == "bricks-f16" && ssize(x) >= kFewestWideTokens * kIn && gpu::device_has_warpgroups();
  if (kernel == "int4-f16" || is_wide) {
    Bounded e = with_factors(w, x, 0x1.01p-10 + double(kIn) * 0x1p-24, 0x1p-39);
    for (size_t i = 0; i < e.bound.size(); ++i) {
      double top = 0;
      for (size_t k = 0; k < kIn; ++k) top = std::max(top, std::abs(double(x[i / size_t(w.n_out) * kIn + k])));
      e.bound[i] += double(kIn) * top * 0x1p-25;
    }
    return e;
  }
  const BrickReference reference(w, x, plane_error(w.format.name.data(), kernel == "bricks-f16" ? 1 : 2));
  return {reference.y, reference.bound};
}

class DeviceMatmulCuda : public OnDevice {
 protected:
  using Biases = std::vector<const Floats*>;

  DeviceMatmul make(const std::vector<const Linear*>& matrices, const Biases& biases = {}, bool glu = false,
                    const ForcedKernels& forced = {}) const {
    const Biases all = biases.empty() ? Biases(matrices.size(), nullptr) : biases;
    DeviceMatmul product(stream(), matrices, all, glu, forced);
    EXPECT_EQ(product.bytes(), matmul_bytes(matrices, all, glu, forced).kept);
    return product;
  }
  /// The outputs of all matrices, or of the pair, which start as `before`.
  std::vector<Floats> run(const DeviceMatmul& product, const std::vector<int64_t>& n_out, const Floats& x,
                          MatmulOutput output = MatmulOutput::store, float before = NAN) {
    const gpu::Buffer dx = up(x);
    MatmulCall call{.n_tokens = int64_t(x.size()) / kIn,
                    .x = dx.as<float>(),
                    .norm_weight = norm_.as<float>(),
                    .norm_eps = 1e-5f,
                    .output = output};
    std::vector<gpu::Buffer> y;
    for (size_t i = 0; i < n_out.size(); ++i) {
      y.push_back(up(Floats(size_t(call.n_tokens * n_out[i]), before)));
      call.y[i] = y[i].as<float>();
    }
    product.run(stream(), call, scratch_);
    std::vector<Floats> results;
    for (size_t i = 0; i < n_out.size(); ++i) results.push_back(down(y[i].as<float>(), call.n_tokens * n_out[i]));
    return results;
  }

  gpu::Buffer norm_;  // of x; empty: none

 private:
  MatmulScratch scratch_;
};

constexpr int64_t kBatches[] = {1, 3, 16, 70};

TEST_F(DeviceMatmulCuda, EveryFormatAtEveryBatch) {
  std::vector<const char*> formats(std::begin(kBrickFormats), std::end(kBrickFormats));
  formats.push_back("f32");
  for (const char* format : formats) {
    const BrickRows rows(format, 37, kIn, 1);
    const Linear m = linear_of(rows);
    const DeviceMatmul product = make({&m});
    for (const int64_t n : kBatches) {
      const Floats x = normal_floats(uint64_t(n), n * kIn);
      const Bounded e = expected_of(rows, x, product.kernels(n)[0]);
      EXPECT_TRUE(within(run(product, {37}, x)[0], e.y, e.bound)) << format << ", tokens " << n;
    }
  }
}

/// As many rows as a vocabulary has, for as many tokens as a step may bring: the product runs in parts.
TEST_F(DeviceMatmulCuda, ScratchOfManyTokensIsThatOfAPart) {
  for (const char* format : {"q4_k", "f16", "mxfp4", "nvfp4", "fp8_g32"}) {
    const Linear m{.format = find_weight_format(format).or_throw(), .n_out = 151936, .n_in = 1536};
    const std::vector<const Linear*> matrices{&m};
    const std::vector<const std::vector<float>*> biases{nullptr};
    const DeviceMatmul product = DeviceMatmul::planned(matrices, biases, false, {});
    PlannedScratch some, more, most;
    product.plan_scratch({.n_tokens = 1024}, some);
    product.plan_scratch({.n_tokens = 1 << 14}, more);
    product.plan_scratch({.n_tokens = 1 << 15}, most);
    // With little shared memory a part has fewer tokens than the first.
    EXPECT_LE(some.bricks.size, more.bricks.size) << format;
    if (gpu::most_shared_bytes() >= gpu::kHopperSharedBytes) EXPECT_LT(some.bricks.size, more.bricks.size) << format;
    EXPECT_EQ(more.bricks.size, most.bricks.size) << format;
  }
}

/// Every packing over sorted columns (act-order): what the same matrix makes of inputs and norms that are sorted
/// already.
TEST_F(DeviceMatmulCuda, SortedColumnsMeetSortedInputs) {
  std::vector<int32_t> order(kIn);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[i * 7919 % (i + 1)]);
  const auto sorted = [&](const Floats& x) {
    Floats y(x.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = x[i / kIn * kIn + size_t(order[i % kIn])];
    return y;
  };
  for (const char* format : {"int4_g128", "q5_0", "q4_k", "f32"}) {
    const BrickRows rows(format, 37, kIn, 1);
    const Linear plain = linear_of(rows);
    Linear m = plain;
    m.order = order.data();
    const DeviceMatmul product = make({&m}), same = make({&plain});
    EXPECT_EQ(product.bytes(), same.bytes() + 4 * kIn);
    for (const int64_t n : kBatches) {
      const Floats x = normal_floats(uint64_t(n), n * kIn), norm = normal_floats(9, kIn);
      EXPECT_EQ(run(product, {37}, x), run(same, {37}, sorted(x))) << format << ", tokens " << n;
      EXPECT_EQ(run(product, {37}, x, MatmulOutput::add, 2), run(same, {37}, sorted(x), MatmulOutput::add, 2));
      norm_ = up(norm);
      const auto got = run(product, {37}, x);
      norm_ = up(sorted(norm));
      EXPECT_EQ(got, run(same, {37}, sorted(x))) << format << " behind a norm, tokens " << n;
      norm_ = {};
    }
    if (std::string_view(format) != "f32") {
      const DeviceMatmul pair = make({&m, &m}, {}, true), same_pair = make({&plain, &plain}, {}, true);
      const Floats x = normal_floats(5, 3 * kIn);
      EXPECT_EQ(run(pair, {37}, x, MatmulOutput::silu_glu), run(same_pair, {37}, sorted(x), MatmulOutput::silu_glu));
    }
    // Matrices of one input whose columns are sorted in two orders, and one whose are not.
    std::vector<int32_t> reversed(order.rbegin(), order.rend());
    Linear other = plain;
    other.order = reversed.data();
    const DeviceMatmul alone = make({&other}), all = make({&m, &other, &plain});
    EXPECT_EQ(all.kernels(1).size(), 3u);
    for (const int64_t n : {int64_t(2), int64_t(40)}) {
      const Floats x = normal_floats(6, n * kIn);
      const std::vector<Floats> got = run(all, {37, 37, 37}, x);
      EXPECT_EQ(got[0], run(product, {37}, x)[0]) << format;
      EXPECT_EQ(got[1], run(alone, {37}, x)[0]) << format;
      EXPECT_EQ(got[2], run(same, {37}, x)[0]) << format;
    }
  }
}

TEST_F(DeviceMatmulCuda, ForcedKernelsHaveTheirOwnRounding) {
  const std::tuple<const char*, const char*, const char*, int64_t> cases[] = {
      {"int4_g128", "gemv", "int-1plane", 3}, {"f16", "gemm", "bricks-2planes", 70},
      {"q4_k", "gemm", "bricks-f16", 70},     {"q4_k", "gemv", "bricks-int8", 3},
      {"q5_k", "gemv", "bricks-int8", 1},     {"q6_k", "gemv", "bricks-int8", 4},
      {"q6_k", "gemv", "bricks-int8", 9},     {"q8_0", "gemv", "bricks-int8", 1},
      {"q4_0", "gemv", "bricks-int8", 7}};
  for (const auto& [format, op, kernel, n] : cases) {
    const BrickRows rows(format, 37, kIn, 2);
    const Linear m = linear_of(rows);
    const DeviceMatmul product = make({&m}, {}, false, {{op, kernel}});
    EXPECT_THAT(product.kernels(n), ElementsAre(kernel));
    const Floats x = normal_floats(3, n * kIn);
    const Bounded e = expected_of(rows, x, kernel);
    EXPECT_TRUE(within(run(product, {37}, x)[0], e.y, e.bound)) << kernel;
  }
}

TEST_F(DeviceMatmulCuda, KQuantsAsIntegersInEveryPlace) {
  const ForcedKernels forced = {{"gemv", "bricks-int8"}};
  const BrickRows q("q4_k", 48, kIn, 5), k("q4_k", 21, kIn, 6), v("q6_k", 16, kIn, 7);  // k begins in a tile of its own
  const Linear mq = linear_of(q), mk = linear_of(k), mv = linear_of(v);
  const Floats k_bias = normal_floats(8, 21);
  const DeviceMatmul parts = make({&mk, &mq, &mv}, {&k_bias, nullptr, nullptr}, false, forced);
  const DeviceMatmul glu = make({&mk, &mk}, {}, true, forced);
  EXPECT_THAT(parts.kernels(1), ElementsAre("bricks-int8", "bricks-int8"));
  for (const int64_t n : {1, 2, 4, 8}) {
    const Floats x = normal_floats(uint64_t(n), n * kIn);
    const std::vector<Floats> y = run(parts, {21, 48, 16}, x, MatmulOutput::add, 2.5f);
    const BrickRows* const rows[] = {&k, &q, &v};
    for (size_t i = 0; i < 3; ++i) {
      Bounded e = expected_of(*rows[i], x, "bricks-int8");
      for (size_t at = 0; at < e.y.size(); ++at) {
        e.y[at] += 2.5 + (i == 0 ? double(k_bias[at % 21]) : 0.0);
        e.bound[at] += 0x1p-22 * (std::abs(e.y[at]) + e.bound[at] + 5);
      }
      EXPECT_TRUE(within(y[i], e.y, e.bound)) << i << ", tokens " << n;
    }
    const Bounded p = expected_of(k, x, "bricks-int8");
    Bounded e;
    for (size_t i = 0; i < p.y.size(); ++i) {
      const double positive = std::max(p.y[i], 0.0);
      e.y.push_back(positive * positive * p.y[i]);
      e.bound.push_back(3 * std::pow(std::abs(p.y[i]) + p.bound[i], 2) * p.bound[i] + 0x1p-20 * std::abs(e.y.back()));
    }
    EXPECT_TRUE(within(run(glu, {21}, x, MatmulOutput::relu2_glu)[0], e.y, e.bound)) << "tokens " << n;
  }
}

TEST_F(DeviceMatmulCuda, TernaryIsTheCpusProduct) {
  CpuContext context(1);
  const TernaryRows ternary(37, 4, true), floats(37, 4, false);
  const DeviceMatmul exact = make({&ternary.matrix}), decoded = make({&floats.matrix});
  for (const int64_t n : kBatches) {
    const Floats x = normal_floats(uint64_t(n), n * kIn);
    Floats cpu(size_t(n * 37));
    linear(context, ternary.matrix, {x.data(), n, kIn}, {cpu.data(), n, 37});
    EXPECT_EQ(run(exact, {37}, x)[0], cpu) << n;
    linear(context, floats.matrix, {x.data(), n, kIn}, {cpu.data(), n, 37});
    const Floats got = run(decoded, {37}, x)[0];
    for (size_t i = 0; i < got.size(); ++i) {
      double size = 0;  // |code| is at most 1; both sides add kIn products and multiply by the scale
      for (size_t k = 0; k < kIn; ++k) size += std::abs(x[i / 37 * kIn + k]);
      ASSERT_NEAR(got[i], cpu[i], 2 * double(kIn + 2) * 0x1p-24 * size * floats.matrix.scale);
    }
  }
}

TEST_F(DeviceMatmulCuda, MatricesOfOneInputWithBiases) {
  for (const auto& formats : {std::array{"q4_k", "q4_k", "q6_k"}, std::array{"int4_g128", "int4_g128", "int4_g128"},
                              std::array{"f32", "f16", "f16"}}) {
    const BrickRows q(formats[0], 48, kIn, 5), k(formats[1], 16, kIn, 6), v(formats[2], 21, kIn, 7);
    const Linear mq = linear_of(q), mk = linear_of(k), mv = linear_of(v);
    const Floats q_bias = normal_floats(8, 48), v_bias = normal_floats(9, 21);
    const DeviceMatmul product = make({&mq, &mk, &mv}, {&q_bias, nullptr, &v_bias});
    for (const int64_t n : {1, 3, 70}) {
      const Floats x = normal_floats(uint64_t(n), n * kIn);
      const auto names = product.kernels(n);
      const std::vector<Floats> y = run(product, {48, 16, 21}, x);
      const std::tuple<const BrickRows*, const Floats*, std::string_view> parts[] = {
          {&q, &q_bias, names.front()},
          {&k, nullptr, formats[0] == formats[1] ? names.front() : names.back()},
          {&v, &v_bias, names.back()}};
      for (size_t i = 0; i < 3; ++i) {
        const auto& [rows, bias, kernel] = parts[i];
        Bounded e = expected_of(*rows, x, kernel);
        for (size_t at = 0; bias && at < e.y.size(); ++at) {
          e.y[at] += double((*bias)[at % bias->size()]);
          e.bound[at] += 0x1p-23 * (std::abs(e.y[at]) + e.bound[at]);
        }
        EXPECT_TRUE(within(y[i], e.y, e.bound)) << rows->format.name << ", tokens " << n;
      }
    }
  }
}

TEST_F(DeviceMatmulCuda, GatesOfOneFormatAndOfTwo) {
  for (const auto& [gate_format, up_format] :
       {std::pair("q4_k", "q4_k"), std::pair("q4_k", "q6_k"), std::pair("f32", "f32"), std::pair("int4_g128", "f16")})
    for (const int64_t n : {1, 70})
      for (const MatmulOutput output : {MatmulOutput::silu_glu, MatmulOutput::relu2_glu}) {
        const BrickRows gate(gate_format, 37, kIn, 10), up_rows(up_format, 37, kIn, 11);
        const Linear mg = linear_of(gate), mu = linear_of(up_rows);
        const DeviceMatmul product = make({&mg, &mu}, {}, true);
        const Floats x = normal_floats(uint64_t(n), n * kIn);
        const Bounded g = expected_of(gate, x, product.kernels(n).front()),
                      u = expected_of(up_rows, x, product.kernels(n).back());
        Bounded e;
        for (size_t i = 0; i < g.y.size(); ++i) {
          const double positive = std::max(g.y[i], 0.0);
          const bool silu = output == MatmulOutput::silu_glu;
          const double activated = silu ? g.y[i] / (1 + std::exp(-g.y[i])) : positive * positive;
          const double slope = silu ? 1.1 : 2 * positive + g.bound[i];
          e.y.push_back(activated * u.y[i]);
          e.bound.push_back(slope * g.bound[i] * (std::abs(u.y[i]) + u.bound[i]) + std::abs(activated) * u.bound[i] +
                            0x1p-19 * std::abs(activated * u.y[i]));
        }
        EXPECT_TRUE(within(run(product, {37}, x, output)[0], e.y, e.bound)) << gate_format << up_format << n;
      }
}

TEST_F(DeviceMatmulCuda, AddsToWhatIsThere) {
  for (const char* format : {"f32", "q8_0", "int4_g128"})
    for (const int64_t n : {1, 70}) {
      const BrickRows rows(format, 37, kIn, 12);
      const Linear m = linear_of(rows);
      const DeviceMatmul product = make({&m});
      const Floats x = normal_floats(uint64_t(n), n * kIn);
      Bounded e = expected_of(rows, x, product.kernels(n)[0]);
      for (size_t i = 0; i < e.y.size(); ++i) {
        e.y[i] += 2.5;
        e.bound[i] += 0x1p-23 * (std::abs(e.y[i]) + e.bound[i]);
      }
      EXPECT_TRUE(within(run(product, {37}, x, MatmulOutput::add, 2.5f)[0], e.y, e.bound)) << format << n;
    }
}

TEST_F(DeviceMatmulCuda, RefusesFormatsWithoutKernels) {
  for (const WeightFormat& shelf : weight_formats()) {
    if (shelf.name == "f32" || shelf.name == "i2_s" || find_brick_format(shelf.name)) continue;
    const std::string format(shelf.name);
    const Linear m{.format = &shelf, .n_out = 8, .n_in = kIn};
    const Linear* const matrices[] = {&m};
    const Floats* const biases[] = {nullptr};
    try {
      DeviceMatmul(stream(), matrices, biases, false, {});
      ADD_FAILURE() << format;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      EXPECT_THAT(e.what(), HasSubstr(format));
    }
  }
}

TEST_F(DeviceMatmulCuda, EmbeddingRowsAreTheCpusBits) {
  constexpr int64_t kRows = 7, kColumns = 512;
  const std::vector<int32_t> tokens = {6, 0, 3, 3, 1};
  const gpu::Buffer ids = up(tokens);
  for (const WeightFormat& format : weight_formats()) {
    Rng rng(13);
    const std::vector<std::byte> bytes = random_blocks(format, rng, 1, kRows * kColumns);
    const float scale = format.name == "i2_s" ? 0.0677f : 1.0f;
    const DeviceRows table = upload_rows(
        stream(), {.format = &format, .n_out = kRows, .n_in = kColumns, .rows = bytes.data(), .scale = scale});
    gpu::Buffer x(4 * kColumns * ssize(tokens));
    device_embed(stream(), ssize(tokens), ids.as<int32_t>(), table, x.as<float>());
    const Floats got = down(x.as<float>(), kColumns * ssize(tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      Floats row(kColumns);
      format.decode(bytes.data() + tokens[i] * format.row_bytes(kColumns), kColumns, row.data());
      for (float& value : row) value *= scale;
      EXPECT_EQ(std::memcmp(row.data(), &got[i * kColumns], 4 * kColumns), 0) << format.name << " row " << tokens[i];
    }
  }
}

}  // namespace
}  // namespace ridge
