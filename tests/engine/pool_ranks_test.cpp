// Pools of ranks, each with a part of the heads: the same calls make the same decisions on every rank as in a process
// alone, and the parts of every sequence are, joined, what it holds there.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "cases/kv_state_file.h"
#include "cases/temp_dir.h"
#include "cases/thread_ranks.h"
#include "engine/rank_state.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

constexpr int kHeads = 4, kDim = 64, kPages = 9, kSlots = 5;
constexpr uint64_t kModel = 0x1234;

KvSideConfig side(std::string_view format, int window, int sinks, bool centre = false) {
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
  return {{side("f16", 0, 0), side("q8_0", 0, 5), n, kDim},
          {side("rotor-3", 96, 4, true), side("rotor-4", 32, 4), n, kDim},
          {side("q8_0", 0, 0, true), side("rotor-3s", 64, 0), n, kDim}};
}
/// A full layer between two sliding ones.
std::vector<KvLayerConfig> sliding_layers(int n) {
  return {{side("rotor-3", 96, 4), side("q8_0", 0, 5), n, kDim, 150},
          {side("f16", 0, 0), side("rotor-4", 32, 4), n, kDim},
          {side("f16", 0, 0), side("q8_0", 0, 0), n, kDim, 40}};
}

/// Sequences over heads [first, first + n) of the model, told apart by their texts, and what happened to them.
class Part {
 public:
  Part(const std::vector<KvLayerConfig>& layers, int first_head)
      : layers_(layers), first_head_(first_head), pool_(host_pool(layers, {}, kPages, kSlots)) {}

  /// A random operation; a line that says what was decided.
  std::string step(Rng& rng) {
    const uint64_t kind = rng.next() % 12, pick = rng.next(), amount = rng.next();
    if (sequences_.empty() || kind == 0) return open(pick);
    const size_t i = size_t(pick % sequences_.size());
    const SeqId seq = sequences_[i];
    const int n = pool_->length(seq);
    const auto somewhere = [&](int most) { return int(amount % uint64_t(most + 1)); };
    if (pool_->is_parked(seq)) return said("unpark", pool_->unpark(seq));
    switch (kind) {
      case 1: return kept("fork", pool_->fork(seq, std::max(0, n - somewhere(40))));
      case 2: return said("trim", pool_->trim(seq, std::max(0, n - somewhere(40)), TrimMode::exact));
      case 3: return said("trim", pool_->trim(seq, somewhere(n), TrimMode::coded_window));
      case 4: return pool_->park(seq), said("park", Status());
      case 5: {
        const Result<CheckpointId> made = pool_->checkpoint(seq);
        if (made) checkpoints_.push_back(*made);
        return said("checkpoint", made);
      }
      case 6: {
        if (checkpoints_.empty()) return said("nothing", Status());
        const size_t c = size_t(amount % checkpoints_.size());
        if (amount % 3 == 0) return kept("open a checkpoint", pool_->open(checkpoints_[c]));
        if (amount % 3 == 1) return pool_->restore(seq, checkpoints_[c]), said("restore", Status());
        pool_->release(checkpoints_[c]);
        checkpoints_.erase(checkpoints_.begin() + ptrdiff_t(c));
        return said("release", Status());
      }
      case 7:
        pool_->close(seq);
        sequences_.erase(sequences_.begin() + ptrdiff_t(i));
        return said("close", Status());
      case 8: {
        const int first = somewhere(n), removed = std::min(n - first, 10);
        return said("shift", pool_->shift(seq, first, removed, [](int, float* row) { std::swap(row[0], row[1]); }));
      }
      default: return said("append", append(seq, pick % 7, 1 + somewhere(60)));
    }
  }

  /// Pages and slots in use, and the length of every sequence.
  std::string state() const {
    const PoolReport r = pool_->report();
    std::string text = fmt::format("{} {} {} {} {} {}:", r.pages_free, r.pages_shared, r.pages_of_checkpoints,
                                   r.slots_free, r.sequences, r.checkpoints);
    for (const SeqId seq : sequences_) {
      text += fmt::format(" {}", pool_->length(seq));
      if (!pool_->is_parked(seq)) text += fmt::format("/{}/{}", pool_->slot(seq), fmt::join(pool_->pages(seq), ","));
    }
    return text;
  }
  std::vector<SequenceImage> images() {
    std::vector<SequenceImage> all;
    for (const SeqId seq : sequences_)
      if (!pool_->is_parked(seq)) all.push_back(pool_->save(seq));
    return all;
  }
  SequencePool& pool() { return *pool_; }

 private:
  std::string said(std::string_view what, const auto& result) {
    return fmt::format("{}: {}", what, result ? "done" : result.error().message);
  }
  std::string kept(std::string_view what, const Result<SeqId>& made) {
    if (made) sequences_.push_back(*made);
    return said(what, made);
  }
  std::string open(uint64_t pick) {
    if (checkpoints_.empty() || pick % 2 == 0) return kept("open", pool_->open());
    return kept("open a checkpoint", pool_->open(checkpoints_[size_t(pick / 2 % checkpoints_.size())]));
  }
  /// Rows of a head depend on the text, the position, the layer and the head of the model.
  Status append(SeqId seq, uint64_t text, int n) {
    RIDGE_TRY_STATUS(pool_->reserve(seq, n));
    const auto& memory = static_cast<const HostKvMemory&>(pool_->memory());
    for (int layer = 0; layer < memory.n_layers(); ++layer) {
      const KvTiles &k = memory.tiles(layer, true), &v = memory.tiles(layer, false);
      const KvSpan whole = pool_->span(seq, 0, n, memory.page_class(layer));
      std::vector<float> rows[2];
      for (int i = 0; i < n; ++i)
        for (int h = 0; h < k.n_kv_heads; ++h) {
          Rng rng(((text * 4096 + uint64_t(whole.n_past + i)) * 64 + uint64_t(layer)) * 64 + uint64_t(first_head_ + h));
          for (auto& values : rows)
            for (int d = 0; d < kDim; ++d) values.push_back(float(rng.normal() + (d == 5 ? 3 : 0)));
        }
      const int64_t width = int64_t(k.n_kv_heads) * kDim;
      for (const KvSpan& part : cut_span(whole, most_rows_at_once(k, v), pool_->calibrates(seq)))
        kv_append(context_, k, v, {&part, 1}, {rows[0].data(), n, width}, {rows[1].data(), n, width});
    }
    pool_->advance(seq, n);
    return {};
  }

  CpuContext context_{1};
  std::vector<KvLayerConfig> layers_;
  int first_head_;
  std::unique_ptr<SequencePool> pool_;
  std::vector<SeqId> sequences_;
  std::vector<CheckpointId> checkpoints_;
};

using Layers = std::vector<KvLayerConfig> (*)(int n_kv_heads);

/// How a model of these layers lies on ranks.
ModelSlice slice_of(int n_layers, int rank, int size) {
  ModelSlice slice{.rank = rank, .size = size};
  slice.whole.n_layers = n_layers;
  slice.whole.n_kv_heads = kHeads;
  slice.whole.head_dim = kDim;
  slice.kv_copies = std::max(1, size / kHeads);
  return slice;
}
/// A rank's pool.
struct RankPart {
  RankPart(Ranks& ranks, Layers layers)
      : own(layers(std::max(1, kHeads / ranks.size()))),
        slice(slice_of(int(own.size()), ranks.rank(), ranks.size())),
        caches(ranks, slice, own),
        part(own, int(side_parts(slice, ranks.rank())[0].heads.first)) {}

  std::vector<KvLayerConfig> own;
  ModelSlice slice;
  RankCaches caches;
  Part part;
};

bool same(const SequenceImage& a, const SequenceImage& b) {
  return a.n == b.n && a.calibrated == b.calibrated &&
         std::ranges::equal(a.sides, b.sides, [](const SideImage& x, const SideImage& y) {
           return x.ring_first == y.ring_first && x.coded_first == y.coded_first && x.bytes == y.bytes;
         });
}

void expect_same_as_alone(int n_ranks, Layers layers, uint64_t seed) {
  constexpr int kSteps = 120, kEvery = 10;
  std::vector<std::string> lines;
  std::vector<std::vector<SequenceImage>> images;
  Part alone(layers(kHeads), 0);
  Rng rng(seed);
  for (int i = 0; i < kSteps; ++i) {
    lines.push_back(alone.step(rng) + " | " + alone.state());
    if (i % kEvery == 0) images.push_back(alone.images());
  }
  on_ranks(n_ranks, [&](Ranks& ranks) {
    RankPart rank(ranks, layers);
    Rng same_rng(seed);
    for (int i = 0; i < kSteps; ++i) {
      ASSERT_EQ(rank.part.step(same_rng) + " | " + rank.part.state(), lines[size_t(i)]) << "rank " << ranks.rank();
      if (i % kEvery != 0) continue;
      const std::vector<SequenceImage>& expected = images[size_t(i / kEvery)];
      std::vector<SequenceImage> own = rank.part.images();
      ASSERT_EQ(own.size(), expected.size());
      for (size_t s = 0; s < own.size(); ++s) {
        const SequenceImage of_rank = own[s];
        const std::optional<SequenceImage> whole = gather_image(rank.caches, std::move(own[s]));
        ASSERT_EQ(whole.has_value(), ranks.is_first());
        if (whole) {
          EXPECT_TRUE(same(*whole, expected[s])) << "step " << i << ", sequence " << s;
        }
        EXPECT_TRUE(same(scatter_image(rank.caches, whole ? &*whole : nullptr), of_rank));
      }
    }
  });
}

TEST(PoolOfRanks, DecidesAndHoldsWhatAProcessAloneDoes) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) expect_same_as_alone(2, mixed_layers, seed);
  expect_same_as_alone(4, mixed_layers, 7);
  expect_same_as_alone(8, mixed_layers, 8);  // two ranks have the same head
}

TEST(PoolOfRanks, OfSlidingLayersDoesSoToo) {
  for (const uint64_t seed : {1, 2, 3}) expect_same_as_alone(2, sliding_layers, seed);
}

/// A failure of the first rank is one of all: nobody waits for it.
TEST(PoolOfRanks, AFileThatCannotBeWrittenOrReadIsEveryRanksError) {
  const TempDir dir;
  std::ofstream(dir / "damaged.kv") << "no state";
  on_ranks(2, [&](Ranks& ranks) {
    RankPart rank(ranks, mixed_layers);
    SequencePool& pool = rank.part.pool();
    const SeqId seq = pool.open().or_throw();
    const Status saved = save_kv_state(rank.caches, pool.save(seq), kModel, dir / "no/such/folder/a.kv");
    ASSERT_FALSE(saved);
    EXPECT_NE(saved.error().message.find("no/such/folder"), std::string::npos) << saved.error().message;
    const auto missing = read_kv_state(rank.caches, 100, kModel, (dir / "missing.kv").native());
    ASSERT_FALSE(missing);
    const auto damaged = read_kv_state(rank.caches, 100, kModel, (dir / "damaged.kv").native());
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().kind, ErrorKind::bad_file);
    EXPECT_NE(damaged.error().message.find("8 bytes are too few"), std::string::npos) << damaged.error().message;
  });
}

}  // namespace
}  // namespace ridge
