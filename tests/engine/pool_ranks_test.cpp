// Pools of ranks, each with a part of the heads: the same calls make the same decisions on every rank as in a process
// alone, and every rank holds its part of what a sequence holds there.
#include <gtest/gtest.h>

#include "cases/kv_state_file.h"
#include "cases/pool_walk.h"
#include "model/slice.h"

namespace ridge {
namespace {

constexpr int kRankHeads = 4, kRankDim = 64, kPages = 9, kSlots = 5;

KvSideConfig rank_side(std::string_view format, int window, int sinks, bool centre = false) {
  const KvFormat* const f = find_kv_format(format).or_throw();
  KvSideConfig config{f, f->policy};
  config.policy.window = window;
  config.policy.sinks = sinks;
  config.policy.centre = centre;
  config.policy.rounding = KvRounding::nearest;
  return config;
}
/// Layers of n kv heads: windows of different sizes, sinks, a centre, scales of heads.
std::vector<KvLayerConfig> mixed_layers(int n) {
  return {{rank_side("f16", 0, 0), rank_side("q8_0", 0, 5), n, kRankDim},
          {rank_side("rotor-3", 96, 4, true), rank_side("rotor-4", 32, 4), n, kRankDim},
          {rank_side("q8_0", 0, 0, true), rank_side("rotor-3s", 64, 0), n, kRankDim}};
}
/// A full layer between two sliding ones.
std::vector<KvLayerConfig> sliding_layers(int n) {
  return {{rank_side("rotor-3", 96, 4), rank_side("q8_0", 0, 5), n, kRankDim, 150},
          {rank_side("f16", 0, 0), rank_side("rotor-4", 32, 4), n, kRankDim},
          {rank_side("f16", 0, 0), rank_side("q8_0", 0, 0), n, kRankDim, 40}};
}

/// Sequences over heads [first, first + n) of the model, told apart by their texts.
class Part final : public PoolWalk {
 public:
  Part(const std::vector<KvLayerConfig>& layers, int first_head) : first_head_(first_head) {
    pool_ = host_pool(layers, {}, kPages, kSlots);
  }

 private:
  /// Rows of a head depend on the text, the position, the layer and the head of the model.
  Status append(SeqId seq, uint64_t pick, Rng&, int n) override {
    const uint64_t text = pick % 7;
    RIDGE_TRY_STATUS(pool_->reserve(seq, n));
    const auto& memory = static_cast<const HostKvMemory&>(pool_->memory());
    for (int layer = 0; layer < memory.n_layers(); ++layer) {
      const KvTiles &k = memory.tiles(layer, KvSide::k), &v = memory.tiles(layer, KvSide::v);
      const KvSpan whole = pool_->span(seq, 0, n, memory.page_class(layer));
      std::vector<float> rows[2];
      for (int i = 0; i < n; ++i)
        for (int h = 0; h < k.n_kv_heads; ++h) {
          Rng rng(((text * 4096 + uint64_t(whole.n_past + i)) * 64 + uint64_t(layer)) * 64 + uint64_t(first_head_ + h));
          for (auto& values : rows)
            for (int d = 0; d < kRankDim; ++d) values.push_back(float(rng.normal() + (d == 5 ? 3 : 0)));
        }
      const int64_t width = int64_t(k.n_kv_heads) * kRankDim;
      for (const KvSpan& part : cut_span(whole, most_rows_at_once(k, v), pool_->calibrates(seq)))
        kv_append(context_, k, v, {&part, 1}, {rows[0].data(), n, width}, {rows[1].data(), n, width});
    }
    pool_->advance(seq, n);
    return {};
  }

  void turn_row(int, KvSide, int, float* row) override { std::swap(row[0], row[1]); }

  CpuContext context_{1};
  const int first_head_;
};

using Layers = std::vector<KvLayerConfig> (*)(int n_kv_heads);

/// How a model of these layers lies on ranks.
ModelSlice slice_of(int n_layers, int rank, int size) {
  ModelSlice slice{.rank = rank, .size = size};
  slice.whole.n_layers = n_layers;
  slice.whole.n_kv_heads = kRankHeads;
  slice.whole.head_dim = kRankDim;
  slice.kv_copies = std::max(1, size / kRankHeads);
  return slice;
}

void expect_same_as_alone(int n_ranks, Layers layers, uint64_t seed) {
  constexpr int kSteps = 120, kEvery = 10;
  std::vector<std::string> lines;
  std::vector<std::vector<SequenceImage>> images;
  Part alone(layers(kRankHeads), 0);
  Rng rng(seed);
  for (int i = 0; i < kSteps; ++i) {
    lines.push_back(alone.step(rng) + " | " + alone.state());
    if (i % kEvery == 0) images.push_back(alone.images());
  }
  const auto whole = alone.pool().memory().layouts();
  for (int r = 0; r < n_ranks; ++r) {
    const std::vector<KvLayerConfig> own = layers(std::max(1, kRankHeads / n_ranks));
    const std::vector<SidePart> part = side_parts(slice_of(int(own.size()), r, n_ranks), r);
    Part rank(own, int(part[0].heads.first));
    Rng same_rng(seed);
    for (int i = 0; i < kSteps; ++i) {
      ASSERT_EQ(rank.step(same_rng) + " | " + rank.state(), lines[size_t(i)]) << "rank " << r;
      if (i % kEvery != 0) continue;
      const std::vector<SequenceImage>& expected = images[size_t(i / kEvery)];
      const std::vector<SequenceImage> held = rank.images();
      ASSERT_EQ(held.size(), expected.size());
      for (size_t s = 0; s < held.size(); ++s)
        EXPECT_TRUE(same(cut_image(whole, expected[s], part), held[s])) << "step " << i << ", sequence " << s;
    }
  }
}

TEST(PoolOfRanks, DecidesAndHoldsWhatAProcessAloneDoes) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) expect_same_as_alone(2, mixed_layers, seed);
  expect_same_as_alone(4, mixed_layers, 7);
  expect_same_as_alone(8, mixed_layers, 8);  // two ranks have the same head
}

TEST(PoolOfRanks, OfSlidingLayersDoesSoToo) {
  for (const uint64_t seed : {1, 2, 3}) expect_same_as_alone(2, sliding_layers, seed);
}

}  // namespace
}  // namespace ridge
