// Integer products on the device: int4_g128 against double arithmetic within bounds that follow from the activations'
// steps, ternary against the CPU bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "format/int4_g128.h"
#include "gpu/int_operands.h"
#include "op/kernels.h"
#include "op/norm_rope/kernels.h"
#include "op/norm_rope/norm_rope.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr float kGuard = 7.0f;
constexpr int kGuards = 64;

using Floats = std::vector<float>;

/// Blocks with every nibble, 0 to 15, and scales of all sizes and signs.
struct Int4Matrix {
  int64_t n_out, n_in;
  std::vector<Int4G128::Block> blocks;
  Floats values;

  Int4Matrix(int64_t outputs, int64_t inputs, uint64_t seed)
      : n_out(outputs), n_in(inputs), blocks(size_t(n_out * n_in / 128)), values(size_t(n_out * n_in), 0.0f) {
    Rng rng(seed);
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (uint8_t& byte : blocks[i].q) byte = uint8_t(rng.next() >> 20);
      blocks[i].scale = f32_to_f16(float(0.02 * rng.normal()));
      Int4G128::decode(blocks[i], &values[i * 128]);
    }
  }
};

struct TernaryMatrix {
  int64_t n_out, n_in;
  float scale;
  std::vector<std::byte> rows;

  TernaryMatrix(int64_t outputs, int64_t inputs, float matrix_scale, uint64_t seed)
      : n_out(outputs), n_in(inputs), scale(matrix_scale), rows(size_t(outputs * inputs / 4)) {
    Rng rng(seed);
    Floats codes;
    for (int64_t i = 0; i < n_out * n_in; ++i) codes.push_back(float(int(rng.next() % 3) - 1));
    EXPECT_TRUE(encode_rows(**find_weight_format("i2_s"), codes, n_in, rows));
  }

  /// The CPU's product of x [., n_in].
  Floats product(const Floats& x) const {
    static CpuContext context(2);
    const Linear w{.format = *find_weight_format("i2_s"),
                   .n_out = n_out,
                   .n_in = n_in,
                   .rows = rows.data(),
                   .scale = scale,
                   .int8_activations = true};
    const int64_t n_tokens = int64_t(x.size()) / n_in;
    Floats y(size_t(n_tokens * n_out), 0.0f);
    ternary_ref(context, w, {x.data(), n_tokens, n_in}, {y.data(), n_tokens, n_out});
    return y;
  }
};

using Case = IntCase;
using Operands = IntOperands;

bool gated(IntOutput output) { return output == IntOutput::silu_glu || output == IntOutput::relu2_glu; }

testing::AssertionResult same_bits(const Floats& got, const Floats& expected) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << "sizes " << got.size();
  for (size_t i = 0; i < got.size(); ++i)
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(expected[i]) &&
        !(std::isnan(got[i]) && std::isnan(expected[i])))
      return testing::AssertionFailure() << "value " << i << ": " << got[i] << ", expected " << expected[i];
  return testing::AssertionSuccess();
}

class IntGemvCuda : public OnDevice {
 protected:
  IntWeights pack(IntKind kind, int64_t n_in, const std::vector<IntRows>& matrices, bool is_gated = false) const {
    IntWeights w = pack_int_weights(stream(), kind, n_in, matrices, is_gated);
    stream().synchronize();
    return w;
  }
  IntWeights pack(std::initializer_list<const Int4Matrix*> matrices, bool is_gated = false) const {
    std::vector<gpu::Buffer> buffers;
    std::vector<IntRows> rows;
    for (const Int4Matrix* m : matrices) {
      buffers.push_back(up(m->blocks));
      rows.push_back({buffers.back().as<void>(), m->n_out});
    }
    return pack(IntKind::int4_g128, (*matrices.begin())->n_in, rows, is_gated);
  }
  IntWeights pack(std::initializer_list<const TernaryMatrix*> matrices, bool is_gated = false) const {
    std::vector<gpu::Buffer> buffers;
    std::vector<IntRows> rows;
    for (const TernaryMatrix* m : matrices) {
      buffers.push_back(up(m->rows));
      rows.push_back({buffers.back().as<void>(), m->n_out, m->scale});
    }
    return pack(IntKind::ternary, (*matrices.begin())->n_in, rows, is_gated);
  }

  /// The product, run twice: the same bits, nothing written around y.
  Floats run(const IntWeights& w, const Case& c, const Operands& o) {
    Floats guarded(kGuards, kGuard);
    guarded.insert(guarded.end(), o.y.begin(), o.y.end());
    guarded.insert(guarded.end(), kGuards, kGuard);
    const gpu::Buffer x = up(o.x), norm = up(o.norm), bias = up(o.bias);
    Floats results[2];
    for (Floats& result : results) {
      const gpu::Buffer y = up(guarded);
      const IntCall call = {.n_tokens = c.n_tokens,
                            .x = x.as<float>(),
                            .norm_weight = c.norm ? norm.as<float>() : nullptr,
                            .norm_eps = kIntCaseEps,
                            .planes = c.planes,
                            .bias = c.bias ? bias.as<float>() : nullptr,
                            .output = c.output,
                            .n_out = {w.n_out},
                            .y = {y.as<float>() + kGuards}};
      if (c.plan) device_int_gemv(stream(), w, call, *c.plan, scratch_);
      else device_int_gemv(stream(), w, call, scratch_);
      result = down(y.as<float>(), int64_t(guarded.size()));
      const Floats guard(kGuards, kGuard);
      EXPECT_TRUE(std::equal(guard.begin(), guard.end(), result.begin())) << "wrote before y";
      EXPECT_TRUE(std::equal(guard.begin(), guard.end(), result.end() - kGuards)) << "wrote past y";
      result = Floats(result.begin() + kGuards, result.end() - kGuards);
    }
    EXPECT_TRUE(same_bits(results[1], results[0]));
    return results[0];
  }

  /// Holds the product of one or two (gate, up) int4 matrices against double arithmetic.
  void check_int4(const std::vector<const Int4Matrix*>& matrices, const IntWeights& w, const Case& c, uint64_t seed);

  IntScratch scratch_;
};

/// Row `row` of m times token x (normalised by `factor` and weight, in double), and how far a product of int8
/// activations may be from it: half a step for every weight, and the roundings of float sums.
Bounded exact_matmul(const Int4Matrix& m, int64_t row, const float* x, const Floats& norm, double factor, int planes) {
  Bounded p = {0, 0};
  double size = 0;
  const int64_t n_groups = m.n_in / 128;
  for (int64_t g = 0; g < n_groups; ++g) {
    double top = 0, weights = 0;
    for (int64_t i = 128 * g; i < 128 * (g + 1); ++i) {
      const double w = m.values[size_t(row * m.n_in + i)];
      const double v = norm.empty() ? double(x[i]) : x[i] * factor * norm[size_t(i)];
      top = std::max(top, std::abs(v));
      weights += std::abs(w);
      p.value += w * v;
      size += std::abs(w * v);
    }
    // One plane: x / step is known to 127 * 2^-22 of a step before it is rounded to an integer, and the step to 2^-22
    // of itself. Two: what is left is known to 127 * 2^-23 of a step, 508 * 127 * 2^-23 < 2^-6 of the second half step.
    const double half = planes == 1 ? top / 254 * (1 + 0x1p-13) : top / 127 / 508 * (1 + 0x1p-6);
    p.error += half * weights;
    size += half * weights;
  }
  // A group's sum is exact and multiplied by three rounded factors; n_groups of them are added, then at most 16 warps'
  // and 16 parts'; the norm multiplies by a weight and by a factor whose sum of squares had 4 n_groups + 5 additions.
  p.error += double(5 * n_groups + 48) * 0x1p-24 * size;
  return p;
}

void IntGemvCuda::check_int4(const std::vector<const Int4Matrix*>& matrices, const IntWeights& w, const Case& c,
                             uint64_t seed) {
  const int64_t n_in = w.n_in;
  const Operands o(c, n_in, w.n_out, seed);
  const Floats y = run(w, c, o);
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    const float* x = &o.x[size_t(t * n_in)];
    double squares = 0;
    for (int64_t i = 0; i < n_in; ++i) squares += double(x[i]) * x[i];
    const double factor = 1 / std::sqrt(squares / double(n_in) + kIntCaseEps);
    for (int64_t row = 0; row < w.n_out; ++row) {
      const int64_t at = t * w.n_out + row;
      Bounded e;
      if (gated(c.output)) {
        const Bounded g = exact_matmul(*matrices[0], row, x, o.norm, factor, c.planes);
        const Bounded u = exact_matmul(*matrices[1], row, x, o.norm, factor, c.planes);
        Bounded a;  // the activation: silu's slope is below 1.1
        if (c.output == IntOutput::silu_glu) a = {g.value / (1 + std::exp(-g.value)), 1.1 * g.error};
        else a = {g.value > 0 ? g.value * g.value : 0.0, (2 * std::abs(g.value) + g.error) * g.error};
        e = {a.value * u.value, a.error * (std::abs(u.value) + u.error) + std::abs(a.value) * u.error};
        e.error += 0x1p-20 * std::abs(e.value);
      } else {
        int64_t first = 0;
        size_t m = 0;
        while (row - first >= matrices[m]->n_out) first += matrices[m++]->n_out;
        e = exact_matmul(*matrices[m], row - first, x, o.norm, factor, c.planes);
        const double before = c.output == IntOutput::add ? o.y[size_t(at)] : 0.0,
                     bias = c.bias ? o.bias[size_t(row)] : 0.0;
        e.error += 0x1p-23 * (std::abs(e.value) + e.error + std::abs(bias) + std::abs(before));
        e.value += before + bias;
      }
      ASSERT_NEAR(y[size_t(at)], e.value, e.error) << "token " << t << " of " << c.n_tokens << ", row " << row;
    }
  }
}

TEST_F(IntGemvCuda, EveryNibbleIsItsValue) {
  // One activation at a time, of 127: the step is 1, and every product of a weight and 127 is exact.
  const Int4Matrix a(21, 256, 1), b(12, 256, 2);
  const IntWeights w = pack({&a, &b});
  ASSERT_EQ(w.n_out, 33);
  ASSERT_EQ(w.bytes(), 3 * 2 * 1056);
  const Case c = {.n_tokens = 256};
  Operands o(c, 256, 33, 1);
  std::fill(o.x.begin(), o.x.end(), 0.0f);
  for (size_t t = 0; t < 256; ++t) o.x[257 * t] = 127;
  const Floats y = run(w, c, o);
  for (size_t t = 0; t < 256; ++t)
    for (size_t row = 0; row < 33; ++row)
      ASSERT_EQ(y[t * 33 + row], 127 * (row < 21 ? a.values[row * 256 + t] : b.values[(row - 21) * 256 + t]))
          << row << " " << t;
}

TEST_F(IntGemvCuda, Int4IsWithinItsStepsAtEveryBatch) {
  const Int4Matrix m(45, 1280, 3);
  const IntWeights w = pack({&m});
  for (const int planes : {1, 2})
    for (const int n_tokens : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64})
      check_int4({&m}, w, {.n_tokens = n_tokens, .planes = planes}, uint64_t(n_tokens));
}

TEST_F(IntGemvCuda, Int4IsWithinItsStepsAtEveryShape) {
  for (const int64_t n_out : {1, 15, 16, 17, 200})
    for (const int64_t n_in : {128, 384, 2176}) {
      const Int4Matrix m(n_out, n_in, uint64_t(n_out));
      const IntWeights w = pack({&m});
      for (const bool norm : {false, true}) check_int4({&m}, w, {.n_tokens = 3, .planes = 2, .norm = norm}, 9);
    }
}

TEST_F(IntGemvCuda, Int4EveryPrologueAndOutput) {
  const Int4Matrix gate(37, 640, 5), up_rows(37, 640, 6);
  const IntWeights pair = pack({&gate, &up_rows}, true), rows = pack({&gate, &up_rows});
  ASSERT_EQ(pair.n_out, 37);
  ASSERT_EQ(rows.n_out, 74);
  for (const bool norm : {false, true})
    for (const int n_tokens : {1, 6})
      for (const int planes : {1, 2}) {
        for (const IntOutput output : {IntOutput::silu_glu, IntOutput::relu2_glu})
          check_int4({&gate, &up_rows}, pair, {.n_tokens = n_tokens, .planes = planes, .norm = norm, .output = output},
                     3);
        for (const IntOutput output : {IntOutput::store, IntOutput::add})
          for (const bool bias : {false, true})
            check_int4({&gate, &up_rows}, rows,
                       {.n_tokens = n_tokens, .planes = planes, .norm = norm, .bias = bias, .output = output}, 4);
      }
}

/// Plans for 11 groups and 5 to 10 tiles of rows, that differ in every respect.
std::vector<IntPlan> some_plans(int tiles) {
  std::vector<IntPlan> plans;
  const int most_warps = tiles < 4 ? 16 : tiles < 8 ? 8 : 3;  // shared memory
  for (const bool inside : {true, false}) {
    if (inside && tiles > 2) continue;
    plans.push_back({tiles, 10, 1, most_warps, 4, inside});
    plans.push_back({tiles, 10, 4, 3, 6, inside});
    plans.push_back({tiles, 2, 5, most_warps, 6, inside});
    plans.push_back({tiles, 2, 5, 1, 4, inside});
  }
  plans.push_back({tiles, 10, 1, most_warps, 4, false, 2});
  plans.push_back({tiles, 10, 4, 3, 6, false, 3});
  plans.push_back({tiles, 2, 5, most_warps, 6, false, 4});
  plans.push_back({tiles, 2, 5, 1, 4, false, 6});
  return plans;
}

TEST_F(IntGemvCuda, Int4EveryPlan) {
  const Int4Matrix m(150, 1408, 8);
  const IntWeights w = pack({&m});
  for (const int tiles : {1, 2, 4, 8})
    for (const IntPlan& plan : some_plans(tiles))
      check_int4({&m}, w,
                 {.n_tokens = tiles == 1 ? 3 : 4 * tiles - 1,
                  .planes = 2,
                  .norm = true,
                  .bias = true,
                  .output = IntOutput::add,
                  .plan = plan},
                 10);
}

TEST_F(IntGemvCuda, PartsAreRowsOfTheWhole) {
  // Borders inside tiles of rows; whatever kernel and output, the bits are those of one part.
  const Int4Matrix m(100, 640, 31);
  const TernaryMatrix t(100, 640, 0.5f, 32);
  const int64_t n_out[] = {37, 3, 24, 36};
  const IntWeights weights[] = {pack({&m}), pack({&t})};
  for (const IntWeights& w : weights)
    for (const int n_tokens : {1, 3, 8, 16, 70})
      for (const IntOutput output : {IntOutput::store, IntOutput::add})
        for (const bool joint : {false, true}) {  // parts with gaps, and behind one another
          const Case c = {.n_tokens = n_tokens, .bias = true, .output = output};
          const Operands o(c, 640, 100, 33);
          const Floats whole = run(w, c, o);
          const gpu::Buffer x = up(o.x), bias = up(o.bias);
          IntCall call = {.n_tokens = n_tokens, .x = x.as<float>(), .bias = bias.as<float>(), .output = output};
          call.n_parts = 4;
          Floats before;
          int64_t first[4], row = 0;
          for (int i = 0; i < 4; row += n_out[i++]) {
            first[i] = ssize(before);
            for (int token = 0; token < n_tokens; ++token)
              for (int64_t at = 0; at < n_out[i]; ++at) before.push_back(o.y[size_t(token * 100 + row + at)]);
            if (!joint) before.insert(before.end(), 5, kGuard);
          }
          const gpu::Buffer y = up(before);
          for (int i = 0; i < 4; ++i) call.n_out[i] = n_out[i], call.y[i] = y.as<float>() + first[i];
          device_int_gemv(stream(), w, call, scratch_);
          const Floats got = down(y.as<float>(), ssize(before));
          row = 0;
          Floats expected = before;
          for (int i = 0; i < 4; row += n_out[i++])
            for (int token = 0; token < n_tokens; ++token)
              for (int64_t at = 0; at < n_out[i]; ++at)
                expected[size_t(first[i] + token * n_out[i] + at)] = whole[size_t(token * 100 + row + at)];
          ASSERT_TRUE(same_bits(got, expected)) << int(w.kind) << " " << n_tokens << " " << joint;
        }
}

TEST_F(IntGemvCuda, TinyAndZeroActivations) {
  const Int4Matrix m(16, 256, 11);
  const IntWeights w = pack({&m});
  for (const float size : {0.0f, 1e-45f, 1e-36f, 1e30f}) {
    const Case c = {.n_tokens = 2, .planes = 2};
    Operands o(c, 256, 16, 12);
    for (float& x : o.x) x *= size;
    const Floats y = run(w, c, o);
    for (size_t i = 0; i < y.size(); ++i) {
      const float* x = &o.x[i / 16 * 256];
      const Bounded e = exact_matmul(m, int64_t(i % 16), x, {}, 1, 2);
      // Below the least step, 1e-30 / 127, everything is that much off; products may be subnormal.
      ASSERT_NEAR(y[i], e.value, e.error + (size < 1e-30f ? 1e-29 : 0.0)) << size;
    }
  }
}

TEST_F(IntGemvCuda, OneBadTokenIsNanAndItsNeighboursAreNot) {
  const Int4Matrix m(17, 384, 13);
  const TernaryMatrix t(17, 384, 0.5f, 14);
  const IntWeights weights[] = {pack({&m}), pack({&t})};
  for (const IntWeights& w : weights)
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const bool norm : {false, true})
        for (const bool inside : {false, true}) {
          if (inside && w.kind == IntKind::ternary) continue;  // only one token: ABadTernaryTokenIsNan
          const IntPlan plan = {.rows = 2, .blocks = 2, .warps = 2, .quantize_inside = inside};
          const Case c = {.n_tokens = 3, .norm = norm, .plan = plan};
          Operands o(c, 384, 17, 15);
          o.x[384 + 200] = bad;
          const Floats y = run(w, c, o);
          for (size_t i = 0; i < y.size(); ++i)
            ASSERT_EQ(std::isnan(y[i]), i / 17 == 1) << i << " " << bad << " " << norm << " " << int(w.kind);
        }
}

TEST_F(IntGemvCuda, ABadTernaryTokenIsNan) {
  const TernaryMatrix t(17, 384, 0.5f, 14);
  const IntWeights w = pack({&t});
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const bool norm : {false, true})
      for (const bool inside : {false, true}) {
        const IntPlan plan = {.rows = 2, .blocks = 2, .warps = 2, .quantize_inside = inside};
        const Case c = {.norm = norm, .plan = plan};
        Operands o(c, 384, 17, 15);
        o.x[200] = bad;
        for (const float y : run(w, c, o)) ASSERT_TRUE(std::isnan(y)) << bad << " " << norm << " " << inside;
      }
}

TEST_F(IntGemvCuda, RefusesMoreTernaryActivationsThanABlockQuantises) {
  const TernaryMatrix t(17, 128 * 9, 0.5f, 14);
  const IntWeights w = pack({&t});
  const auto with = [&](int n_tokens, int warps) {
    const IntPlan plan = {.rows = 2, .blocks = 2, .warps = warps, .quantize_inside = true};
    const Case c = {.n_tokens = n_tokens, .norm = true, .plan = plan};
    return run(w, c, Operands(c, 128 * 9, 17, 15));
  };
  EXPECT_THROW(with(2, 16), Error);
  EXPECT_THROW(with(1, 2), Error);
  EXPECT_NO_THROW(with(1, 3));
}

TEST_F(IntGemvCuda, ANormWhoseSquaresOverflowGivesNoNumbers) {
  const Int4Matrix m(17, 384, 13);
  const IntWeights w = pack({&m});
  for (const int n_tokens : {1, 3})
    for (const bool inside : {false, true}) {
      const IntPlan plan = {.rows = 2, .blocks = 2, .warps = 2, .quantize_inside = inside};
      const Case c = {.n_tokens = n_tokens, .norm = true, .plan = plan};
      Operands o(c, 384, 17, 15);
      o.x[200] = 1e25f;  // of token 0
      const Floats y = run(w, c, o);
      for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i < 17) << i << " " << inside;
    }
}

/// The CPU's ternary result of a case: norm, products, and what follows, op by op.
Floats ternary_reference(const std::vector<const TernaryMatrix*>& matrices, const Case& c, Operands o) {
  static CpuContext context(2);
  const int64_t n_in = matrices[0]->n_in;
  for (int64_t t = 0; t < c.n_tokens && c.norm; ++t)
    rms_norm_ref(&o.x[size_t(t * n_in)], o.norm.data(), kIntCaseEps, n_in, &o.x[size_t(t * n_in)]);
  std::vector<Floats> products;
  for (const TernaryMatrix* m : matrices) products.push_back(m->product(o.x));
  if (gated(c.output)) {
    const int64_t n = matrices[0]->n_out;
    relu2_glu(context, {products[0].data(), c.n_tokens, n}, {products[1].data(), c.n_tokens, n});
    return products[0];
  }
  Floats y;
  for (int64_t t = 0; t < c.n_tokens; ++t)
    for (size_t m = 0; m < matrices.size(); ++m) {
      const auto row = products[m].begin() + t * matrices[m]->n_out;
      y.insert(y.end(), row, row + matrices[m]->n_out);
    }
  const int64_t n_out = int64_t(y.size()) / c.n_tokens;
  if (c.bias) add_bias(context, {y.data(), c.n_tokens, n_out}, o.bias.data());
  if (c.output == IntOutput::add) {
    add(context, {o.y.data(), c.n_tokens, n_out}, {y.data(), c.n_tokens, n_out});
    return o.y;
  }
  return y;
}

TEST_F(IntGemvCuda, TernaryIsTheCpusAtEveryBatchAndShape) {
  for (const int64_t n_out : {1, 45, 130})
    for (const int64_t n_in : {128, 640, 1280}) {
      const TernaryMatrix m(n_out, n_in, 0.0677f, uint64_t(n_out + n_in));
      const IntWeights w = pack({&m});
      for (const int n_tokens : {1, 2, 3, 8, 9, 16, 17, 33, 64, 65}) {
        if (n_out * n_in > 100000 && n_tokens > 9 && n_tokens < 64) continue;  // time
        for (const bool norm : {false, true}) {
          if (n_tokens > 3 && norm == (n_tokens % 2 != 0)) continue;  // time
          const Case c = {.n_tokens = n_tokens, .norm = norm};
          const Operands o(c, n_in, n_out, uint64_t(n_tokens));
          ASSERT_TRUE(same_bits(run(w, c, o), ternary_reference({&m}, c, o)))
              << n_tokens << " x " << n_out << " x " << n_in;
        }
      }
    }
}

TEST_F(IntGemvCuda, TernaryEveryOutputAndPlan) {
  const TernaryMatrix a(37, 1408, 0.0677f, 20), b(37, 1408, 1.5f, 21), c3(9, 1408, -2.0f, 22);
  const IntWeights rows = pack({&a, &b, &c3}), pair = pack({&a, &b}, true);
  for (const int tiles : {1, 2, 4, 8})
    for (const IntPlan& plan : some_plans(tiles)) {
      if (plan.quantize_inside && (tiles > 1 || plan.warps * kTernaryHeld < 11)) continue;  // refused
      if (plan.split > 1 && tiles == 1) continue;                                           // refused
      const int n_tokens = plan.quantize_inside ? 1 : 8 * tiles - 1;
      const Case plain = {.n_tokens = n_tokens, .norm = true, .bias = true, .output = IntOutput::add, .plan = plan};
      const Operands o(plain, 1408, 83, 23);
      ASSERT_TRUE(same_bits(run(rows, plain, o), ternary_reference({&a, &b, &c3}, plain, o)));
      const Case glu = {.n_tokens = plan.quantize_inside ? 1 : 2, .output = IntOutput::relu2_glu, .plan = plan};
      const Operands p(glu, 1408, 37, 24);
      ASSERT_TRUE(same_bits(run(pair, glu, p), ternary_reference({&a, &b}, glu, p)));
    }
}

TEST_F(IntGemvCuda, AnyShapeWithAnyPlan) {
  Rng rng(30);
  const auto random_in = [&](int64_t from, int64_t to) { return from + int64_t(rng.next() >> 33) % (to - from + 1); };
  for (int run_index = 0; run_index < 60; ++run_index) {
    const int64_t n_groups = random_in(1, 9), n_in = 128 * n_groups, n_out = random_in(1, 100);
    const bool ternary = random_in(0, 1), glu = random_in(0, 2) == 0;
    const int planes = ternary ? 1 : int(random_in(1, 2));
    Case c = {
        .n_tokens = random_in(1, random_in(0, 1) ? 4 : 32 / planes), .planes = planes, .norm = bool(random_in(0, 1))};
    c.output = glu ? IntOutput::relu2_glu : IntOutput(random_in(0, 1));
    c.bias = !glu && random_in(0, 1);
    const int64_t n_row_tiles = glu ? (n_out + 7) / 8 : (2 * n_out + 15) / 16;
    IntPlan p;
    p.tiles_of_8 = c.n_tokens * planes <= 8 ? 1 : c.n_tokens * planes <= 16 ? 2 : 4;
    p.blocks = int(random_in(1, n_row_tiles));
    p.rows = int((n_row_tiles + p.blocks - 1) / p.blocks);
    p.warps = int(random_in(1, 16));
    p.depth = kIntDepths[random_in(0, 1)];
    p.quantize_inside = random_in(0, 1) && (!ternary || (c.n_tokens == 1 && n_groups <= kTernaryHeld * p.warps));
    if (random_in(0, 1) && (!ternary || p.tiles_of_8 > 1)) {
      p.split = int(random_in(1, ternary ? (n_groups + 1) / 2 : n_groups));
      p.quantize_inside = false;
    }
    c.plan = p;
    SCOPED_TRACE(run_index);
    if (ternary) {
      const TernaryMatrix a(n_out, n_in, 0.5f, rng.next()), b(n_out, n_in, 2.0f, rng.next());
      const IntWeights w = pack({&a, &b}, glu);
      const Operands o(c, n_in, w.n_out, rng.next());
      ASSERT_TRUE(same_bits(run(w, c, o), ternary_reference({&a, &b}, c, o)));
    } else {
      const Int4Matrix a(n_out, n_in, rng.next()), b(n_out, n_in, rng.next());
      check_int4({&a, &b}, pack({&a, &b}, glu), c, rng.next());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(IntGemvCuda, TernaryLargestSumsAreExact) {
  constexpr int64_t kIn = 1 << 17;
  for (const float code : {-1.0f, 1.0f}) {
    TernaryMatrix m(1, kIn, 1.0f, 1);
    EXPECT_TRUE(encode_rows(**find_weight_format("i2_s"), Floats(size_t(kIn), code), kIn, m.rows));
    const IntWeights w = pack({&m});
    const Case c = {};
    Operands o(c, kIn, 1, 2);
    std::fill(o.x.begin(), o.x.end(), 3.5f);
    o.x[5] = -3.5f;
    ASSERT_TRUE(same_bits(run(w, c, o), m.product(o.x)));
  }
}

TEST_F(IntGemvCuda, PlansFitEveryShapeInUse) {
  const int64_t shapes[][2] = {{256, 1536},   {1536, 1536},  {8960, 1536},  {1536, 8960}, {2048, 1536},  {2560, 2560},
                               {2560, 6912},  {13824, 2560}, {4096, 4096},  {6144, 4096}, {28672, 4096}, {4096, 14336},
                               {57344, 8192}, {8192, 28672}, {10240, 8192}, {16, 128},    {152064, 1536}};
  for (const IntKind kind : {IntKind::int4_g128, IntKind::ternary})
    for (const auto& [n_out, n_in] : shapes)
      for (const int planes : {1, 2})
        for (int n_tokens = 1; n_tokens * planes <= kIntColumns; ++n_tokens) {
          const int64_t n_row_tiles = (n_out + 15) / 16;
          const IntPlan p = plan_int_gemv(kind, n_row_tiles, n_in, n_tokens, planes, {});
          ASSERT_GT(p.blocks, 0);
          ASSERT_GE(int64_t(p.rows) * p.blocks, n_row_tiles);
          ASSERT_LE(p.blocks, n_row_tiles);
          ASSERT_GE(8 * p.tiles_of_8, n_tokens * planes);
          ASSERT_TRUE(p.warps > 0 && p.warps <= kIntMostWarps);
          ASSERT_TRUE(p.split == 1 || (!p.quantize_inside && (kind != IntKind::ternary || p.tiles_of_8 > 1)));
          const int64_t most = n_tokens == 1 && p.blocks > 132 ? 113 << 10 : 227 << 10;
          ASSERT_LE(int_gemv_shared_bytes(kind, p, n_in, n_tokens, planes), most) << n_out << " x " << n_in;
        }
}

TEST_F(IntGemvCuda, RefusesOperandsThatDoNotFit) {
  const Int4Matrix m(16, 128, 1);
  const IntWeights w = pack({&m}), pair = pack({&m, &m}, true);
  const gpu::Buffer x(4096), y(4096);
  const auto call = [&](const IntWeights& weights, IntCall c) {
    c.n_tokens = 1;
    if (!c.x) c.x = x.as<float>();
    if (c.n_out[0] == 0) c.n_out[0] = weights.n_out;
    c.y[0] = y.as<float>();
    device_int_gemv(stream(), weights, c, scratch_);
  };
  EXPECT_NO_THROW(call(w, {}));
  EXPECT_THROW(call(w, {.n_out = {15}}), Error);
  EXPECT_THROW(call(w, {.n_parts = 5, .n_out = {16}}), Error);
  EXPECT_THROW(call(pair, {.output = IntOutput::silu_glu, .n_parts = 2, .n_out = {8, 8}}), Error);
  EXPECT_NO_THROW(call(pair, {.output = IntOutput::silu_glu}));
  EXPECT_THROW(call(pair, {}), Error);
  EXPECT_THROW(call(w, {.output = IntOutput::silu_glu}), Error);
  EXPECT_THROW(call(w, {.planes = 3}), Error);
  EXPECT_THROW(call(w, {.x = x.as<float>() + 1}), Error);
  EXPECT_THROW(call(pair, {.bias = x.as<float>(), .output = IntOutput::relu2_glu}), Error);
  EXPECT_THROW(pack(IntKind::ternary, 130, {{x.as<void>(), 1}}), Error);
  EXPECT_THROW(pack(IntKind::int4_g128, 128, {{x.as<void>(), 1}, {x.as<void>(), 2}}, true), Error);
  stream().synchronize();
}

}  // namespace
}  // namespace ridge
