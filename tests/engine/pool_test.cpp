// The pool of sequences over host memory: what is shared, copied, given back and counted, and that rows stay what they
// were through all of it. Rows come from a text's seed, its position and the layer, so that a sequence is known by its
// texts.
#include "engine/pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "engine/kv_options.h"
#include "op/cache/append.h"

namespace ridge {
namespace {

constexpr int kHeads = 2, kDim = 64;
using testing::HasSubstr;

KvSideConfig side(std::string_view format, int window, int sinks, bool centre = false) {
  const KvFormat* const f = find_kv_format(format).or_throw();
  KvSideConfig config{f, f->policy};
  config.policy.window = window;
  config.policy.sinks = sinks;
  config.policy.centre = centre;
  config.policy.rounding = KvRounding::nearest;
  return config;
}

/// Rows coded as they come, with sinks too; windows of different sizes; a centre and scales of heads.
std::vector<KvLayerConfig> mixed_layers() {
  return {{side("f16", 0, 0), side("q8_0", 0, 5), kHeads, kDim},
          {side("rotor-3", 96, 4, true), side("rotor-4", 32, 4), kHeads, kDim},
          {side("q8_0", 0, 0, true), side("rotor-3s", 64, 0), kHeads, kDim}};
}
/// A full layer between two sliding ones, of which one codes rows that no query sees any more.
std::vector<KvLayerConfig> sliding_layers() {
  return {{side("rotor-3", 96, 4, true), side("q8_0", 0, 5), kHeads, kDim, 150},
          {side("f16", 0, 0), side("rotor-4", 32, 4), kHeads, kDim},
          {side("f16", 0, 0), side("rotor-3s", 64, 0), kHeads, kDim, 40}};
}
/// Nothing but one kind of sliding layers.
std::vector<KvLayerConfig> only_sliding_layers() {
  return {{side("f16", 0, 0), side("q8_0", 0, 0), kHeads, kDim, 100}};
}
/// No side codes anything late: going back is exact however far.
std::vector<KvLayerConfig> plain_layers() { return {{side("f16", 0, 0), side("q8_0", 0, 0), kHeads, kDim}}; }

std::unique_ptr<HostKvMemory> memory_of(const std::vector<KvLayerConfig>& layers, PageNumbers n_pages, int n_slots) {
  return std::make_unique<HostKvMemory>(layers, std::span<const KvMetricView>(), nullptr, n_pages, n_slots);
}

bool is_of(const KvLayerConfig& layer, PageClass of) {
  return (layer.attention_window > 0) == (of == PageClass::sliding);
}
/// Of layers that have only one.
PageClass class_of(const std::vector<KvLayerConfig>& layers) {
  return layers[0].attention_window > 0 ? PageClass::sliding : PageClass::full;
}

/// Bytes of a page and of a slot from the formats' rows alone.
int64_t page_formula(const std::vector<KvLayerConfig>& layers, PageClass of) {
  int64_t bytes = 0;
  for (const KvLayerConfig& layer : layers)
    for (const KvSide side : kKvSides)
      if (is_of(layer, of)) bytes += kHeads * 128 * layer.side(side).format->row_bytes(kDim);
  return bytes;
}
int64_t page_formula(const std::vector<KvLayerConfig>& layers) { return page_formula(layers, class_of(layers)); }
int64_t slot_formula(const std::vector<KvLayerConfig>& layers) {
  int64_t bytes = 0;
  for (const KvLayerConfig& layer : layers)
    for (const KvSide side : kKvSides) {
      const KvSideConfig& s = layer.side(side);
      const bool calibrates = s.policy.centre || s.format->head_scale;
      // Window, a tile of 32 that fills up, 32 spare rows; the 64 rows of calibration fit in there or stand alone.
      const int ring = s.policy.window > 0 ? s.policy.window + 32 + 32 : calibrates ? 64 : 0;
      bytes += kHeads * (ring * s.recent().row_bytes(kDim) + 2 * s.policy.sinks * kDim);
      bytes += 4 * kHeads * (s.policy.centre ? kDim : 0) + 4 * kHeads * (s.format->head_scale ? 1 : 0);
    }
  return bytes;
}
/// Positions of n that are coded.
int coded_formula(const KvSideConfig& s, int n) {
  const int window = s.policy.window, tile = window > 0 ? 32 : 1;
  const bool waits = (s.policy.centre || s.format->head_scale) && n < 64;
  return waits || n < window ? 0 : (n - window) / tile * tile;
}
/// Pages of a sequence that has grown to n positions, of one class. Sliding layers hold what the next query sees and
/// what is coded next, were the sequence 32 positions shorter, and the rest of the pages that these are in.
int pages_formula(const std::vector<KvLayerConfig>& layers, int n, PageClass of) {
  const int back = std::max(0, n - 32);
  int most = 0, first = back;
  for (const KvLayerConfig& layer : layers)
    for (const KvSide side : kKvSides) {
      if (!is_of(layer, of)) continue;
      most = std::max(most, (coded_formula(layer.side(side), n) + 127) / 128);
      const int seen = std::max(0, back + 1 - layer.attention_window);
      first = std::min({first, of == PageClass::sliding ? seen : 0, coded_formula(layer.side(side), back)});
    }
  return most - (of == PageClass::sliding ? first / 128 : 0);
}

class Pool {
 public:
  Pool(std::vector<KvLayerConfig> layers, PageNumbers n_pages, int n_slots)
      : layers_(std::move(layers)),
        pool_(memory_of(layers_, n_pages, n_slots), [this](int n) { return memory_of(layers_, n, 1); }) {}

  SequencePool* operator->() { return &pool_; }

  /// n rows of a text behind what the sequence holds, in steps of `step` rows.
  Status append(SeqId seq, uint64_t text, int n, int step = 7) {
    for (int done = 0; done < n; done += step) RIDGE_TRY_STATUS(append_step(seq, text, std::min(step, n - done)));
    return {};
  }
  SeqId open(uint64_t text, int n) {
    const SeqId seq = pool_.open().or_throw();
    append(seq, text, n).or_throw();
    return seq;
  }
  /// Every row that a query behind the last position sees, as it reads it.
  std::vector<float> rows(SeqId seq) {
    const auto& memory = static_cast<const HostKvMemory&>(pool_.memory());
    std::vector<float> all;
    std::vector<float> row(kDim);
    for (int layer = 0; layer < memory.n_layers(); ++layer)
      for (const KvSide side : kKvSides)
        for (int head = 0; head < kHeads; ++head) {
          const KvSpan span = pool_.span(seq, 0, 0, memory.page_class(layer));
          for (int p = memory.tiles(layer, side).first_seen(span.n_past + 1); p < span.n_past; ++p) {
            read_cached_row(memory.tiles(layer, side), span, head, p, span.n_past, row.data());
            all.insert(all.end(), row.begin(), row.end());
          }
        }
    return all;
  }
  /// Everything a sequence or a checkpoint can hold is counted as it should be.
  void check(int sequences, int checkpoints, int pages, int shared, int slots, const char* where) {
    const PoolReport r = pool_.report();
    EXPECT_EQ(r.sequences, sequences) << where;
    EXPECT_EQ(r.checkpoints, checkpoints) << where;
    EXPECT_EQ(r.n_pages - r.pages_free, pages) << where;
    EXPECT_EQ(r.pages_shared, shared) << where;
    EXPECT_EQ(r.n_slots - r.slots_free, slots) << where;
    EXPECT_EQ(r.page_bytes, page_formula(layers_)) << where;
    EXPECT_EQ(r.slot_bytes, slot_formula(layers_)) << where;
    EXPECT_EQ(r.used_bytes, pages * page_formula(layers_) + slots * slot_formula(layers_)) << where;
    int64_t padding = 0;
    for (int layer = 0; layer < pool_.memory().n_layers(); ++layer)
      for (const KvSide side : kKvSides) padding += pool_.memory().overhead_bytes(layer, side);
    EXPECT_EQ(r.allocated_bytes, r.n_pages * page_formula(layers_) + r.n_slots * slot_formula(layers_) + padding);
  }
  /// The same of sequences that have grown to these lengths and share nothing.
  void check_grown(const std::vector<int>& lengths, const char* where) {
    const PoolReport r = pool_.report();
    const auto n_slots = ssize(lengths);
    int64_t bytes = n_slots * slot_formula(layers_);
    for (const PageClass of : pool_.memory().page_classes()) {
      const PageReport& p = of == PageClass::sliding && r.sliding ? *r.sliding : r;
      int pages = 0;
      for (const int n : lengths) pages += pages_formula(layers_, n, of);
      EXPECT_EQ(p.n_pages - p.pages_free, pages) << where;
      EXPECT_EQ(p.page_bytes, page_formula(layers_, of)) << where;
      EXPECT_EQ(p.pages_shared + p.pages_of_checkpoints, 0) << where;
      bytes += pages * page_formula(layers_, of);
    }
    EXPECT_EQ(r.used_bytes, bytes) << where;
    EXPECT_EQ(r.n_slots - r.slots_free, n_slots) << where;
  }
  int pages(int n) const { return pages_formula(layers_, n, class_of(layers_)); }
  int sliding_pages(int n) const { return pages_formula(layers_, n, PageClass::sliding); }

 private:
  Status append_step(SeqId seq, uint64_t text, int n) {
    RIDGE_TRY_STATUS(pool_.reserve(seq, n));
    const auto& memory = static_cast<const HostKvMemory&>(pool_.memory());
    for (int layer = 0; layer < memory.n_layers(); ++layer) {
      const KvSpan whole = pool_.span(seq, 0, n, memory.page_class(layer));
      std::vector<float> k, v;
      for (int i = 0; i < n; ++i) {
        Rng rng((text * 4096 + uint64_t(whole.n_past + i)) * 64 + uint64_t(layer));
        for (int d = 0; d < kHeads * kDim; ++d) {
          k.push_back(float(rng.normal() + (d % kDim == 5 ? 3 : 0)));
          v.push_back(float(rng.normal()));
        }
      }
      const KvTiles &tk = memory.tiles(layer, KvSide::k), &tv = memory.tiles(layer, KvSide::v);
      for (const KvSpan& part : cut_span(whole, most_rows_at_once(tk, tv), pool_.calibrates(seq)))
        kv_append(context_, tk, tv, {&part, 1}, {k.data(), n, kHeads * kDim}, {v.data(), n, kHeads * kDim});
    }
    pool_.advance(seq, n);
    return {};
  }

  CpuContext context_{2};
  std::vector<KvLayerConfig> layers_;
  SequencePool pool_;
};

bool is_refused(const auto& result, std::string_view part) {
  if (result) return false;
  EXPECT_EQ(result.error().kind, ErrorKind::usage);
  EXPECT_THAT(result.error().message, HasSubstr(std::string(part)));
  return true;
}

TEST(SequencePool, BytesAreTheFormulasWhileASequenceGrows) {
  Pool pool(mixed_layers(), 4, 2);
  pool.check(0, 0, 0, 0, 0, "empty");
  const SeqId seq = pool->open().or_throw();
  for (int n = 0; n <= 300; n += 5) {
    EXPECT_EQ(pool->length(seq), n);
    pool.check(1, 0, pool.pages(n), 0, 1, "growing");
    pool.append(seq, 1, 5).or_throw();
  }
  pool->close(seq);
  pool.check(0, 0, 0, 0, 0, "closed");
}

TEST(SequencePool, RowsDependOnTextAndPositionOnly) {
  Pool pool(mixed_layers(), 20, 4);
  const SeqId a = pool.open(1, 33), b = pool.open(2, 150);
  const SeqId other = pool->open().or_throw();
  for (const int step : {1, 32, 2, 64, 5}) {
    pool.append(a, 1, 40, step).or_throw();
    pool.append(b, 2, 3, step).or_throw();
    pool.append(other, 3, 11, step).or_throw();
  }
  Pool alone(mixed_layers(), 4, 1);
  EXPECT_EQ(pool.rows(a), alone.rows(alone.open(1, 233)));
}

TEST(SequencePool, AForkSharesPagesUntilSomebodyCodesIntoThem) {
  Pool pool(mixed_layers(), 12, 3);
  const SeqId seq = pool.open(1, 300);
  const std::vector<float> before = pool.rows(seq);
  EXPECT_EQ(pool.pages(300), 3);
  const SeqId fork = pool->fork(seq, 300).or_throw();
  pool.check(2, 0, 3, 3, 2, "forked");
  EXPECT_EQ(pool.rows(fork), before);

  pool.append(fork, 2, 1).or_throw();  // position 300 is coded at once: the last page gets a copy, the full ones stay
  pool.check(2, 0, 4, 2, 2, "fork went on");
  EXPECT_EQ(pool.rows(seq), before);
  pool.append(fork, 2, 200).or_throw();
  pool.append(seq, 1, 100).or_throw();
  // Sides with a window went on coding into the second page.
  pool.check(2, 0, pool.pages(501) + pool.pages(400) - 1, 1, 2, "both went on");
  Pool alone(mixed_layers(), 5, 1);
  const SeqId expected = alone.open(1, 300);
  alone.append(expected, 2, 201).or_throw();
  EXPECT_EQ(pool.rows(fork), alone.rows(expected));
  alone->reset(expected);
  alone.append(expected, 1, 400).or_throw();
  EXPECT_EQ(pool.rows(seq), alone.rows(expected));

  pool->close(seq);
  pool.check(1, 0, pool.pages(501), 0, 1, "first closed");
  EXPECT_TRUE(is_refused(pool->fork(fork, 400), "exact rows"));
  EXPECT_EQ(pool->length(pool->fork(fork, 0).or_throw()), 0);
}

TEST(SequencePool, AnExactTrimIsAsIfNothingHadCome) {
  Pool pool(mixed_layers(), 8, 1), alone(mixed_layers(), 8, 1);
  for (const int n : {65, 97, 128, 129, 224, 300}) {
    for (const int back : {1, 2, 31, 32}) {
      if (n - back < 64) continue;
      const SeqId seq = pool.open(1, n);
      const TrimReport report = pool->trim(seq, n - back, TrimMode::exact).or_throw();
      EXPECT_TRUE(report.exact);
      EXPECT_EQ(report.coded_positions, 0);
      pool.check(1, 0, pool.pages(n - back), 0, 1, "trimmed");
      const SeqId expected = alone.open(1, n - back);
      EXPECT_EQ(pool.rows(seq), alone.rows(expected)) << n << " back " << back;
      pool.append(seq, 2, 140).or_throw();
      alone.append(expected, 2, 140).or_throw();
      EXPECT_EQ(pool.rows(seq), alone.rows(expected)) << n << " back " << back << ", gone on";
      pool->close(seq);
      alone->close(expected);
    }
  }
}

TEST(SequencePool, WithoutAWindowEveryTrimIsExact) {
  Pool pool(plain_layers(), 4, 1), alone(plain_layers(), 4, 1);
  const SeqId seq = pool.open(1, 300), expected = alone.open(1, 3);
  EXPECT_TRUE(pool->trim(seq, 3, TrimMode::exact).or_throw().exact);
  pool.check(1, 0, 1, 0, 1, "far back");
  EXPECT_EQ(pool.rows(seq), alone.rows(expected));
}

/// A step under way may have come further than the tokens of it that stay; pages stay until a trim.
TEST(SequencePool, OfAStepThatWentFurtherTheFirstTokensStay) {
  Pool pool({{side("rotor-3", 64, 0), side("rotor-3", 64, 0), kHeads, kDim}}, 8, 1);
  const SeqId seq = pool.open(1, 200);
  const size_t n_pages = pool->pages(seq).size();
  pool->reserve(seq, 32).or_throw();
  pool->advance(seq, 32, 2);
  EXPECT_EQ(pool->length(seq), 202);
  EXPECT_GT(pool->pages(seq).size(), n_pages) << "steps under way code into them";
  pool->reserve(seq, 30).or_throw();
  pool->advance(seq, 30, 0);
  pool->trim(seq, 202, TrimMode::exact).or_throw();
  EXPECT_EQ(pool->pages(seq).size(), n_pages);
  pool->trim(seq, 200, TrimMode::exact).or_throw();
  pool->reserve(seq, 33).or_throw();
  EXPECT_THROW(pool->advance(seq, 33, 0), Error) << "the ring would have lost rows";
}

TEST(SequencePool, FurtherBackTheWindowReadsAsCodedAndTheReportSaysSo) {
  Pool pool(mixed_layers(), 8, 2);
  const SeqId seq = pool.open(1, 500);
  const std::vector<float> before = pool.rows(seq);
  const PoolReport report = pool->report();
  EXPECT_TRUE(is_refused(pool->trim(seq, 300, TrimMode::exact), "cannot go back to 300 of 500 positions"));
  EXPECT_EQ(pool->length(seq), 500);
  EXPECT_EQ(pool->report().pages_free, report.pages_free);
  EXPECT_EQ(pool.rows(seq), before) << "a refused trim changed rows";

  const TrimReport coded = pool->trim(seq, 300, TrimMode::coded_window).or_throw();
  EXPECT_FALSE(coded.exact);
  // The longest window is 96: at 300 positions rows from 192 on are exact ones, and of those none is left.
  EXPECT_EQ(coded.coded_positions, 300 - 192);
  EXPECT_EQ(pool->length(seq), 300);
  pool.check(1, 0, pool.pages(300), 0, 1, "coded window");
  const std::vector<float> rows = pool.rows(seq);
  for (const float x : rows) ASSERT_TRUE(std::isfinite(x));
  // Rows that had been coded at 300 anyway are the same ones.
  const SeqId exact = pool.open(1, 300);
  const std::vector<float> expected = pool.rows(exact);
  double error = 0, size = 0;
  int64_t equal = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    error += double(rows[i] - expected[i]) * (rows[i] - expected[i]);
    size += double(expected[i]) * expected[i];
    equal += rows[i] == expected[i];
  }
  // Two rotor-3 sides of six read as coded in about a third of their positions: 3 bits leave 3.5 % of the energy.
  EXPECT_GT(error, 0);
  EXPECT_LT(error / size, 0.035);
  EXPECT_GT(double(equal) / double(rows.size()), 1 - 3 * (300 - 192) / (6 * 300.0));
  pool.append(seq, 2, 100).or_throw();
}

TEST(SequencePool, NothingGoesBackBelowACentre) {
  Pool pool(mixed_layers(), 4, 3);
  const SeqId seq = pool.open(1, 80), young = pool.open(2, 63);
  for (const TrimMode mode : {TrimMode::exact, TrimMode::coded_window})
    EXPECT_TRUE(is_refused(pool->trim(seq, 63, mode), "the centre was set at 64 positions"));
  EXPECT_TRUE(is_refused(pool->fork(seq, 20), "the centre was set"));
  EXPECT_TRUE(pool->trim(seq, 64, TrimMode::exact).or_throw().exact);
  EXPECT_TRUE(pool->trim(young, 5, TrimMode::exact).or_throw().exact) << "before calibration";
  EXPECT_TRUE(pool->calibrates(young));
  EXPECT_TRUE(pool->trim(seq, 0, TrimMode::exact).or_throw().exact);
  EXPECT_TRUE(pool->calibrates(seq)) << "an empty sequence has no centre";
  pool.append(seq, 3, 70).or_throw();
  Pool alone(mixed_layers(), 4, 1);
  EXPECT_EQ(pool.rows(seq), alone.rows(alone.open(3, 70)));
}

TEST(SequencePool, ATrimWithoutRoomForItsRowsChangesNothing) {
  Pool pool(mixed_layers(), 4, 2);
  const SeqId seq = pool.open(1, 500);
  const CheckpointId kept = pool->checkpoint(seq).or_throw();
  const std::vector<float> before = pool.rows(seq);
  // All pages are the checkpoint's too and none is free, so the rows of the window have no place.
  EXPECT_TRUE(is_refused(pool->trim(seq, 300, TrimMode::coded_window), "300 positions need 3 pages, 0 are free"));
  EXPECT_EQ(pool->length(seq), 500);
  EXPECT_EQ(pool.rows(seq), before);
  EXPECT_TRUE(is_refused(pool->shift(seq, 4, 100, [](int, KvSide, float*) {}), "pages"));
  EXPECT_EQ(pool->length(seq), 500);
  EXPECT_EQ(pool.rows(seq), before);
  pool->release(kept);
  EXPECT_FALSE(pool->trim(seq, 300, TrimMode::coded_window).or_throw().exact);
}

TEST(SequencePool, ACheckpointOutlivesItsSequenceAndOpensAgain) {
  Pool pool(mixed_layers(), 12, 4);
  const SeqId seq = pool.open(1, 200);
  const std::vector<float> before = pool.rows(seq);
  const CheckpointId checkpoint = pool->checkpoint(seq).or_throw();
  pool.check(1, 1, 2, 2, 2, "checkpoint");
  EXPECT_EQ(pool->report().pages_of_checkpoints, 0);
  pool.append(seq, 1, 300).or_throw();
  pool->close(seq);
  pool.check(0, 1, 2, 0, 1, "only the checkpoint");
  EXPECT_EQ(pool->report().pages_of_checkpoints, 2);
  const SeqId again = pool->open(checkpoint).or_throw(), third = pool->open(checkpoint).or_throw();
  pool.check(2, 1, 2, 2, 3, "opened twice");
  EXPECT_EQ(pool.rows(again), before);
  pool.append(again, 2, 90).or_throw();
  EXPECT_EQ(pool.rows(third), before);
  pool->release(checkpoint);
  Pool alone(mixed_layers(), 6, 1);
  const SeqId expected = alone.open(1, 200);
  alone.append(expected, 2, 90).or_throw();
  EXPECT_EQ(pool.rows(again), alone.rows(expected));
  pool->close(again);
  pool->close(third);
  pool.check(0, 0, 0, 0, 0, "all closed");
}

TEST(SequencePool, RetainedCheckpointsAreFoundAndTheOldestUseIsEvicted) {
  Pool pool(mixed_layers(), 12, 6);
  const auto keep = [&](uint64_t key, int n) {
    const SeqId seq = pool.open(key, n);
    const CheckpointId checkpoint = pool->checkpoint(seq).or_throw();
    pool->retain(checkpoint, key);
    pool->close(seq);
    return checkpoint;
  };
  const CheckpointId one = keep(1, 200), two = keep(2, 100), three = keep(3, 300);
  pool.check(0, 3, 2 + 1 + 3, 0, 3, "three retained");
  EXPECT_EQ(pool->find(1), one);
  EXPECT_EQ(pool->find(3), three);
  EXPECT_EQ(pool->find(4), std::nullopt);
  const PoolReport before = pool->report();
  EXPECT_THAT(pool->retained(), testing::ElementsAre(2, 1, 3)) << "the one found longest ago first";
  EXPECT_TRUE(pool->evict());
  EXPECT_EQ(pool->report().used_bytes, before.used_bytes - before.page_bytes - before.slot_bytes);
  EXPECT_EQ(pool->find(2), std::nullopt);
  EXPECT_EQ(pool->find(1), one);
  EXPECT_TRUE(pool->evict());
  EXPECT_EQ(pool->find(3), std::nullopt);
  EXPECT_TRUE(pool->evict());
  pool.check(0, 0, 0, 0, 0, "all evicted");
  EXPECT_FALSE(pool->evict()) << "nothing is left";
  EXPECT_NE(two, one);

  keep(7, 200);
  const CheckpointId newer = keep(7, 100);
  EXPECT_EQ(pool->find(7), newer);
  pool.check(0, 1, 1, 0, 1, "a key has one checkpoint");
  pool->release(newer);
  EXPECT_EQ(pool->find(7), std::nullopt);
  // Pages that a sequence holds too are not freed by evicting their checkpoint.
  const SeqId seq = pool.open(1, 300);
  pool->retain(pool->checkpoint(seq).or_throw(), 1);
  EXPECT_TRUE(pool->evict());
  pool.check(1, 0, 3, 0, 1, "the sequence stays");
}

TEST(SequencePool, ParkedSequencesComeBackBitForBit) {
  Pool pool(mixed_layers(), 6, 2);
  for (const int n : {0, 1, 40, 63, 64, 65, 200, 333}) {
    const SeqId seq = pool.open(1, n);
    const std::vector<float> before = pool.rows(seq);
    pool->park(seq);
    pool->park(seq);
    EXPECT_TRUE(pool->is_parked(seq));
    EXPECT_EQ(pool->length(seq), n);
    pool.check(1, 0, 0, 0, 0, "parked");
    const SeqId other = pool.open(2, 150);  // takes the slot and the pages
    pool->unpark(seq).or_throw();
    EXPECT_FALSE(pool->is_parked(seq));
    pool.check(2, 0, pool.pages(n) + pool.pages(150), 0, 2, "unparked");
    EXPECT_EQ(pool.rows(seq), before) << n;
    pool->close(other);
    pool.append(seq, 1, 150).or_throw();
    Pool alone(mixed_layers(), 6, 1);
    EXPECT_EQ(pool.rows(seq), alone.rows(alone.open(1, n + 150))) << n;
    pool->close(seq);
  }
}

TEST(SequencePool, UnparkingWithoutRoomLeavesTheSequenceParked) {
  Pool pool(mixed_layers(), 4, 2);
  const SeqId seq = pool.open(1, 300);
  const std::vector<float> before = pool.rows(seq);
  pool->park(seq);
  const SeqId other = pool.open(2, 300);
  EXPECT_TRUE(is_refused(pool->unpark(seq), "300 parked positions need 3 pages, 1 are free"));
  EXPECT_TRUE(pool->is_parked(seq));
  pool->trim(other, 0, TrimMode::exact).or_throw();
  const SeqId third = pool->open().or_throw();
  EXPECT_TRUE(is_refused(pool->unpark(seq), "all 2 slots of the pool are taken"));
  EXPECT_TRUE(pool->is_parked(seq));
  pool->close(third);
  pool->unpark(seq).or_throw();
  EXPECT_EQ(pool.rows(seq), before);
  pool->park(seq);
  pool->close(seq);
  pool->close(other);
  pool.check(0, 0, 0, 0, 0, "a parked sequence can be closed");
}

TEST(SequencePool, SavedSequencesLoadIntoAnyPoolOfTheSameCaches) {
  Pool pool(mixed_layers(), 6, 2), elsewhere(mixed_layers(), 5, 2);
  const SeqId seq = pool.open(1, 300);
  const SequenceImage image = pool->save(seq);
  EXPECT_EQ(image.n, 300);
  EXPECT_TRUE(image.calibrated);
  const SeqId loaded = elsewhere->load(image).or_throw();
  EXPECT_EQ(elsewhere.rows(loaded), pool.rows(seq));
  pool.append(seq, 1, 130).or_throw();
  elsewhere.append(loaded, 1, 130).or_throw();
  EXPECT_EQ(elsewhere.rows(loaded), pool.rows(seq));
  pool->park(seq);
  EXPECT_EQ(pool->save(seq).n, 430) << "a parked sequence can be saved";
  // Without room nothing is opened.
  EXPECT_TRUE(is_refused(elsewhere->load(image), "need 3 pages, 1 are free"));
  elsewhere.check(1, 0, 4, 0, 1, "refused load");
}

TEST(SequencePool, ImagesOfOtherCachesAreRefusedByTheSideThatDiffers) {
  Pool pool(mixed_layers(), 6, 2), plain(plain_layers(), 6, 2);
  const SequenceImage image = pool->save(pool.open(1, 100));
  EXPECT_THAT(plain->load(image).error().message, HasSubstr("6 sides, this pool has 2"));
  SequenceImage short_one = image;
  short_one.sides[3].bytes.pop_back();
  EXPECT_THAT(pool->load(short_one).error().message, HasSubstr("V of layer 1"));
  SequenceImage not_calibrated = image;
  not_calibrated.calibrated = false;
  EXPECT_THAT(pool->load(not_calibrated).error().message, HasSubstr("calibrated"));
  SequenceImage no_rows = image;
  no_rows.sides[2].ring_first = 90;  // the window of K begins below
  EXPECT_THAT(pool->load(no_rows).error().message, HasSubstr("K of layer 1"));
  pool.check(1, 0, pool.pages(100), 0, 1, "after refusals");
}

TEST(SequencePool, AShiftMovesRowsDownAndTurnsOnlyK) {
  Pool pool(plain_layers(), 6, 2);
  const SeqId seq = pool.open(1, 200);
  const std::vector<float> before = pool.rows(seq);
  int turned = 0;
  const TrimReport report = pool->shift(seq, 4, 60,
                                        [&](int layer, KvSide side, float* row) {
                                          EXPECT_EQ(layer, 0);
                                          EXPECT_EQ(side, KvSide::k);
                                          ++turned;
                                          for (int d = 0; d < kDim; ++d) row[d] = -row[d];
                                        })
                                .or_throw();
  EXPECT_FALSE(report.exact);
  EXPECT_EQ(turned, kHeads * (200 - 64));
  EXPECT_EQ(pool->length(seq), 140);
  pool.check(1, 0, 2, 0, 1, "shifted");
  const std::vector<float> after = pool.rows(seq);
  const auto at = [](const std::vector<float>& rows, int n, KvSide side, int head, int position) {
    return std::span(rows).subspan(size_t(((side == KvSide::k ? 0 : kHeads) + head) * n + position) * kDim, kDim);
  };
  for (int head = 0; head < kHeads; ++head)
    for (int p = 0; p < 140; ++p) {
      const int from = p < 4 ? p : p + 60;
      const auto k = at(after, 140, KvSide::k, head, p), k_old = at(before, 200, KvSide::k, head, from);
      const auto v = at(after, 140, KvSide::v, head, p), v_old = at(before, 200, KvSide::v, head, from);
      for (int d = 0; d < kDim; ++d) {
        ASSERT_EQ(k[size_t(d)], p < 4 ? k_old[size_t(d)] : -k_old[size_t(d)]) << p;
        ASSERT_EQ(v[size_t(d)], v_old[size_t(d)]) << p;  // moved as coded bytes
      }
    }
  pool->shift(seq, 0, 140, [](int, KvSide, float*) {}).or_throw();
  EXPECT_EQ(pool->length(seq), 0);
  pool.check(1, 0, 0, 0, 1, "all removed");
}

TEST(SequencePool, AShiftLeavesSharersAlone) {
  Pool pool(mixed_layers(), 8, 3);
  const SeqId seq = pool.open(1, 300), fork = pool->fork(seq, 300).or_throw();
  const std::vector<float> before = pool.rows(seq);
  pool->shift(fork, 4, 100, [](int, KvSide, float*) {}).or_throw();
  EXPECT_EQ(pool->length(fork), 200);
  pool.check(2, 0, 3 + pool.pages(200), 0, 2, "the fork has pages of its own");
  EXPECT_EQ(pool.rows(seq), before);
  // The same again gives the same rows, and both go on alike.
  const SeqId twin = pool->fork(seq, 300).or_throw();
  pool->shift(twin, 4, 100, [](int, KvSide, float*) {}).or_throw();
  EXPECT_EQ(pool.rows(twin), pool.rows(fork));
  for (const SeqId s : {fork, twin}) pool.append(s, 2, 30).or_throw();
  EXPECT_EQ(pool.rows(twin), pool.rows(fork));
  for (const float x : pool.rows(fork)) ASSERT_TRUE(std::isfinite(x));
}

TEST(SequencePool, ReserveSaysWhatIsMissingAndChangesNothing) {
  Pool pool(mixed_layers(), 3, 3);
  const SeqId seq = pool.open(1, 300);
  EXPECT_TRUE(is_refused(pool->reserve(seq, 200), "200 more positions need 1 pages, 0 are free"));
  pool.check(1, 0, 3, 0, 1, "refused");
  pool->reserve(seq, 384 - 300).or_throw();  // up to the last position of its pages
  EXPECT_TRUE(is_refused(pool->reserve(seq, 384 - 300 + 1), "need 1 pages, 0 are free"));

  // The page that the next token goes to is shared: it needs a copy.
  const SeqId fork = pool->fork(seq, 300).or_throw();
  const std::vector<float> before = pool.rows(seq);
  EXPECT_TRUE(is_refused(pool->reserve(fork, 1), "1 more positions need 1 pages, 0 are free"));
  pool.check(2, 0, 3, 3, 2, "nothing was copied");
  EXPECT_EQ(pool.rows(seq), before);
  pool->close(fork);
  pool->reserve(seq, 1).or_throw();
  // Too much for any pool.
  EXPECT_TRUE(is_refused(pool->reserve(seq, 100000), "pages, 0 are free"));
}

TEST(SequencePool, OutOfSlotsIsAnAnswerEverywhere) {
  Pool pool(mixed_layers(), 6, 2);
  const SeqId seq = pool.open(1, 100);
  const CheckpointId checkpoint = pool->checkpoint(seq).or_throw();
  const SequenceImage image = pool->save(seq);
  constexpr std::string_view kFull = "all 2 slots of the pool are taken";
  EXPECT_TRUE(is_refused(pool->open(), kFull));
  EXPECT_TRUE(is_refused(pool->open(checkpoint), kFull));
  EXPECT_TRUE(is_refused(pool->fork(seq, 100), kFull));
  EXPECT_TRUE(is_refused(pool->checkpoint(seq), kFull));
  EXPECT_TRUE(is_refused(pool->load(image), kFull));
  pool.check(1, 1, 1, 1, 2, "nothing was opened");
  pool->release(checkpoint);
  pool->close(pool->open().or_throw());
  pool.check(1, 0, 1, 0, 1, "a slot came back");
}

TEST(SequencePool, NamesOfClosedSequencesAreNotTaken) {
  Pool pool(plain_layers(), 2, 2);
  const SeqId seq = pool->open().or_throw();
  const CheckpointId checkpoint = pool->checkpoint(seq).or_throw();
  pool->close(seq);
  pool->release(checkpoint);
  EXPECT_ANY_THROW(pool->length(seq));
  EXPECT_ANY_THROW(pool->close(seq));
  EXPECT_ANY_THROW(pool->release(checkpoint));
  EXPECT_ANY_THROW(pool->length(SeqId(-1)));
}

TEST(SequencePool, RandomRowsFillPagesAndGoAgain) {
  Pool pool(mixed_layers(), 4, 2);
  const SeqId a = pool->open().or_throw();
  pool->fill(a, 200, 7).or_throw();
  EXPECT_EQ(pool->length(a), 200);
  pool.check(1, 0, pool.pages(200), 0, 1, "filled");
  const std::vector<float> rows = pool.rows(a);
  for (const float x : rows) ASSERT_TRUE(std::isfinite(x));
  pool->fill(a, 200, 7).or_throw();
  EXPECT_EQ(pool.rows(a), rows);
  EXPECT_TRUE(is_refused(pool->fill(a, 1000, 7), "1000 more positions need 8 pages, 4 are free"));
  EXPECT_EQ(pool->length(a), 0);
}

TEST(SequencePool, RandomRowsOfSlidingLayersFillTheirWindow) {
  for (const auto& layers : {sliding_layers(), only_sliding_layers()}) {
    Pool pool(layers, {16, 3}, 2);
    const SeqId seq = pool->open().or_throw();
    if (layers.size() > 1) {
      EXPECT_TRUE(is_refused(pool->fill(seq, 4000, 7), "4000 more positions need 32 pages, 16 are free"));
      pool.check_grown({0}, "refused");
    }
    for (const int n : {100, 1300, 1301}) {
      pool->fill(seq, n, 7).or_throw();
      pool.check_grown({n}, "filled");
      for (const float x : pool.rows(seq)) ASSERT_TRUE(std::isfinite(x));
    }
    pool.append(seq, 1, 200).or_throw();
    pool.check_grown({1501}, "gone on");
  }
}

TEST(SequencePool, SlidingLayersHoldTheirWindowHoweverLongTheText) {
  for (const auto& layers : {sliding_layers(), only_sliding_layers()}) {
    constexpr int kLength = 1500, kStep = 40;
    const PageNumbers n_pages = pool_pages(layers, kLength, 2, 2 * kStep);
    EXPECT_LT(n_pages.sliding, n_pages.full / 2);
    Pool pool(layers, n_pages, 2);
    const SeqId a = pool->open().or_throw(), b = pool->open().or_throw();
    int most = 0;
    for (int n = 0; n < kLength; n += kStep) {
      pool.append(a, 1, kStep, kStep).or_throw();
      pool.append(b, 2, kStep / 2, kStep).or_throw();
      pool.check_grown({n + kStep, (n + kStep) / 2}, "growing");
      most = std::max(most, int(pool->pages(a, PageClass::sliding).size()));
    }
    EXPECT_LE(most, most_sliding_pages(layers));
    // A window of 150 and 32 positions back: on pages of 128 there are three at most.
    EXPECT_LE(most, 3);
    Pool alone(layers, n_pages.full, 1);
    const SeqId at_once = alone->open().or_throw();
    alone.append(at_once, 1, pool->length(a), kLength + kStep).or_throw();  // nothing is given back before the end
    EXPECT_EQ(pool.rows(a), alone.rows(at_once));
    pool->close(a);
    pool->close(b);
    pool.check_grown({}, "closed");
  }
}

TEST(SequencePool, SlidingLayersGoBackByTheSpareRowsAndNoFurther) {
  for (const auto& layers : {sliding_layers(), only_sliding_layers()}) {
    Pool pool(layers, 16, 2), alone(layers, 16, 1);
    for (const int n : {180, 290, 320, 321, 416, 800})
      for (const int back : {1, 16, 31, 32}) {
        const SeqId seq = pool.open(1, n), expected = alone.open(1, n - back);
        EXPECT_TRUE(pool->trim(seq, n - back, TrimMode::exact).or_throw().exact);
        EXPECT_EQ(pool.rows(seq), alone.rows(expected)) << n << " back " << back;
        pool.append(seq, 2, 300).or_throw();
        alone.append(expected, 2, 300).or_throw();
        EXPECT_EQ(pool.rows(seq), alone.rows(expected)) << n << " back " << back << ", gone on";
        pool->close(seq);
        alone->close(expected);
      }
    const SeqId seq = pool.open(1, 900);
    const std::vector<float> before = pool.rows(seq);
    for (const TrimMode mode : {TrimMode::exact, TrimMode::coded_window})
      EXPECT_TRUE(is_refused(pool->trim(seq, 400, mode), "sliding layers gave back"));
    EXPECT_TRUE(is_refused(pool->fork(seq, 400), "sliding layers gave back"));
    EXPECT_EQ(pool.rows(seq), before);
    pool.check_grown({900}, "refused");
    EXPECT_TRUE(pool->trim(seq, 0, TrimMode::exact).or_throw().exact);
    pool.check_grown({0}, "empty");
  }
}

TEST(SequencePool, CheckpointsForksAndImagesHoldTheWindowOfTheirLength) {
  for (const auto& layers : {sliding_layers(), only_sliding_layers()}) {
    Pool pool(layers, 24, 4), alone(layers, 16, 2);
    const SeqId seq = pool.open(1, 500);
    const std::vector<float> at_500 = pool.rows(seq);
    const CheckpointId checkpoint = pool->checkpoint(seq).or_throw();
    const SeqId fork = pool->fork(seq, 480).or_throw();
    pool.append(seq, 1, 600).or_throw();  // all that the checkpoint sees is behind the window
    pool.append(fork, 2, 600).or_throw();
    const SeqId expected = alone.open(1, 480);
    alone.append(expected, 2, 600).or_throw();
    EXPECT_EQ(pool.rows(fork), alone.rows(expected));
    pool->close(fork);
    alone->close(expected);

    const SeqId again = pool->open(checkpoint).or_throw();
    EXPECT_EQ(pool.rows(again), at_500);
    const SequenceImage image = pool->save(again);
    const SeqId loaded = alone->load(image).or_throw();
    EXPECT_EQ(alone.rows(loaded), at_500);
    alone.check_grown({500}, "loaded");
    pool->park(again);
    pool->unpark(again).or_throw();
    EXPECT_TRUE(pool->trim(again, 468, TrimMode::exact).or_throw().exact) << "parked with its spare rows";
    pool->close(again);
    pool->restore(seq, checkpoint);
    EXPECT_EQ(pool.rows(seq), at_500);
    pool.append(seq, 1, 100).or_throw();
    alone.append(loaded, 1, 100).or_throw();
    EXPECT_EQ(pool.rows(seq), alone.rows(loaded));
    pool->release(checkpoint);
    pool.check_grown({600}, "released");

    // An image may have all rows, as those of versions that gave none back: the pool takes what it would hold.
    std::vector<KvLayerConfig> full = layers;
    for (KvLayerConfig& layer : full) layer.attention_window = 0;
    Pool whole(full, 16, 1);
    const SeqId old = pool->load(whole->save(whole.open(1, 500))).or_throw();
    EXPECT_EQ(pool.rows(old), at_500);
    pool.check_grown({600, 500}, "an image of all rows");
    SequenceImage wrong = image;
    wrong.sides[0].coded_first += 256;
    EXPECT_THAT(pool->load(wrong).error().message, HasSubstr("coded_first"));
    wrong = image;
    wrong.sides[1].coded_first = 0;
    EXPECT_THAT(pool->load(wrong).error().message, HasSubstr("another sliding layer has"));
  }
}

TEST(SequencePool, AShiftOfSlidingLayersKeepsWhatTheyHold) {
  Pool pool(only_sliding_layers(), 16, 1);
  const SeqId seq = pool.open(1, 600);
  const std::vector<float> before = pool.rows(seq);
  EXPECT_TRUE(is_refused(pool->shift(seq, 4, 550, [](int, KvSide, float*) {}), "gave back"));
  EXPECT_EQ(pool.rows(seq), before);
  pool->shift(seq, 4, 205, [](int, KvSide, float*) {}).or_throw();
  EXPECT_EQ(pool->length(seq), 395);
  EXPECT_EQ(pool.rows(seq), before) << "f16 rows that are not turned, q8_0 codes as they are";
  EXPECT_EQ(ssize(pool->pages(seq)), pool.sliding_pages(395));
  pool.append(seq, 2, 300).or_throw();
  pool.check_grown({695}, "gone on");
}

/// Sequences of 4,000 tokens that a pool takes until it refuses one, each with a checkpoint.
int sequences_to_the_brim(const std::vector<KvLayerConfig>& layers, int n_pages, int n_slots) {
  SequencePool pool(memory_of(layers, n_pages, n_slots), SequencePool::HostTwin());
  for (int n = 0;; ++n) {
    const Result<SeqId> seq = pool.open();
    if (!seq || !pool.fill(*seq, 4000, uint64_t(n)) || !pool.checkpoint(*seq)) return n;
  }
}

/// What a compressed cache is for: with the bytes of eight f16 sequences rotor-3 holds 4.5 times as many by pages, and
/// four times as many with rings, sinks and a checkpoint of each counted.
TEST(SequencePool, ABudgetHoldsFourTimesTheSequencesOfF16) {
  const auto layers_of = [](const char* format) {
    KvSideConfig of =
        side(format, find_kv_format(format).or_throw()->policy.window, find_kv_format(format).or_throw()->policy.sinks);
    return std::vector<KvLayerConfig>{{of, of, 8, 128}};
  };
  const auto f16 = layers_of("f16"), rotor = layers_of("rotor-3");
  const auto page_bytes = [](const auto& layers) { return memory_of(layers, 1, 1)->page_bytes(); };
  const auto slot_bytes = [](const auto& layers) { return memory_of(layers, 1, 1)->slot_bytes(); };
  const int pages = (4000 + 127) / 128;  // of a sequence

  const int64_t by_pages = 8 * pages * page_bytes(f16);
  const auto held_by_pages = [&](const auto& layers) {
    const int n_pages = int(by_pages / page_bytes(layers));
    return sequences_to_the_brim(layers, n_pages, 2 * (n_pages / pages + 1));
  };
  const int f16_by_pages = held_by_pages(f16), rotor_by_pages = held_by_pages(rotor);
  EXPECT_EQ(f16_by_pages, 8);
  EXPECT_GE(rotor_by_pages, 4.5 * f16_by_pages);

  const int64_t all = 8 * (pages * page_bytes(f16) + 2 * slot_bytes(f16));
  const auto held = [&](const auto& layers) {
    const int n = int(all / (pages * page_bytes(layers) + 2 * slot_bytes(layers)));
    EXPECT_LE(n * (pages * memory_of(layers, 1, 1)->page_bytes() + 2 * slot_bytes(layers)), all);
    return sequences_to_the_brim(layers, n * pages, 2 * n);
  };
  const int f16_held = held(f16), rotor_held = held(rotor);
  EXPECT_EQ(f16_held, 8);
  EXPECT_GE(rotor_held, 4 * f16_held);
  RecordProperty("sequences", fmt::format("by pages {} and {}, by all bytes {} and {}", f16_by_pages, rotor_by_pages,
                                          f16_held, rotor_held));
}

}  // namespace
}  // namespace ridge
