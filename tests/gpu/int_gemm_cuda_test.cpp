// Products of many tokens with integer weights: int4_g128 against double arithmetic within the bounds of two roundings
// to f16, ternary against the product of a few tokens bit for bit.
#include "op/gemm/int_gemm_cuda.h"

#include <bit>
#include <cmath>

#include "format/int4_g128.h"
#include "format/list.h"
#include "gpu/device_data.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using Floats = std::vector<float>;

constexpr float kGemmEps = 1e-5f, kGemmGuard = 7.0f;

struct GemmCase {
  int64_t n_tokens = 65;
  bool norm = false, bias = false;
  IntOutput output = IntOutput::store;
  std::vector<int64_t> parts = {};  ///< empty: one
  int n_blocks = 0;
  IntArea area = IntArea::any;
  int cluster = 0;
};
std::vector<IntArea> all_areas() {
  if (gpu::most_shared_bytes() < gpu::kHopperSharedBytes) return {IntArea::small};
  return {IntArea::small, IntArea::middle, IntArea::large};
}
std::vector<IntArea> areas_of_int4() {
  std::vector<IntArea> areas = all_areas();
  if (gpu::device_has_warpgroups()) areas.insert(areas.end(), {IntArea::wide32, IntArea::wide64, IntArea::wide128});
  return areas;
}

class IntGemmCuda : public OnDevice {
 protected:
  /// Random rows of n_out outputs, and their values.
  IntWeights weights(IntKind kind, const std::vector<int64_t>& n_out, int64_t n_in, bool gated = false) {
    values_.clear();
    std::vector<gpu::Buffer> buffers;
    std::vector<IntRows> rows;
    for (size_t i = 0; i < n_out.size(); ++i) {
      Rng rng(uint64_t(n_in + 31 * n_out[i]) + i);
      Floats& values = values_.emplace_back(size_t(n_out[i] * n_in));
      const auto n_blocks = size_t(n_out[i] * n_in / 128);
      if (kind == IntKind::int4_g128) {
        std::vector<Int4G128::Block> blocks(n_blocks);
        for (size_t b = 0; b < n_blocks; ++b) {
          for (uint8_t& byte : blocks[b].q) byte = uint8_t(rng.next() >> 20);
          blocks[b].scale = f32_to_f16(float(0.02 * rng.normal()));
          Int4G128::decode(blocks[b], &values[b * 128]);
        }
        buffers.push_back(up(blocks));
      } else {
        for (float& v : values) v = float(int(rng.next() % 3) - 1);
        std::vector<std::byte> bytes(values.size() / 4);
        EXPECT_TRUE(encode_rows(**find_weight_format("i2_s"), values, n_in, bytes));
        buffers.push_back(up(bytes));
      }
      rows.push_back({buffers.back().as<void>(), n_out[i], 0.3f + 0.1f * float(i)});
    }
    IntWeights w = pack_int_weights(stream(), kind, n_in, rows, gated);
    stream().synchronize();
    return w;
  }

  struct Operands {
    Floats x, norm, bias, y;
  };
  static Operands operands(const IntWeights& w, const GemmCase& c) {
    const auto seed = uint64_t(w.n_out + c.n_tokens);
    Operands o{.x = normal_floats(seed, c.n_tokens * w.n_in),
               .norm = c.norm ? normal_floats(seed + 1, w.n_in) : Floats(),
               .bias = c.bias ? normal_floats(seed + 2, w.n_out) : Floats(),
               .y = normal_floats(seed + 3, c.n_tokens * w.n_out)};
    for (int64_t t = 0; t < c.n_tokens; ++t)  // tokens of different sizes, with an outlier each
      for (int64_t i = 0; i < w.n_in; ++i)
        o.x[size_t(t * w.n_in + i)] *= std::exp2(float(t % 40 - 20)) * (i == (37 * t + 5) % w.n_in ? 20.0f : 1.0f);
    return o;
  }

  /// [n_tokens, n_out] with the parts beside each other. Run twice: the same bits, nothing written around y, counters
  /// back at zero.
  Floats run(const IntWeights& w, const GemmCase& c, const Operands& o) {
    const std::vector<int64_t> parts = c.parts.empty() ? std::vector{w.n_out} : c.parts;
    const gpu::Buffer x = up(o.x), norm = up(o.norm), bias = up(o.bias);
    Floats results[2];
    for (Floats& result : results) {
      result.resize(o.y.size());
      IntGemmCall call{.n_tokens = c.n_tokens, .x = x.as<float>(), .norm_eps = kGemmEps, .output = c.output};
      call.norm_weight = c.norm ? norm.as<float>() : nullptr;
      call.bias = c.bias ? bias.as<float>() : nullptr;
      call.n_blocks = c.n_blocks;
      call.area = c.area;
      call.cluster = c.cluster;
      call.n_parts = int(parts.size());
      std::vector<gpu::Buffer> ys;
      int64_t at = 0;
      for (size_t i = 0; i < parts.size(); at += parts[i++]) {
        Floats guarded(1, kGemmGuard);
        for (int64_t t = 0; t < c.n_tokens; ++t)
          for (int64_t r = 0; r < parts[i]; ++r) guarded.push_back(o.y[size_t(t * w.n_out + at + r)]);
        guarded.push_back(kGemmGuard);
        ys.push_back(up(guarded));
        call.n_out[i] = parts[i];
        call.y[i] = ys.back().as<float>() + 1;
      }
      device_int_gemm(stream(), w, call, scratch_);
      at = 0;
      for (size_t i = 0; i < parts.size(); at += parts[i++]) {
        const Floats got = down(ys[i].as<float>(), c.n_tokens * parts[i] + 2);
        EXPECT_EQ(got.front(), kGemmGuard);
        EXPECT_EQ(got.back(), kGemmGuard);
        for (int64_t t = 0; t < c.n_tokens; ++t)
          for (int64_t r = 0; r < parts[i]; ++r)
            result[size_t(t * w.n_out + at + r)] = got[size_t(1 + t * parts[i] + r)];
      }
    }
    EXPECT_TRUE(same_bits(results[1], results[0]));
    const int64_t n_counters = scratch_.counters.bytes() / 4;
    EXPECT_EQ(down(scratch_.counters.as<unsigned>(), n_counters), std::vector<unsigned>(size_t(n_counters), 0));
    return results[0];
  }
  static bool same_bits(const Floats& a, const Floats& b) {
    for (size_t i = 0; i < a.size(); ++i)
      if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i])))
        return false;
    return a.size() == b.size();
  }

  struct Bounded {
    double value, error;
  };
  /// Row `row` of a matrix times token t, and how far the product may be from it: weights and activations have relative
  /// errors of 2^-11, activations 2^-25 under the token's scale (largest value at least 2^14), float sums of n_in.
  static Bounded exact(const Floats& values, int64_t row, const Operands& o, int64_t t, int64_t n_in) {
    double squares = 0, top = 0, size = 0, weights = 0;
    const float* x = &o.x[size_t(t * n_in)];
    for (int64_t i = 0; i < n_in; ++i) squares += double(x[i]) * x[i];
    const double by = o.norm.empty() ? 1 : 1 / std::sqrt(squares / double(n_in) + kGemmEps);
    Bounded p{0, 0};
    for (int64_t i = 0; i < n_in; ++i) {
      const double w = values[size_t(row * n_in + i)], v = x[i] * by * (o.norm.empty() ? 1.0 : o.norm[size_t(i)]);
      top = std::max(top, std::abs(v));
      p.value += w * v;
      size += std::abs(w * v);
      weights += std::abs(w);
    }
    p.error = size * (0x1.01p-10 + double(n_in) * 0x1p-24) + weights * top * 0x1p-39 +
              double(n_in) * top * 0x1p-25;  // weights below f16's normal range
    return p;
  }

  void check_int4(const std::vector<int64_t>& n_out, int64_t n_in, const GemmCase& c) {
    const bool gated = c.output == IntOutput::silu_glu || c.output == IntOutput::relu2_glu;
    const IntWeights w = weights(IntKind::int4_g128, n_out, n_in, gated);
    const Operands o = operands(w, c);
    const Floats got = run(w, c, o);
    for (int64_t t = 0; t < c.n_tokens; ++t)
      for (int64_t r = 0, m = 0, row = 0; r < w.n_out; ++r, ++row) {
        while (!gated && row == n_out[size_t(m)]) ++m, row = 0;
        Bounded p = exact(values_[size_t(m)], row, o, t, n_in);
        const auto at = size_t(t * w.n_out + r);
        if (gated) {
          const Bounded u = exact(values_[1], row, o, t, n_in);
          const double positive = p.value > 0 ? p.value : 0;
          const double a = c.output == IntOutput::relu2_glu ? positive * positive : p.value / (1 + std::exp(-p.value));
          // |silu'| < 1.1; of the square 2 p + error.
          const double slope = c.output == IntOutput::relu2_glu ? 2 * positive + p.error : 1.1;
          p = {a * u.value, slope * p.error * (std::abs(u.value) + u.error) + std::abs(a) * u.error};
        }
        if (c.bias) p.value += o.bias[size_t(r)];
        if (c.output == IntOutput::add) p.value += o.y[at];
        p.error += 0x1p-19 * std::abs(p.value) + 0x1p-22 * (c.bias ? std::abs(o.bias[size_t(r)]) : 0.0) +
                   0x1p-22 * std::abs(o.y[at]);
        ASSERT_LE(std::abs(got[at] - p.value), p.error) << "token " << t << " row " << r << " of " << w.n_out;
      }
  }

  std::vector<Floats> values_;
  IntScratch scratch_;
};

TEST_F(IntGemmCuda, Int4IsWithinItsRoundingsAtEveryShape) {
  for (const int64_t n_tokens : {1, 63, 65, 130}) check_int4({49}, 256, {.n_tokens = n_tokens});
  for (const int64_t n_out : {1, 16, 261})
    for (const int64_t n_in : {128, 640}) check_int4({n_out}, n_in, {.n_tokens = 66 + n_out % 5});
}

TEST_F(IntGemmCuda, Int4EveryPrologueAndOutput) {
  for (const bool norm : {false, true}) {
    const IntArea area = norm ? all_areas().back() : IntArea::any;
    check_int4({70, 33, 17}, 256, {.norm = norm, .bias = true, .parts = {70, 33, 17}, .area = area});
    check_int4({48, 16}, 256, {.norm = norm, .bias = norm, .output = IntOutput::add, .area = area});
    for (const IntOutput output : {IntOutput::silu_glu, IntOutput::relu2_glu})
      check_int4({37, 37}, 256, {.n_tokens = 70, .norm = norm, .output = output, .area = area});
  }
}

TEST_F(IntGemmCuda, EverySplitOfTheWork) {
  for (const IntArea area : areas_of_int4())
    for (const int n_blocks : {1, 3, 132})
      check_int4({300}, 512, {.n_tokens = 150, .n_blocks = n_blocks, .area = area});
  for (const IntArea area : areas_of_int4())
    check_int4({290}, 640, {.n_tokens = 131, .n_blocks = 3, .area = area});  // odd numbers of steps
}

TEST_F(IntGemmCuda, BlocksOfAClusterShareAnArea) {
  if (!gpu::device_has_warpgroups()) GTEST_SKIP() << "no clusters of blocks";
  for (const IntArea area : {IntArea::wide32, IntArea::wide64})
    for (const int cluster : {2, 3, 5, 8}) {
      check_int4({300}, 1152, {.n_tokens = 70, .area = area, .cluster = cluster});
      check_int4({90, 33}, 1024,
                 {.n_tokens = 29, .norm = true, .bias = true, .parts = {90, 33}, .area = area, .cluster = cluster});
    }
  check_int4({290}, 640, {.n_tokens = 61, .output = IntOutput::add, .area = IntArea::wide64, .cluster = 4});
  check_int4({150, 150}, 896, {.n_tokens = 64, .output = IntOutput::silu_glu, .area = IntArea::wide64, .cluster = 7});
  check_int4({300}, 1152, {.n_tokens = 64, .n_blocks = 132});  // as a model's products choose
}

TEST_F(IntGemmCuda, RowsThatAThreadDoesNotKeep) { check_int4({40}, 16384 + 640, {.n_tokens = 3, .norm = true}); }

TEST_F(IntGemmCuda, TernaryIsTheProductOfAFewTokens) {
  const auto check = [&](const std::vector<int64_t>& n_out, int64_t n_in, const GemmCase& c) {
    const bool gated = c.output == IntOutput::silu_glu || c.output == IntOutput::relu2_glu;
    const IntWeights w = weights(IntKind::ternary, n_out, n_in, gated);
    const Operands o = operands(w, c);
    const gpu::Buffer x = up(o.x), norm = up(o.norm), bias = up(o.bias), y = up(o.y);
    device_int_gemv(stream(), w,
                    {.n_tokens = c.n_tokens,
                     .x = x.as<float>(),
                     .norm_weight = c.norm ? norm.as<float>() : nullptr,
                     .norm_eps = kGemmEps,
                     .bias = c.bias ? bias.as<float>() : nullptr,
                     .output = c.output,
                     .n_out = {w.n_out},
                     .y = {y.as<float>()}},
                    scratch_);
    const Floats expected = down(y.as<float>(), int64_t(o.y.size())), got = run(w, c, o);
    if (!c.norm) {
      EXPECT_TRUE(same_bits(got, expected)) << n_out[0] << " x " << n_in;
      return;
    }
    // The squares are added in another order: a value may move to the next level.
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(double(got[i]) - expected[i], 2);
      size += std::pow(double(expected[i]), 2);
    }
    EXPECT_LE(error, 1e-6 * size);
  };
  for (const int64_t n_tokens : {1, 64, 65, 200}) check({49}, 256, {.n_tokens = n_tokens});
  for (const int64_t n_out : {1, 261})
    for (const int64_t n_in : {128, 640}) check({n_out}, n_in, {});
  check({33}, 8192 + 384, {.n_tokens = 2});  // longer than what a thread keeps
  for (const IntArea area : all_areas())
    for (const int n_blocks : {1, 3, 7}) check({300}, 512, {.n_tokens = 150, .n_blocks = n_blocks, .area = area});
  for (const bool norm : {false, true}) {
    check({70, 33, 17}, 256, {.norm = norm, .bias = true, .parts = {70, 33, 17}});
    check({48, 16}, 256, {.norm = norm, .bias = norm, .output = IntOutput::add});
    for (const IntOutput output : {IntOutput::silu_glu, IntOutput::relu2_glu})
      check({37, 37}, 256, {.n_tokens = 70, .norm = norm, .output = output});
  }
}

TEST_F(IntGemmCuda, OneBadTokenIsNanAndItsNeighboursAreNot) {
  for (const IntKind kind : {IntKind::int4_g128, IntKind::ternary})
    for (const float bad : {std::nanf(""), -INFINITY}) {
      const GemmCase c{.n_tokens = 70};
      const IntWeights w = weights(kind, {40}, 256);
      Operands o = operands(w, c);
      o.x[256 * 9 + 77] = bad;
      const Floats y = run(w, c, o);
      for (int64_t i = 0; i < 70 * 40; ++i) ASSERT_EQ(std::isnan(y[size_t(i)]), i / 40 == 9) << i;
    }
}

TEST_F(IntGemmCuda, RefusesOperandsThatDoNotFit) {
  const IntWeights w = weights(IntKind::int4_g128, {32}, 128);
  const gpu::Buffer memory(1 << 16);
  IntGemmCall call{.n_tokens = 2, .x = memory.as<float>(), .n_parts = 2, .n_out = {16, 17}};
  call.y[0] = call.y[1] = memory.as<float>();
  EXPECT_THROW(device_int_gemm(stream(), w, call, scratch_), Error);
  call.n_out[1] = 16;
  call.output = IntOutput::silu_glu;
  EXPECT_THROW(device_int_gemm(stream(), w, call, scratch_), Error);
  call.output = IntOutput::store;
  call.x += 1;
  EXPECT_THROW(device_int_gemm(stream(), w, call, scratch_), Error);
}

}  // namespace
}  // namespace ridge
