// Attention over chosen keys, against the choice and the softmax in double.
#include <gtest/gtest.h>

#include <numeric>

#include "cases/attn_data.h"
#include "op/attn/chosen_keys.h"

namespace ridge {
namespace {

constexpr int kTokens = 150, kTopK = 40, kDim = 64, kHeads = 4, kIndexHeads = 3, kIndexDim = 52;

KvLayerConfig layer_of(const char* format, KvPolicy policy = {}) {
  const KvSideConfig side = side_of(kv(format), policy);
  KvLayerConfig layer{side, side, 1, kDim};
  layer.v_is_k = true;
  layer.rope = rope_of(kDim, 2);
  return layer;
}

/// A text whose K and index lie on the same pages.
struct Text {
  const TokenRows rows{{{kHeads, 1}, kDim, kTokens}, 1}, index_rows{{{kIndexHeads, 1}, kIndexDim, kTokens}, 1, 7};
  const std::vector<float> weights = random_floats(99, kTokens* kIndexHeads);
  CpuContext context;
  Caches caches, index;

  explicit Text(const KvLayerConfig& layer, int n_threads = 1)
      : context(n_threads),
        caches(layer, rows),
        index({side_of(kv("f16")), side_of(kv("f16")), 1, kIndexDim}, index_rows) {}

  /// Brings the text, so many tokens a step; check(problem, index, span, row of the span) of every query. Returns what
  /// attention gave, [kTokens, kHeads * kDim].
  template <class Check>
  std::vector<float> run(int each, const Check& check) {
    std::vector<float> all, scratch(size_t(chosen_rows_floats(kTopK, kDim)), NAN);
    while (caches.length(0) < kTokens) {
      const int first = caches.length(0);
      const Bring bring{0, std::min(each, kTokens - first)};
      index.bring(context, {{bring}});
      caches.bring(context, {{bring}}, [&](std::span<const KvSpan> spans) {
        Attention a = caches.problem(spans);
        a.v = a.k;
        const View2<const float> of_heads(weights.data() + int64_t(first) * kIndexHeads, bring.n, kIndexHeads);
        const KeyIndex of{kIndexHeads, kTopK, index.k.tiles, index.q(), of_heads};
        attention_over_chosen(context, a, of, scratch);
        for (const KvSpan& span : spans)
          for (int i = 0; i < span.n_rows; ++i) check(a, of, span, i);
      });
      const std::vector<float> out = caches.out();
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }
};

/// The choice in double, from rows as the index holds them; and how near the last chosen is to the first left.
std::vector<int32_t> chosen_in_double(const KeyIndex& of, const KvSpan& span, int row, int n, double& margin) {
  std::vector<double> scores(size_t(n), 0.0);
  std::vector<float> key(kIndexDim);
  for (int p = 0; p < n; ++p) {
    read_cached_row(of.keys, span, 0, p, n, key.data());
    for (int h = 0; h < kIndexHeads; ++h) {
      double dot = 0;
      for (int d = 0; d < kIndexDim; ++d) dot += double(of.q(row, h * kIndexDim + d)) * key[size_t(d)];
      scores[size_t(p)] += of.weights(row, h) * std::max(0.0, dot);
    }
  }
  std::vector<int32_t> order(size_t(n), 0);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return scores[size_t(a)] > scores[size_t(b)]; });
  margin = scores[size_t(order[kTopK - 1])] - scores[size_t(order[kTopK])];
  order.resize(kTopK);
  std::ranges::sort(order);
  return order;
}

TEST(ChosenKeys, AreTheBestAndAttentionIsOverThemAlone) {
  for (const auto& [name, policy] : {std::pair{"f32", kPlainPolicy},
                                     {"f16", kPlainPolicy},
                                     {"q8_0", kWindowPolicy},
                                     {"rotor-3", kFullPolicy},
                                     {"q4_0", kFullPolicy}}) {
    SCOPED_TRACE(name);
    Text text(layer_of(name, policy));
    int n_chosen = 0;
    text.run(1, [&](const Attention& a, const KeyIndex& of, const KvSpan& span, int i) {
      const int n = span.n_past + i + 1, row = span.first_row + i;
      std::vector<int32_t> seen(size_t(n), 0);
      std::iota(seen.begin(), seen.end(), 0);
      if (n > kTopK) {
        double margin = 0;
        seen = chosen_in_double(of, span, row, n, margin);
        // Sums of exactly 0 are equal in both.
        ASSERT_TRUE(margin == 0 || margin > 1e-4) << "the text of this test decides nothing at " << n;
        ASSERT_EQ(choose_keys(text.context, of, span, row, n), seen);
        n_chosen += seen.back() - seen.front() >= kTopK;
      }
      std::vector<std::vector<float>> keys;
      for (const int32_t p : seen) {
        std::vector<float>& key = keys.emplace_back(kDim);
        read_cached_row(a.k, span, 0, p, n, key.data());
        a.k.rotation.backward(key.data());
        a.k.move_row(span.slot, 0, p / kTilePositions, 1, key.data());
      }
      for (int h = 0; h < kHeads; ++h) {
        const auto key = [&](int j) { return keys[size_t(j)].data(); };
        const AttendOracle oracle(&a.q(row, h * kDim), int(ssize(seen)), kDim, a.scale, key, key,
                                  [](int) { return CentreScore(); });
        // Coded rows take the way of all queries while everything is seen: int8 products, and rotated back at the end.
        const double more = n <= kTopK ? 0.05 : 4e-6;
        for (int d = 0; d < (policy.centre ? kDim / 2 : kDim); ++d)
          ASSERT_NEAR(a.out(row, h * kDim + d), oracle.out[size_t(d)], oracle.bound[size_t(d)] + more)
              << "position " << n - 1 << " head " << h << " channel " << d;
      }
    });
    EXPECT_GT(n_chosen, 20) << "choices that leave out positions between";
  }
}

TEST(ChosenKeys, GiveTheSameBitsHoweverTheTextIsCut) {
  for (const auto& [name, policy] : {std::pair{"f16", kPlainPolicy}, {"rotor-3", kFullPolicy}}) {
    const auto nothing = [](const Attention&, const KeyIndex&, const KvSpan&, int) {};
    const std::vector<float> alone = Text(layer_of(name, policy)).run(1, nothing);
    for (const auto& [each, n_threads] : {std::pair{150, 1}, {31, 3}, {7, 2}})
      EXPECT_EQ(Text(layer_of(name, policy), n_threads).run(each, nothing), alone) << name << " " << each;
  }
}

TEST(ChosenKeys, EarlierOnesOfEqualSumsAndNoneThatIsNotANumber) {
  const TokenRows rows({{1, 1}, 16, 100}, 1);
  CpuContext context(2);
  Caches index({side_of(kv("f32")), side_of(kv("f32")), 1, 16}, rows);
  index.bring(context, {{Bring{0, 100}}});
  KvSpan span = index.span(0, 0, 0);
  for (int p = 0; p < 100; ++p) {
    auto* const row = reinterpret_cast<float*>(index.k.tiles.coded_row(span.pages, 0, p));
    std::fill_n(row, 16, p % 10 == 3 ? NAN : p % 4 == 1 ? 2.0f : 1.0f);
  }
  const std::vector<float> q(16, 1.0f), weight{1.0f};
  KeyIndex of{1, 4, index.k.tiles, {q.data(), 1, 16}, {weight.data(), 1, 1}};
  EXPECT_EQ(choose_keys(context, of, span, 0, 100), (std::vector<int32_t>{1, 5, 9, 17}));
  of.top_k = 40;  // 20 of 2, and the first 20 of 1
  const std::vector<int32_t> more = choose_keys(context, of, span, 0, 100);
  EXPECT_EQ(ssize(more), 40);
  EXPECT_TRUE(std::ranges::is_sorted(more));
  for (const int32_t p : more) EXPECT_NE(p % 10, 3);
}

}  // namespace
}  // namespace ridge
