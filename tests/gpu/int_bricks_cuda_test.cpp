// Integer products with bricks of the k-quants and of formats of 32 columns a scale against double arithmetic, within
// bounds that follow from the steps of the activations.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "format/q8_0.h"
#include "gpu/brick_data.h"
#include "gpu/graph.h"
#include "gpu/int_operands.h"
#include "op/device_linear.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using Floats = std::vector<float>;

constexpr const char* kFormats[] = {"q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"};
using Case = IntCase;
using Operands = IntOperands;

/// Row `row` times token x (normalised by `factor` and weight, in double), and how far a product of int8 activations
/// may be from it.
Bounded exact_product(const BrickRows& w, const std::vector<double>& sizes, int64_t row, const float* x,
                      const Floats& norm, double factor) {
  Bounded p = {0, 0};
  double size = 0;
  const int64_t group = w.format.group == 256 ? 256 : 128, n_blocks = w.n_in / group;  // of a step of activations
  for (int64_t block = 0; block < n_blocks; ++block) {
    double top = 0, weights = 0;
    for (int64_t k = group * block; k < group * (block + 1); ++k) {
      const size_t at = size_t(row * w.n_in + k);
      const double v = norm.empty() ? double(x[k]) : x[k] * factor * norm[size_t(k)];
      top = std::max(top, std::abs(v));
      weights += std::abs(double(w.weights[at]));
      p.value += w.weights[at] * v;
      size += sizes[at] * std::abs(v);
    }
    // Half a step of the second plane, which is 1 / 254 of the first's and known as int_gemv_cuda_test.cpp says.
    const double half = top / 127 / 508 * (1 + 0x1p-6);
    p.error += half * weights;
    size += half * weights;
  }
  // The integers are exact. Of a group up to 8 minima are added and up to 12 factors and sums rounded (the decoded
  // weights here have 2 more); n_blocks of them are added, then 4 lanes, at most 16 warps and 16 parts; the norm
  // multiplies by a weight and by a factor whose sum of squares had 8 n_blocks + 21 additions (4 of groups of 128).
  p.error += double((group / 32 + 1) * n_blocks + 80) * 0x1p-24 * size;
  return p;
}

class IntBricksCuda : public OnBricks {
 protected:
  /// Outputs of all parts, [token][part][row], twice the same bits, and nothing written around them.
  Floats run(const BrickMatrix& w, const Case& c, const Operands& o) {
    constexpr float kGuard = 7.0f;
    constexpr int64_t kGuards = 64;
    const gpu::Buffer x = up(o.x), norm = up(o.norm), bias = up(o.bias);
    const int64_t n_out = ssize(o.y) / c.n_tokens;
    Floats results[2];
    for (Floats& result : results) {
      IntCall call = {.n_tokens = c.n_tokens,
                      .x = x.as<float>(),
                      .norm_weight = c.norm ? norm.as<float>() : nullptr,
                      .norm_eps = kIntCaseEps,
                      .planes = 2,
                      .bias = c.bias ? bias.as<float>() : nullptr,
                      .output = c.output,
                      .n_parts = w.n_parts};
      std::vector<gpu::Buffer> y;
      int64_t first = 0;
      for (int i = 0; i < w.n_parts; first += w.n_out[i++]) {
        Floats guarded(kGuards, kGuard);
        for (int64_t t = 0; t < c.n_tokens; ++t)
          guarded.insert(guarded.end(), o.y.begin() + t * n_out + first, o.y.begin() + t * n_out + first + w.n_out[i]);
        guarded.insert(guarded.end(), kGuards, kGuard);
        y.push_back(up(guarded));
        call.n_out[i] = w.n_out[i];
        call.y[i] = y.back().as<float>() + kGuards;
      }
      if (c.plan) device_int_gemv(stream(), w, call, *c.plan, scratch_);
      else device_int_gemv(stream(), w, call, scratch_);
      result.resize(o.y.size());
      first = 0;
      for (int i = 0; i < w.n_parts; first += w.n_out[i++]) {
        const int64_t n = c.n_tokens * w.n_out[i];
        const Floats all = down(y[size_t(i)].as<float>(), n + 2 * kGuards);
        EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuards, [](float v) { return v == kGuard; }));
        EXPECT_TRUE(std::all_of(all.end() - kGuards, all.end(), [](float v) { return v == kGuard; }));
        for (int64_t at = 0; at < n; ++at)
          result[size_t(at / w.n_out[i] * n_out + first + at % w.n_out[i])] = all[size_t(kGuards + at)];
      }
    }
    EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), 4 * results[0].size()), 0);
    return results[0];
  }

  /// Holds a product of parts side by side, or of gate and up, against double arithmetic.
  void check(const std::vector<const BrickRows*>& rows, const BrickMatrix& w, const Case& c, uint64_t seed) {
    const int64_t n_in = w.n_in;
    int64_t n_out = 0;
    for (int i = 0; i < w.n_parts; ++i) n_out += w.n_out[i];
    const Operands o(c, n_in, n_out, seed);
    const Floats y = run(w, c, o);
    std::vector<std::vector<double>> sizes;
    for (const BrickRows* m : rows) sizes.push_back(product_sizes(*m));
    for (int64_t t = 0; t < c.n_tokens; ++t) {
      const float* x = &o.x[size_t(t * n_in)];
      double squares = 0;
      for (int64_t k = 0; k < n_in; ++k) squares += double(x[k]) * x[k];
      const double factor = 1 / std::sqrt(squares / double(n_in) + kIntCaseEps);
      for (int64_t row = 0; row < n_out; ++row) {
        const auto at = size_t(t * n_out + row);
        Bounded e;
        if (w.paired) {
          const Bounded g = exact_product(*rows[0], sizes[0], row, x, o.norm, factor);
          const Bounded u = exact_product(*rows[1], sizes[1], row, x, o.norm, factor);
          Bounded a;  // the activation: silu's slope is below 1.1
          if (c.output == IntOutput::silu_glu) a = {g.value / (1 + std::exp(-g.value)), 1.1 * g.error};
          else a = {g.value > 0 ? g.value * g.value : 0.0, (2 * std::abs(g.value) + g.error) * g.error};
          e = {a.value * u.value, a.error * (std::abs(u.value) + u.error) + std::abs(a.value) * u.error};
          e.error += 0x1p-20 * std::abs(e.value);
        } else {
          int64_t first = 0;
          size_t part = 0;
          while (row - first >= rows[part]->n_out) first += rows[part++]->n_out;
          e = exact_product(*rows[part], sizes[part], row - first, x, o.norm, factor);
          const double before = c.output == IntOutput::add ? o.y[at] : 0.0, bias = c.bias ? o.bias[size_t(row)] : 0.0;
          e.error += 0x1p-23 * (std::abs(e.value) + e.error + std::abs(bias) + std::abs(before));
          e.value += before + bias;
        }
        ASSERT_NEAR(y[at], e.value, e.error) << rows[0]->format.name << ", token " << t << " of " << c.n_tokens
                                             << ", row " << row << " of " << n_out << " x " << n_in;
      }
    }
  }

  IntScratch scratch_;
};

TEST_F(IntBricksCuda, EveryCodeIsItsValue) {
  // One activation at a time, of 127: its integers are 127 and 0, so only the scales' products are rounded.
  for (const char* format : kFormats)
    for (const int n_tokens : {1, 2, 4, 8, 16}) {
      const BrickRows rows(format, 33, 512, 1);
      const BrickMatrix w = bricks({&rows});
      const std::vector<double> sizes = product_sizes(rows);
      for (int first = 0; first < 512; first += n_tokens) {
        Operands o({.n_tokens = n_tokens}, 512, 33, 1);
        std::fill(o.x.begin(), o.x.end(), 0.0f);
        for (int t = 0; t < n_tokens; ++t) o.x[size_t(513 * t + first)] = 127;
        const Floats y = run(w, {.n_tokens = n_tokens}, o);
        for (int t = 0; t < n_tokens; ++t)
          for (size_t row = 0; row < 33; ++row) {
            const size_t at = row * 512 + size_t(first + t);
            ASSERT_NEAR(y[size_t(t) * 33 + row], 127.0 * rows.weights[at], 127 * sizes[at] * 0x1p-21)
                << format << ", row " << row << ", column " << first + t;
          }
      }
    }
}

TEST_F(IntBricksCuda, WithinItsStepsAtEveryBatchAndShape) {
  for (const char* format : kFormats)
    for (const int64_t n_out : {1, 15, 16, 17, 140})
      for (const int64_t n_in : {256, 768, 896, 1536}) {
        if (n_in == 896 && (*find_weight_format(format))->group == 256) continue;
        const BrickRows rows(format, n_out, n_in, uint64_t(n_out + n_in));
        const BrickMatrix w = bricks({&rows});
        for (const int n_tokens : {1, 2, 3, 4, 5, 8, 9, 16, 17})  // more than 16 are several launches
          for (const bool norm : {false, true})
            check({&rows}, w, {.n_tokens = n_tokens, .norm = norm}, uint64_t(n_tokens));
      }
}

TEST_F(IntBricksCuda, EveryPrologueAndOutput) {
  for (const char* format : kFormats) {
    const BrickRows gate(format, 37, 512, 5), up_rows(format, 37, 512, 6), more(format, 48, 512, 7);
    const BrickMatrix pair = bricks({&gate, &up_rows}, true), parts = bricks({&gate, &more, &up_rows}),
                      whole_tiles = bricks({&more, &gate});
    for (const bool norm : {false, true})
      for (const int n_tokens : {1, 2, 4, 6, 13}) {
        for (const IntOutput output : {IntOutput::silu_glu, IntOutput::relu2_glu})
          check({&gate, &up_rows}, pair, {.n_tokens = n_tokens, .norm = norm, .output = output}, 3);
        for (const IntOutput output : {IntOutput::store, IntOutput::add})
          for (const bool bias : {false, true}) {
            const Case c = {.n_tokens = n_tokens, .norm = norm, .bias = bias, .output = output};
            check({&gate, &more, &up_rows}, parts, c, 4);
            check({&more, &gate}, whole_tiles, c, 5);
          }
      }
  }
}

TEST_F(IntBricksCuda, EveryPlan) {
  for (const char* format : kFormats) {
    const BrickRows rows(format, 150, 1280, 8);
    const BrickMatrix w = bricks({&rows});
    for (const int n_tokens : {1, 2, 3, 7, 14})
      for (const bool inside : {true, false})
        for (const auto& [most_rows, blocks, warps, split] :
             {std::array{10, 1, 12, 1}, std::array{10, 4, 3, 2}, std::array{2, 5, 11, 5}, std::array{2, 5, 1, 1},
              std::array{1, 10, 2, 3}}) {
          const IntPlan plan = {.tiles_of_8 = int(std::bit_ceil(unsigned(n_tokens + 3) / 4)),
                                .rows = most_rows,
                                .blocks = blocks,
                                .warps = warps,
                                .depth = n_tokens == 1 && inside && warps % 2 == 1 ? 6 : 4,
                                .quantize_inside = inside,
                                .split = inside ? 1 : split};
          check({&rows}, w, {.n_tokens = n_tokens, .norm = true, .bias = true, .output = IntOutput::add, .plan = plan},
                10);
        }
  }
}

/// A kernel makes x in front of two matmuls that run side by side, again and again: on a card, a second matmul that
/// begins too early would read an older x, and a reader that begins too early an older result.
TEST_F(IntBricksCuda, TwoSideBySideAreTheBitsOfTwoAlone) {
  constexpr int64_t kIn = 1536;
  const BrickRows narrow("q6_k", 64, kIn, 21), wide("q4_k", 1024, kIn, 22), back("q4_k", kIn, 1024, 23);
  const BrickMatrix first = bricks({&wide}), second = bricks({&narrow}), reader = bricks({&back});
  ASSERT_TRUE(runs_beside(first) && runs_beside(second));
  const Case c = {.norm = true};
  const Operands o(c, kIn, 1024, 24);
  const gpu::Buffer norm = up(o.norm);
  Floats results[2];
  for (const bool beside : {false, true}) {
    const gpu::Buffer x = up(o.x);
    gpu::Buffer y1(4 * 1024), y2(4 * 64);
    for (int round = 0; round < 40; ++round) {
      IntCall call = {.n_tokens = 1,
                      .x = x.as<float>(),
                      .norm_weight = norm.as<float>(),
                      .norm_eps = 1e-5f,
                      .planes = 2,
                      .n_out = {1024},
                      .y = {y1.as<float>()},
                      .overlap = true};
      call.turn = beside ? IntTurn::first : IntTurn::alone;
      device_int_gemv(stream(), first, call, scratch_);
      call.n_out[0] = 64, call.y[0] = y2.as<float>();
      call.turn = beside ? IntTurn::second : IntTurn::alone;
      device_int_gemv(stream(), second, call, scratch_);
      IntCall next = {.n_tokens = 1,
                      .x = y1.as<float>(),
                      .planes = 2,
                      .output = IntOutput::add,
                      .n_out = {kIn},
                      .y = {x.as<float>()},
                      .overlap = true};
      device_int_gemv(stream(), reader, next, scratch_);
      const Floats now = down(y2.as<float>(), 64);
      if (round % 8 == 7) results[beside].insert(results[beside].end(), now.begin(), now.end());
    }
    const Floats end = down(x.as<float>(), kIn);
    results[beside].insert(results[beside].end(), end.begin(), end.end());
  }
  EXPECT_EQ(results[1], results[0]);
}

TEST_F(IntBricksCuda, OnlyOneTokenRunsSideBySide) {
  const BrickRows rows("q4_k", 32, 512, 3);
  const BrickMatrix w = bricks({&rows});
  const gpu::Buffer x(4 * 2 * 512), y(4 * 2 * 32);
  IntCall call = {.n_tokens = 2, .x = x.as<float>(), .planes = 2, .n_out = {32}, .y = {y.as<float>()}};
  call.turn = IntTurn::second;
  EXPECT_THROW(device_int_gemv(stream(), w, call, scratch_), Error);
}

TEST_F(IntBricksCuda, LongRows) {
  for (const char* format : kFormats)
    for (const int n_tokens : {1, 4, 8, 16}) {  // four do not fit beside each other, but parts of their rows do
      const BrickRows rows(format, 17, 28672, 3);
      check({&rows}, bricks({&rows}), {.n_tokens = n_tokens, .norm = true}, 11);
    }
}

TEST_F(IntBricksCuda, LargestSumsAreExact) {
  // The largest codes and scales, and activations of one size: sums are near 2^30, of q8_0 2^28.
  for (const int n_tokens : {1, 4, 8, 16}) {
    BrickRows bytes("q8_0", 16, 512, 3);
    for (size_t i = 0; i < bytes.bytes.size() / sizeof(Q8_0::Block); ++i) {
      Q8_0::Block block;
      std::memset(block.q, i % 2 == 0 ? 0x7F : 0x80, sizeof block.q);
      block.scale = 0x3C00;
      std::memcpy(&bytes.bytes[i * sizeof block], &block, sizeof block);
    }
    Operands ones({.n_tokens = n_tokens}, 512, 16, 2);
    std::fill(ones.x.begin(), ones.x.end(), 127.0f);
    for (const float y : run(bricks({&bytes}), {.n_tokens = n_tokens}, ones))
      ASSERT_NEAR(y, -127.0 * 32 * 8, 128.0 * 127 * 512 * 0x1p-21);
    BrickRows rows("q6_k", 16, 512, 3);
    for (size_t i = 0; i < rows.bytes.size() / sizeof(Q6_K::Block); ++i) {
      Q6_K::Block block;
      std::memset(&block, 0xFF, sizeof block);
      std::memset(block.scales, 0x80, sizeof block.scales);
      block.d = 0x3C00;
      std::memcpy(&rows.bytes[i * sizeof block], &block, sizeof block);
    }
    Operands o({.n_tokens = n_tokens}, 512, 16, 2);
    std::fill(o.x.begin(), o.x.end(), 127.0f);
    for (const float y : run(bricks({&rows}), {.n_tokens = n_tokens}, o))
      ASSERT_NEAR(y, -128.0 * 31 * 127 * 512, 128.0 * 95 * 127 * 512 * 0x1p-21);
  }
}

TEST_F(IntBricksCuda, ABadTokenIsAlone) {
  for (const char* format : kFormats)
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const bool norm : {false, true}) {
        const BrickRows rows(format, 20, 512, 9);
        const BrickMatrix w = bricks({&rows});
        const Case c = {.n_tokens = 3, .norm = norm};
        Operands o(c, 512, 20, 4);
        const Floats good = run(w, c, o);
        o.x[512 + 277] = bad;
        const Floats y = run(w, c, o);
        for (size_t i = 0; i < y.size(); ++i)
          if (i / 20 == 1) ASSERT_TRUE(std::isnan(y[i])) << i;
          else ASSERT_EQ(y[i], good[i]) << i;
      }
}

TEST_F(IntBricksCuda, XOfEverySize) {
  for (const char* format : kFormats) {
    const BrickRows rows(format, 17, 512, 9);
    const std::vector<double> sizes = product_sizes(rows);
    const BrickMatrix w = bricks({&rows});
    for (const double spread : {1e-25, 1e-12, 0.0, 1e5, 1e15}) {
      Operands o({}, 512, 17, 12);
      o.x = normal_floats(12, 512, spread);
      const Floats y = run(w, {}, o);
      for (int64_t row = 0; row < 17; ++row) {
        const Bounded e = exact_product(rows, sizes, row, o.x.data(), {}, 1);
        ASSERT_NEAR(y[size_t(row)], e.value, e.error) << format << " " << spread;
      }
    }
  }
}

TEST_F(IntBricksCuda, ReplaysInAGraph) {
  for (const int64_t n_tokens : {1, 3, 12}) {  // twelve are summed in parts
    const BrickRows rows("q4_k", 70, 4096, 3);
    const BrickMatrix w = bricks({&rows});
    const Case c = {.n_tokens = int(n_tokens)};
    const Operands o(c, 4096, 70, 5);
    const Floats expected = run(w, c, o);
    const gpu::Buffer x = up(o.x), y = up(Floats(o.y.size(), 0.0f));
    const IntCall call = {.n_tokens = n_tokens,
                          .x = x.as<float>(),
                          .planes = 2,
                          .output = IntOutput::add,
                          .n_out = {70},
                          .y = {y.as<float>()},
                          .overlap = true};
    const gpu::Graph graph(stream(), [&] {
      for (int i = 0; i < 2; ++i) device_int_gemv(stream(), w, call, scratch_);
    });
    for (int i = 0; i < 3; ++i) graph.launch(stream());
    const Floats sum = down(y.as<float>(), ssize(o.y));  // of six equal products
    for (size_t i = 0; i < sum.size(); ++i) {
      float added = 0;
      for (int n = 0; n < 6; ++n) added += expected[i];
      ASSERT_EQ(sum[i], added);
    }
  }
}

TEST_F(IntBricksCuda, PlansFitEveryShapeInUse) {
  const int64_t shapes[][2] = {{2048, 1536},  {8960, 1536},  {1536, 8960}, {6144, 4096},   {28672, 4096},
                               {4096, 14336}, {8192, 28672}, {16, 256},    {152064, 1536}, {16384, 53248}};
  for (const IntKind kind : {IntKind::q4_k, IntKind::q5_k, IntKind::q6_k, IntKind::q8_0, IntKind::q4_0, IntKind::q5_1})
    for (const auto& [n_out, n_in] : shapes)
      for (int n_tokens = 1; n_tokens <= kIntBrickTokens; ++n_tokens) {
        const int64_t n_row_tiles = (n_out + 15) / 16;
        const IntPlan p = plan_int_gemv(kind, n_row_tiles, n_in, n_tokens, 2, {});
        ASSERT_GT(p.blocks, 0);
        ASSERT_GE(int64_t(p.rows) * p.blocks, n_row_tiles);
        ASSERT_TRUE(p.warps > 0 && p.warps <= kIntMostWarps);
        ASSERT_TRUE(p.split == 1 || !p.quantize_inside);
        const int64_t most = n_tokens == 1 && p.blocks > 132 ? 113 << 10 : 227 << 10;
        ASSERT_LE(int_gemv_shared_bytes(kind, p, n_in, n_tokens, 2), most) << n_out << " x " << n_in;
        // A device with as little shared memory as an AMD card has, where long rows need many parts.
        const IntDevice small = {.n_processors = 48, .shared_bytes = 64 << 10};
        const IntPlan q = plan_int_gemv(kind, n_row_tiles, n_in, n_tokens, 2, small);
        ASSERT_TRUE(q.warps > 0 && q.warps <= kIntMostWarps) << n_out << " x " << n_in << ", " << n_tokens;
        ASSERT_GE(int64_t(q.rows) * q.blocks, n_row_tiles);
        ASSERT_LE(int_gemv_shared_bytes(kind, q, n_in, n_tokens, 2), small.shared_bytes) << n_out << " x " << n_in;
      }
}

TEST_F(IntBricksCuda, TheTableNamesTheFormatsThatTheyServe) {
  const auto variants = device_linear_variants();
  const auto row = std::ranges::find(variants, "bricks-int8", &DeviceLinearVariant::name);
  ASSERT_NE(row, variants.end());
  for (const WeightFormat& format : weight_formats())
    for (const int64_t n_in : {64, 128, 256, 65536, 65792}) {
      const auto bricks = find_brick_format(format.name);
      const DeviceLinearProblem problem{{.format = &format, .n_out = 16, .n_in = n_in}, 1};
      EXPECT_EQ(row->supports(problem).ok, bricks && has_int_gemv(*bricks, n_in)) << format.name << " " << n_in;
    }
}

TEST_F(IntBricksCuda, RefusesOperandsThatDoNotFit) {
  const BrickRows rows("q4_k", 16, 256, 1), others("iq4_xs", 16, 256, 1), halves("q8_0", 16, 192, 1);
  const BrickMatrix w = bricks({&rows}), pair = bricks({&rows, &rows}, true), foreign = bricks({&others}),
                    half_a_brick = bricks({&halves});
  const gpu::Buffer x(4096), y(4096);
  const auto call = [&](const BrickMatrix& matrix, IntCall c) {
    c.n_tokens = 1;
    if (!c.x) c.x = x.as<float>();
    if (c.n_out[0] == 0) c.n_out[0] = 16;
    if (c.planes == 1) c.planes = 2;
    c.y[0] = y.as<float>();
    device_int_gemv(stream(), matrix, c, scratch_);
  };
  EXPECT_NO_THROW(call(w, {}));
  EXPECT_NO_THROW(call(pair, {.output = IntOutput::silu_glu}));
  EXPECT_THROW(call(foreign, {}), Error);
  EXPECT_THROW(call(half_a_brick, {}), Error);
  EXPECT_THROW(call(w, {.n_out = {15}}), Error);
  EXPECT_THROW(call(w, {.planes = 3}), Error);
  EXPECT_THROW(call(w, {.output = IntOutput::silu_glu}), Error);
  EXPECT_THROW(call(pair, {}), Error);
  EXPECT_THROW(call(w, {.x = x.as<float>() + 1}), Error);
  EXPECT_THROW(call(w, {.n_parts = 2, .n_out = {8, 8}}), Error);
  stream().synchronize();
}

}  // namespace
}  // namespace ridge
