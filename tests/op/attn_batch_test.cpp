// Batch invariance: what attention gives for a token is the same bits however its sequence was cut into steps, whatever
// ran beside it, wherever its pages and slot lie, and on any number of threads.
#include <gtest/gtest.h>

#include <map>

#include "cases/attn_data.h"
#include "cases/scratch.h"

namespace ridge {
namespace {

using Outputs = std::map<std::string_view, std::vector<std::vector<float>>>;  // of a kernel: [sequence][n * q_dim]

/// A way to bring the tokens of all sequences.
struct Cut {
  uint64_t order;  // of pages and slots
  int n_threads;
  std::vector<int> sizes;  // of the steps of each sequence, in turn
  bool together;           // sequences share steps, each at its own place in `sizes`
};

Outputs run(const KvLayerConfig& layer, const TokenRows& rows, std::span<const int> lengths, const Cut& cut,
            bool with_ref) {
  CpuContext context(cut.n_threads);
  Caches caches(layer, rows, cut.order);
  Outputs outputs;
  const size_t q_dim = size_t(rows.n_heads * rows.head_dim);
  size_t turn = 0;
  std::vector<Bring> step;
  const auto take = [&] {
    if (step.empty()) return;
    std::map<std::string_view, std::vector<float>> out;
    caches.bring(context, step, [&](std::span<const KvSpan> spans) {
      const Attention a = caches.problem(spans);
      for (const AttentionVariant& variant : attention_variants()) {
        if (variant.isa > detect_isa() || !variant.supports(a).ok || (variant.isa == Isa::scalar && !with_ref))
          continue;
        expect_scratch(context, variant.scratch_bytes ? variant.scratch_bytes(a, 1, cut.n_threads) : ScratchBytes{},
                       [&] { variant.run(context, a); });
        std::vector<float>& to = out[variant.name];
        to.resize(size_t(a.q.rows) * q_dim);
        for (const KvSpan& span : spans)
          for (int r = span.first_row; r < span.first_row + span.n_rows; ++r)
            std::ranges::copy(a.out.row(r), to.begin() + int64_t(size_t(r) * q_dim));
      }
    });
    for (auto& [name, values] : out) {
      auto& of_kernel = outputs[name];
      of_kernel.resize(lengths.size());
      auto from = values.begin();
      for (const Bring& b : step) {
        const auto end = from + int64_t(b.n) * int64_t(q_dim);
        of_kernel[size_t(b.seq)].insert(of_kernel[size_t(b.seq)].end(), from, end);
        from = end;
      }
    }
    step.clear();
  };
  for (bool more = true; more;) {
    more = false;
    for (int s = 0; s < ssize(lengths); ++s) {
      const int left = lengths[size_t(s)] - caches.length(s);
      if (left <= 0) continue;
      step.push_back({s, std::min(left, cut.sizes[turn++ % cut.sizes.size()])});
      more = true;
      if (!cut.together) take();
    }
    take();
  }
  return outputs;
}

const std::vector<Cut> kCuts = {
    {2, 1, {2}, true}, {3, 2, {16, 1, 3}, true}, {4, 3, {512}, true}, {5, 2, {9, 31, 512}, false}};

void expect_same_bits(const KvLayerConfig& layer, const AttnCase& shape, std::span<const int> lengths, bool with_ref) {
  const TokenRows rows(shape, int(lengths.size()));
  const Outputs alone = run(layer, rows, lengths, {1, 1, {1}, false}, with_ref);
  ASSERT_GE(alone.size(), detect_isa() == Isa::scalar ? 0u : 1u);
  for (const Cut& cut : kCuts) {
    const Outputs cut_up = run(layer, rows, lengths, cut, with_ref);
    for (const auto& [name, expected] : alone)
      for (size_t s = 0; s < lengths.size(); ++s) {
        const std::vector<float>& actual = cut_up.at(name)[s];
        ASSERT_EQ(actual.size(), expected[s].size());
        for (size_t i = 0; i < actual.size(); ++i)
          ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[s][i]))
              << name << ", cut " << cut.order << ", sequence " << s << " position "
              << i / size_t(shape.heads.n_heads * shape.head_dim) << ": " << actual[i] << ", alone " << expected[s][i];
      }
  }
}

const KvPolicy kBatchPolicies[] = {kPlainPolicy, kWindowPolicy, kFullPolicy};

/// Every third pair of formats, so that sanitizers take seconds for each share.
void check_pairs(size_t share) {
  size_t turn = 0;
  for (const KvFormat& k : kv_formats())
    for (const KvFormat& v : kv_formats()) {
      if (++turn % 3 != share) continue;
      const KvLayerConfig layer{side_of(k, kBatchPolicies[turn / 3 % 3]), side_of(v, kBatchPolicies[turn / 9 % 3]), 1,
                                64};
      SCOPED_TRACE(fmt::format("K {} V {}, policies {} and {}", k.name, v.name, turn / 3 % 3, turn / 9 % 3));
      expect_same_bits(layer, {{turn % 2 ? 3 : 2, 1}, 64, 101}, {{101, 37}}, turn % 20 == 0);
      if (testing::Test::HasFatalFailure()) return;
    }
}
TEST(AttentionBatch, EveryPairOfFormatsGivesTheSameBitsInEveryCut0) { check_pairs(0); }
TEST(AttentionBatch, EveryPairOfFormatsGivesTheSameBitsInEveryCut1) { check_pairs(1); }
TEST(AttentionBatch, EveryPairOfFormatsGivesTheSameBitsInEveryCut2) { check_pairs(2); }

TEST(AttentionBatch, LongSequencesOfEveryHeadSize) {
  const auto check = [](const char* k, const char* v, int policy, HeadLayout heads, int head_dim) {
    SCOPED_TRACE(fmt::format("K {} V {} head_dim {}", k, v, head_dim));
    const KvLayerConfig layer{side_of(kv(k), kBatchPolicies[policy]), side_of(kv(v), kBatchPolicies[policy]),
                              heads.n_kv_heads, head_dim};
    expect_same_bits(layer, {heads, head_dim, 540}, {{540, 130, 2}}, false);
  };
  check("f16", "f16", 0, {4, 2}, 96);
  check("q8_0", "q4_0", 0, {7, 1}, 128);
  check("rotor-3", "rotor-3s", 2, {2, 2}, 64);
  check("rotor-4", "i8r", 1, {4, 1}, 256);
}

// Which splits a step's queries skip differs from cut to cut.
TEST(AttentionBatch, AWindowOfAttentionChangesNoBitsEither) {
  for (const char* format : {"f16", "q8_0", "rotor-3"})
    for (const int window : {20, 100, 530}) {
      const KvLayerConfig layer{.k = side_of(kv(format), kWindowPolicy),
                                .v = side_of(kv(format), kWindowPolicy),
                                .n_kv_heads = 1,
                                .head_dim = 64,
                                .attention_window = window};
      expect_same_bits(layer, {{2, 1}, 64, 640}, {{640, 130}}, false);
      if (HasFatalFailure()) return;
    }
}

TEST(AttentionBatch, SplitsThatWaitGiveTheSameBitsAsSplitsInARow) {
  // Above 64 splits of 512 a lone query's splits wait in two rounds; 17 queries go through theirs one after another.
  constexpr int kKeys = 64 * 512 + 40;
  const TokenRows rows({{2, 1}, 64, kKeys + 17}, 1);
  const KvLayerConfig layer{side_of(kv("q8_0")), side_of(kv("q8_0")), 1, 64};
  CpuContext few(1), many(3);
  Caches caches(layer, rows);
  caches.bring(many, {{Bring{0, kKeys}}});
  caches.bring(few, {{Bring{0, 17}}}, [&](std::span<const KvSpan> spans) {
    for (const AttentionVariant& variant : attention_variants()) {
      if (variant.isa == Isa::scalar || variant.isa > detect_isa()) continue;
      const Attention a = caches.problem(spans);
      variant.run(few, a);
      const std::vector<float> all(&a.out(0, 0), &a.out(0, 0) + 128);
      KvSpan first = spans[0];
      first.n_rows = 1;
      variant.run(many, caches.problem({&first, 1}));
      EXPECT_EQ(std::vector<float>(&a.out(0, 0), &a.out(0, 0) + 128), all) << variant.name;
    }
  });
}

TEST(AttentionBatch, EarlierTokensDoNotDependOnLaterOnes) {
  CpuContext context(2);
  const int n = 43, dim = 4 * 64;
  TokenRows rows({{4, 2}, 64, n}, 1), later = rows;
  for (size_t i = 30 * dim; i < size_t(n * dim); ++i) later.q[0][i] = NAN;
  const KvLayerConfig layer{side_of(kv("f16")), side_of(kv("q8_0")), 2, 64};
  for (const AttentionVariant& variant : attention_variants()) {
    if (variant.isa > detect_isa()) continue;
    Caches one(layer, rows), two(layer, later);
    for (Caches* caches : {&one, &two})
      caches->bring(context, {{Bring{0, n}}},
                    [&](std::span<const KvSpan> spans) { variant.run(context, caches->problem(spans)); });
    const std::vector<float> expected = one.out(), actual = two.out();
    for (size_t i = 0; i < expected.size(); ++i) {
      if (i < 30 * dim) ASSERT_EQ(actual[i], expected[i]) << variant.name << " element " << i;
      else ASSERT_TRUE(std::isnan(actual[i])) << variant.name << " element " << i;
    }
  }
}

TEST(KvRetention, CodesWholeTilesBehindTheWindowOnceCalibrated) {
  constexpr KvRetention kPlain{}, kWindow{.window = 32, .tile = 32, .calibration = 64};
  EXPECT_EQ(kPlain.coded_end(0), 0);
  EXPECT_EQ(kPlain.coded_end(17), 17);
  EXPECT_EQ(kWindow.coded_end(63), 0);
  EXPECT_EQ(kWindow.coded_end(64), 32);
  EXPECT_EQ(kWindow.coded_end(95), 32);
  EXPECT_EQ(kWindow.coded_end(96), 64);
  EXPECT_EQ((KvRetention{.window = 64, .tile = 32, .calibration = 0}).coded_end(63), 0);
}

}  // namespace
}  // namespace ridge
