// Attention in floats against plain softmax in double over the rows that each query sees; the bound is AttendOracle's.
#include <gtest/gtest.h>

#include <functional>

#include "cases/attn_data.h"
#include "cases/scratch.h"
#include "cases/test_context.h"

namespace ridge {
namespace {

/// Caches of one sequence (or more) and the queries brought last.
struct Problem {
  AttnCase shape;
  TokenRows rows;
  Caches caches;
  std::vector<KvSpan> spans;
  std::vector<AttendOracle> oracles;  // [query, head], when first asked for

  Problem(const AttnCase& c, const KvSideConfig& k, const KvSideConfig& v, uint64_t seed = 1, int window = 0)
      : shape(c),
        rows(c, 1, seed),
        caches({.k = k,
                .v = v,
                .n_kv_heads = c.heads.n_kv_heads,
                .head_dim = c.head_dim,
                .attention_window = window,
                .rope = rope_of(c.head_dim, seed)},
               rows, seed) {}

  /// All tokens; the last n_queries are asked.
  Problem& fill(int n_queries = 1) {
    const int first = shape.n_keys - n_queries;
    if (first > 0) caches.bring(test_context(), {{Bring{0, first}}});
    caches.bring(test_context(), {{Bring{0, n_queries}}},
                 [&](std::span<const KvSpan> part) { spans.insert(spans.end(), part.begin(), part.end()); });
    // A sink is never read as coded: what lies in its place must not matter.
    for (FencedSide* side : {&caches.k, &caches.v})
      for (int p = 0; p < std::min(side->tiles.n_sinks, shape.n_keys); ++p)
        for (int h = 0; h < shape.heads.n_kv_heads; ++h)
          std::memset(side->tiles.coded_row(spans[0].pages, h, p), 0xFF, size_t(side->tiles.row_bytes));
    return *this;
  }
  std::string name() const {
    return fmt::format("{} K {} V {}", shape.name(), caches.k.layout.config.format->name,
                       caches.v.layout.config.format->name);
  }
};

/// The rows of a side that the query seeing n positions reads, [n, head_dim].
std::vector<float> seen_rows(const KvTiles& tiles, const KvSpan& span, int kv_head, int n) {
  std::vector<float> rows(size_t(n) * size_t(tiles.head_dim));
  for (int p = 0; p < n; ++p) read_cached_row(tiles, span, kv_head, p, n, &rows[size_t(p) * size_t(tiles.head_dim)]);
  return rows;
}

void find_oracles(Problem& p) {
  const size_t dim = size_t(p.shape.head_dim);
  const int group = p.shape.heads.n_heads / p.shape.heads.n_kv_heads;
  for (const KvSpan& span : p.spans)
    for (int i = 0; i < span.n_rows; ++i)
      for (int kv_head = 0; kv_head < p.shape.heads.n_kv_heads; ++kv_head) {
        const int n = span.n_past + i + 1, window = p.caches.k.tiles.attention_window;
        const int first = window > 0 ? std::max(0, n - window) : 0;
        const std::vector<float> keys = seen_rows(p.caches.k.tiles, span, kv_head, n),
                                 values = seen_rows(p.caches.v.tiles, span, kv_head, n);
        for (int j = 0; j < group; ++j) {
          const float* const from = &p.caches.q()(span.first_row + i, int64_t((kv_head * group + j)) * int64_t(dim));
          std::vector<float> q(from, from + dim);
          p.caches.k.tiles.rotation.forward(q.data());
          p.oracles.emplace_back(
              q.data(), n - first, int(dim), p.caches.scale, [&](int at) { return &keys[size_t(first + at) * dim]; },
              [&](int at) { return &values[size_t(first + at) * dim]; },
              [&](int at) { return CentreScore(p.caches.k.tiles, span.slot, kv_head, first + at, from); });
        }
      }
}

/// Element by element in a cache that is not rotated. Else the whole row: R keeps norms, and rounding to float, adding
/// the centre and rotating back costs (1 + 1 + 9) u of the sizes, here and in the kernel.
void expect_row(const float* actual, const AttendOracle& oracle, const KvTiles& v, int slot, int kv_head) {
  const size_t dim = oracle.out.size();
  if (v.rotation.kind == Rotation::none && !v.centre) {
    for (size_t d = 0; d < dim; ++d)
      ASSERT_LE(std::abs(actual[d] - oracle.out[d]), oracle.bound[d]) << "element " << d << ": " << actual[d];
    return;
  }
  std::vector<float> expected(oracle.out.begin(), oracle.out.end());
  double error = 0, bound = 0, size = 0, centre_size = 0;
  for (size_t d = 0; d < dim; ++d) {
    const float centre = v.centre ? v.centre_of(slot, kv_head)[d] : 0.0f;
    bound += oracle.bound[d] * oracle.bound[d];
    size += double(expected[d]) * expected[d], centre_size += double(centre) * centre;
  }
  v.rotation.backward(expected.data());
  v.add_still_centre(slot, kv_head, expected.data());
  for (size_t d = 0; d < dim; ++d) error += std::pow(double(actual[d]) - expected[d], 2);
  ASSERT_LE(std::sqrt(error), std::sqrt(bound) + 22 * 0x1p-24 * (std::sqrt(size) + std::sqrt(centre_size)));
}

void expect_all_kernels(Problem& p) {
  if (p.oracles.empty()) find_oracles(p);
  for (const AttentionVariant& variant : attention_variants()) {
    const Attention a = p.caches.problem(p.spans);
    if (variant.rounds || variant.isa > detect_isa() || !variant.supports(a).ok) continue;
    SCOPED_TRACE(fmt::format("{} {}", variant.name, p.name()));
    CpuContext& context = test_context();
    expect_scratch(context, variant.scratch_bytes ? variant.scratch_bytes(a, 1, context.pool.size()) : ScratchBytes{},
                   [&] { variant.run(context, a); });
    size_t at = 0;
    for (const KvSpan& span : p.spans)
      for (int i = 0; i < span.n_rows; ++i)
        for (int head = 0; head < p.shape.heads.n_heads; ++head) {
          SCOPED_TRACE(fmt::format("position {} head {}", span.n_past + i, head));
          expect_row(&a.out(span.first_row + i, int64_t(head) * p.shape.head_dim), p.oracles[at++], a.v, span.slot,
                     head / a.group());
          if (testing::Test::HasFatalFailure()) return;
        }
  }
}

constexpr HeadLayout kGroups[] = {{2, 2}, {4, 2}, {8, 2}, {7, 1}};
const KvPolicy kPolicies[] = {kPlainPolicy, kWindowPolicy, kFullPolicy, {.centre = true}, {.window = 64, .sinks = 7}};

TEST(Attention, EveryFormatOnEitherSideAtEveryHeadSizeAndGroup) {
  size_t turn = 0;
  for (const int head_dim : {64, 96, 128, 256})
    for (const KvFormat& format : kv_formats())
      for (const char* other : {"f16", "q8_0", "rotor-3"})
        for (const KvSide side : kKvSides) {
          ++turn;
          const KvSideConfig one = side_of(format, kPolicies[turn % 5]),
                             two = side_of(kv(other), kPolicies[turn / 2 % 5]);
          const AttnCase c{kGroups[turn / 3 % 4], head_dim, head_dim > 128 ? 70 : 100 + int(turn % 40)};
          Problem p(c, side == KvSide::k ? one : two, side == KvSide::k ? two : one, turn);
          expect_all_kernels(p.fill(1 + int(turn % 2)));
          if (HasFatalFailure()) return;
        }
}

TEST(Attention, EveryLengthAroundTilesWindowsPagesAndSplits) {
  for (const int n : {1,   2,   3,   4,   5,   31,  32,  33,  63,  64,  65,  95,  96,  97,  127, 128,
                      129, 159, 160, 161, 191, 192, 193, 255, 256, 257, 511, 512, 513, 545, 640, 1031})
    for (size_t i = 0; i < 5; ++i) {
      const KvSideConfig k = side_of(kv(i % 2 ? "rotor-4" : "rotor-3"), kPolicies[i]),
                         v = side_of(kv(i % 2 ? "f32" : "q4_0"), kPolicies[(i + 2) % 5]);
      if (n > 600 && i != 1) continue;
      Problem p({{4, 2}, 32, n}, k, v, uint64_t(n));
      expect_all_kernels(p.fill(std::min(n, 3)));
      if (HasFatalFailure()) return;
    }
}

TEST(Attention, EveryHeadSizeThatFormatsAllow) {
  size_t turn = 0;
  for (const int head_dim : {8, 16, 24, 80, 112, 192, 512, 576})
    for (const KvFormat& format : kv_formats()) {
      if (head_dim % format.group != 0) continue;
      Problem p({kGroups[++turn % 4], head_dim, 70}, side_of(format, {.window = 32, .sinks = 2}), side_of(format),
                turn);
      expect_all_kernels(p.fill());
      if (HasFatalFailure()) return;
    }
}

/// One kv head, f16, q = (1, 0, 0, ...) and scale 1: key i's score is its first element.
struct ScoreProblem : Problem {
  ScoreProblem(int n_keys, const std::function<float(int)>& score, float score_scale = 1)
      : Problem({{3, 1}, 32, n_keys}, side_of(kv("f16")), side_of(kv("f16")), 9) {
    caches.scale = score_scale;
    for (size_t i = 0; i < rows.q[0].size(); ++i) rows.q[0][i] = i % 32 == 0 ? 1.0f : 0.0f;
    for (int i = 0; i < n_keys; ++i) rows.k[0][size_t(i) * 32] = score(i);
    fill();
  }
};

TEST(Attention, OneDominatingKeyGivesItsValue) {
  for (const int n_keys : {2, 33, 600})
    for (const int winner : {0, n_keys / 2, n_keys - 1})
      for (const float gap : {100.0f, 60000.0f}) {
        ScoreProblem p(n_keys, [&](int i) { return i == winner ? gap : 0.0f; });
        expect_all_kernels(p);
        for (const AttendOracle& oracle : p.oracles)
          for (size_t d = 0; d < 32; ++d)
            EXPECT_NEAR(oracle.out[d], p.rows.v[0][size_t(winner) * 32 + d], 0x1p-10 * 4) << "the oracle's own";
      }
}

TEST(Attention, EqualScoresGiveTheMeanHoweverLargeTheyAre) {
  for (const float score : {0.0f, 60000.0f, -60000.0f})
    for (const float scale : {1.0f, 1e15f, 1e24f}) {  // scores up to 6e28; the mask stands at -1e30
      ScoreProblem p(
          77, [&](int) { return score; }, scale);
      expect_all_kernels(p);
      attention(test_context(), p.caches.problem(p.spans));
      double mean = 0;
      for (size_t i = 0; i < 77; ++i) mean += p.rows.v[0][i * 32 + 3] / 77.0;
      EXPECT_NEAR(p.caches.out()[3], mean, 0x1p-10) << score << " x " << scale;  // f16 rows
    }
}

TEST(Attention, LateKeyAboveAllOthersRescalesEarlierSplits) {
  ScoreProblem p(1100, [](int i) { return float(i) * 0.25f; });
  expect_all_kernels(p);
}

TEST(Attention, AQueryThatIsNoNumberStaysInItsHeadAndToken) {
  Problem p({{4, 2}, 64, 40}, side_of(kv("q8_0")), side_of(kv("rotor-3"), kWindowPolicy), 3);
  p.rows.q[0][size_t(37 * 4 + 1) * 64 + 5] = NAN;  // token 37, head 1
  p.fill(12);
  for (const AttentionVariant& variant : attention_variants()) {
    if (variant.isa > detect_isa()) continue;
    variant.run(test_context(), p.caches.problem(p.spans));
    const std::vector<float> out = p.caches.out();
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(std::isnan(out[i]), i / 64 == (37 - 28) * 4 + 1) << variant.name << " element " << i;
  }
}

TEST(Attention, EntryPointRefusesImpossibleShapes) {
  Problem p({{4, 2}, 64, 40}, side_of(kv("f16")), side_of(kv("f16")), 3);
  p.fill();
  Attention a = p.caches.problem(p.spans);
  attention(test_context(), a);
  a.n_heads = 5;
  EXPECT_THROW(attention(test_context(), a), Error);
  a.n_heads = 4;
  a.spans = {};
  EXPECT_THROW(attention(test_context(), a), Error);
}

TEST(Attention, WorkCountsEveryCachedRowOncePerKvHead) {
  const KvLayerConfig layer{side_of(kv("rotor-3"), {.window = 32, .sinks = 4}), side_of(kv("q8_0")), 2, 128};
  const Work one = attention_work(AttentionProblem(layer, 12, 100).get());
  // 4 sinks and positions 64..99 in f16, 60 rows of 50 bytes between; V is 100 rows of 136 bytes; q in, out.
  EXPECT_EQ(one.read_bytes, 2 * ((4 + 36) * 256 + 60 * 50 + 100 * 136) + 4 * 12 * 128);
  EXPECT_EQ(one.write_bytes, 4 * 12 * 128);
  EXPECT_EQ(one.flops, 4 * 12 * 128 * 100);
  // Three queries see 98, 99 and 100 keys; the rows are read once.
  const Work three = attention_work(AttentionProblem(layer, 12, 100, 3).get());
  EXPECT_EQ(three.read_bytes - one.read_bytes, 2 * 4 * 12 * 128);
  EXPECT_EQ(three.flops, 4 * 12 * 128 * 297);
  // In a window of 50: positions 50 to 99, no sink among them.
  KvLayerConfig sliding = layer;
  sliding.attention_window = 50;
  const Work some = attention_work(AttentionProblem(sliding, 12, 100).get());
  EXPECT_EQ(some.read_bytes, 2 * (36 * 256 + 14 * 50 + 50 * 136) + 4 * 12 * 128);
  EXPECT_EQ(some.flops, 4 * 12 * 128 * 50);
  EXPECT_EQ(attention_work(AttentionProblem(sliding, 12, 100, 3).get()).flops, 4 * 12 * 128 * 150);
}

// A window of attention ends in tiles and splits, in the rows kept exact, among the sinks, and beyond all of them.
TEST(Attention, AWindowIsWhatAQuerySees) {
  uint64_t turn = 0;
  for (const int window : {1, 2, 31, 33, 64, 100, 129, 513, 700})
    for (const int n : {1, 40, 130, 640, 1031})
      for (const char* format : {"f16", "rotor-3", "q8_0"}) {
        ++turn;
        Problem p({{4, 2}, turn % 2 ? 64 : 32, n}, side_of(kv(format), kPolicies[turn % 5]),
                  side_of(kv(format), kPolicies[turn / 2 % 5]), turn, window);
        expect_all_kernels(p.fill(std::min(n, turn % 3 == 0 ? 20 : 1)));
        if (HasFatalFailure()) return;
      }
}

// Every kernel, those of integers among them: rows that no query sees may hold anything.
TEST(Attention, WhatLiesBeforeTheWindowDoesNotMatter) {
  for (const char* format : {"f16", "q8_0", "p8", "rotor-3", "rotor-4", "q4_0"}) {
    constexpr int kWindow = 70, kKeys = 600, kQueries = 9;
    Problem p({{8, 2}, 64, kKeys}, side_of(kv(format), kWindowPolicy), side_of(kv(format), kWindowPolicy), 5, kWindow);
    p.fill(kQueries);
    const auto all = [&] {
      std::vector<std::vector<float>> outputs;
      for (const AttentionVariant& variant : attention_variants()) {
        const Attention a = p.caches.problem(p.spans);
        if (variant.isa > detect_isa() || !variant.supports(a).ok) continue;
        variant.run(test_context(), a);
        outputs.push_back(p.caches.out());
      }
      return outputs;
    };
    const auto before = all();
    for (FencedSide* side : {&p.caches.k, &p.caches.v})
      for (int h = 0; h < p.shape.heads.n_kv_heads; ++h)
        for (int position = 0; position <= kKeys - kQueries - kWindow; ++position) {
          std::memset(side->tiles.coded_row(p.spans[0].pages, h, position), 0x5A, size_t(side->tiles.row_bytes));
          if (position < side->tiles.n_sinks)
            std::memset(side->tiles.sink_row(p.spans[0].slot, h, position), 0x5A, size_t(2 * side->tiles.head_dim));
        }
    EXPECT_EQ(all(), before) << format;
  }
}

// A sink logit s takes e^s / (e^s + sum e^score) of the softmax and adds nothing.
TEST(Attention, ASinkLogitTakesItsShare) {
  for (const int n : {1, 33, 700})
    for (const int n_queries : {1, 12}) {
      if (n_queries > n) continue;
      Problem p({{4, 2}, 64, n}, side_of(kv("f32")), side_of(kv("f32")), uint64_t(n));
      p.fill(n_queries);
      const std::vector<float> sinks{-3, 0.5f, 4, 30};
      for (const AttentionVariant& variant : attention_variants()) {
        Attention a = p.caches.problem(p.spans);
        if (variant.isa > detect_isa() || !variant.supports(a).ok) continue;
        SCOPED_TRACE(fmt::format("{} {} keys", variant.name, n));
        variant.run(test_context(), a);
        const std::vector<float> without = p.caches.out();
        a.sink_logits = sinks.data();
        variant.run(test_context(), a);
        const std::vector<float> with = p.caches.out();
        size_t at = 0;
        for (const KvSpan& span : p.spans)
          for (int i = 0; i < span.n_rows; ++i)
            for (int head = 0; head < 4; ++head) {
              double sum = 0;
              std::vector<float> row(64);
              for (int position = 0; position <= span.n_past + i; ++position) {
                read_cached_row(a.k, span, head / 2, position, span.n_past + i + 1, row.data());
                double dot = 0;
                for (int d = 0; d < 64; ++d) dot += double(a.q(span.first_row + i, head * 64 + d)) * row[size_t(d)];
                sum += std::exp(dot * a.scale);
              }
              const double share = sum / (sum + std::exp(double(sinks[size_t(head)])));
              for (int d = 0; d < 64; ++d, ++at) ASSERT_NEAR(with[at], share * without[at], 2e-5 * share + 1e-12);
            }
      }
    }
}

}  // namespace
}  // namespace ridge
