// Whatever happens to sequences in a pool, and whoever shares their steps: each one's logits are the bits that the same
// tokens give alone, with other cuts of the prompt and another number of threads; the pool's bytes are the formula's at
// every step, and none is left at the end.
//
// RIDGE_RAGGED_STEPS and RIDGE_RAGGED_SEQUENCES make it longer; 2000 and 17 are the long form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"
#include "format/list.h"

namespace ridge {
namespace {

constexpr int kMaxLength = 420;  // tokens of a sequence
constexpr PageClass kClasses[] = {PageClass::full, PageClass::sliding};

int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

/// What happened to a sequence since it was empty.
struct Event {
  enum class Kind { token, trim_exact, trim_coded, shift } kind;
  int a = 0, b = 0;  // the token; the length; first and count
};

/// A sequence as the test remembers it. `rows[i]` are the logits after token i where they were asked for.
struct Timeline {
  std::vector<Event> events;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> rows;
  int most = 0;           // longest since exact rows were last replaced
  int replaced_at = 0;    // its length then
  int held_from = 0;      // sliding layers hold rows from this position on
  bool is_lossy = false;  // shifted, or cut further back than exact rows reach: no text gives these rows

  int n() const { return int(tokens.size()); }
  void add(int32_t token) {
    events.push_back({Event::Kind::token, token});
    tokens.push_back(token);
    rows.emplace_back();
    most = std::max(most, n());
  }
  void cut(int first, int count) {
    tokens.erase(tokens.begin() + first, tokens.begin() + first + count);
    rows.erase(rows.begin() + first, rows.begin() + first + count);
  }
  void trim(int length, bool exact) {
    cut(length, n() - length);
    if (length == 0) {
      *this = {};
      return;
    }
    events.push_back({exact ? Event::Kind::trim_exact : Event::Kind::trim_coded, length});
    if (!exact) lose_rows();
  }
  void shift(int at, int count) {
    cut(at, count);
    if (n() == 0) {
      *this = {};
      return;
    }
    events.push_back({Event::Kind::shift, at, count});
    if (held_from > at) held_from = std::max(at, held_from - count);
    lose_rows();
  }

 private:
  void lose_rows() {
    is_lossy = true;
    most = replaced_at = n();
  }
};

struct RaggedCase {
  std::string model;
  LoadOptions crowd, alone;     // engines of the ragged steps and of the reference
  std::vector<std::string> kv;  // of each layer, as typed in lists
  int n_sequences, n_steps;
  int prompt = 150;             // the longest piece of a text in a step
  bool one_token_each = false;  // prompts are cut into single tokens on both sides
};

SessionOptions cache_of(const RaggedCase& c) {
  SessionOptions options;
  for (int layer = 0; layer < ssize(c.kv); ++layer) {
    const KvChoice choice = parse_kv_choice(c.kv[size_t(layer)]).or_throw();
    options.kv_layers.push_back({layer, layer, choice.k, choice.v});
  }
  return options;
}

/// Loaded once: cases differ by their caches.
const Model& model_of(const std::string& path, const LoadOptions& options) {
  static std::map<std::string, Model> known;
  const std::string key = fmt::format("{} {} {}", path, options.n_threads, options.isa);
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, Model::load(path, options)).first->second;
}

class Ragged {
 public:
  Ragged(const RaggedCase& c, uint64_t seed)
      : case_(c),
        rng_(seed),
        crowd_model_(model_of(c.model, c.crowd)),
        alone_model_(model_of(c.model, c.alone)),
        layers_(layer_configs(cache_of(c), crowd().plan())),
        calibrates_(is_calibrating()),
        has_states_(std::ranges::any_of(layers_, [](const KvLayerConfig& l) { return l.state_values > 0; })),
        pool_(crowd().open_pool(layers_, 2 * c.n_sequences + 1, c.n_sequences + 3)),
        outputs_(crowd().backend().make_outputs()),
        alone_pool_(alone().open_pool(layers_, pages(kMaxLength + 1) + 1, 1)),
        alone_outputs_(alone().backend().make_outputs()) {}

  void run() {
    for (step_ = 0; step_ < case_.n_steps && !testing::Test::HasFailure(); ++step_) {
      act();
      check_bytes();
      advance();
      check_bytes();
    }
    while (!sequences_.empty() && !testing::Test::HasFailure()) close(sequences_.begin()->first);
    while (!checkpoints_.empty()) release(checkpoints_.begin()->first);
    check_bytes();
    const PoolReport report = pool_->report();
    EXPECT_EQ(report.pages_free, report.n_pages);
    if (report.sliding) {
      EXPECT_EQ(report.sliding->pages_free, report.sliding->n_pages);
    }
    EXPECT_EQ(pool_->report().slots_free, pool_->report().n_slots);
    EXPECT_EQ(pool_->report().used_bytes, 0);
    EXPECT_GT(n_verified_, 0);
  }

 private:
  struct Kept {
    Timeline timeline;
    std::vector<int32_t> pages[kPageClasses];
    std::optional<uint64_t> key;
  };

  Engine& crowd() { return crowd_model_.engine(); }
  Engine& alone() { return alone_model_.engine(); }
  int below(int n) { return int(rng_.next() % uint64_t(n)); }
  bool chance(double p) { return rng_.uniform() < p; }
  SeqId any() { return std::next(sequences_.begin(), below(int(sequences_.size())))->first; }
  int32_t any_token() { return int32_t(below(crowd().plan().vocab_size)); }

  /// One thing that changes sequences.
  void act() {
    if (sequences_.empty() || (ssize(sequences_) < case_.n_sequences && chance(0.3))) {
      if (const auto seq = pool_->open()) sequences_[*seq] = {};
      else evict();
      return;
    }
    const SeqId seq = any();
    if (pool_->is_parked(seq)) {
      if (const Status status = pool_->unpark(seq); !status) evict();
      return;
    }
    const int n = pool_->length(seq);
    switch (below(10)) {
      case 0: fork(seq, chance(0.5) ? n : n - below(std::min(n, 40) + 1)); break;
      case 1: trim(seq, n - below(std::min(n, 33) + 1), TrimMode::exact); break;
      case 2: trim(seq, below(n + 1), TrimMode::exact); break;
      case 3: trim(seq, below(n + 1), TrimMode::coded_window); break;
      case 4: pool_->park(seq); break;
      case 5: checkpoint(seq); break;
      case 6: open_checkpoint(); break;
      case 7: load(seq); break;
      case 8: shift(seq); break;
      case 9: chance(0.5) ? close(seq) : find_or_evict(); break;
    }
  }

  void fork(SeqId seq, int n) {
    if (ssize(sequences_) >= case_.n_sequences) return;
    const Timeline& from = sequences_[seq];
    const auto made = pool_->fork(seq, n);
    if (!made) return expect_refusal(made.error(), !must_be_exact(from, n));
    sequences_[*made] = from;
    if (n < from.n()) sequences_[*made].trim(n, true);
  }
  /// Whether rows for going back to n positions are held by the pool's promise.
  bool must_be_exact(const Timeline& t, int n) const {
    if (n == 0 || n == t.n()) return true;
    if (has_states_) return false;
    if (calibrates_ && t.n() >= 64 && n < 64) return false;
    return n >= std::max(t.most - kSpareRows, t.replaced_at);
  }
  void trim(SeqId seq, int n, TrimMode mode) {
    Timeline& t = sequences_[seq];
    if (t.n() - n > kSpareRows && chance(0.5)) verify(seq);
    const PoolReport before = pool_->report();
    const auto report = pool_->trim(seq, n, mode);
    if (!report) {
      EXPECT_EQ(pool_->length(seq), t.n());
      EXPECT_EQ(pool_->report().pages_free, before.pages_free);
      return expect_refusal(report.error(), !must_be_exact(t, n));
    }
    EXPECT_TRUE(report->exact || (mode == TrimMode::coded_window && !must_be_exact(t, n)));
    EXPECT_TRUE(!has_states_ || n == 0 || n == t.n());
    EXPECT_EQ(report->coded_positions > 0, !report->exact);
    t.trim(n, report->exact);
  }
  void shift(SeqId seq) {
    Timeline& t = sequences_[seq];
    if (t.n() < 8 || chance(0.5)) return;
    const int first = below(8), count = 1 + below(t.n() - first);
    if (calibrates_ && t.n() >= 64 && t.n() - count < 64) return;  // a centre stays, and nothing may come below it
    const auto report = pool_->shift(seq, first, count, turn(crowd(), count));
    if (!report) return expect_refusal(report.error(), true);
    EXPECT_TRUE(!has_states_ || count == t.n());
    t.shift(first, count);
  }
  static TurnRow turn(Engine& engine, int count) {
    return [&engine, count](int layer, KvSide side, float* row) { engine.turn_row(layer, side, 0, -count, row); };
  }
  void checkpoint(SeqId seq) {
    const auto made = pool_->checkpoint(seq);
    if (!made) return evict();
    Kept& kept = checkpoints_[*made] = {.timeline = sequences_[seq], .pages = {}, .key = {}};
    for (const PageClass of : kClasses) {
      const auto pages = pool_->pages(seq, of);
      kept.pages[size_t(of)].assign(pages.begin(), pages.end());
    }
    if (!chance(0.7)) return;
    kept.key = uint64_t(below(3));
    std::erase_if(checkpoints_, [&](const auto& c) { return c.first != *made && c.second.key == kept.key; });
    pool_->retain(*made, *kept.key);
  }
  void open_checkpoint() {
    if (checkpoints_.empty() || ssize(sequences_) >= case_.n_sequences) return;
    const auto& [id, kept] = *std::next(checkpoints_.begin(), below(int(checkpoints_.size())));
    if (const auto made = pool_->open(id)) sequences_[*made] = kept.timeline;
    else evict();
  }
  void find_or_evict() {
    const uint64_t key = uint64_t(below(3));
    const auto expected = std::ranges::find_if(checkpoints_, [&](const auto& c) { return c.second.key == key; });
    const auto found = pool_->find(key);
    ASSERT_EQ(found.has_value(), expected != checkpoints_.end());
    if (found) {
      ASSERT_EQ(*found, expected->first);
    }
    if (chance(0.3)) evict();
  }
  void load(SeqId seq) {
    if (ssize(sequences_) >= case_.n_sequences) return;
    const SequenceImage image = pool_->save(seq);
    const auto made = pool_->load(image);
    if (!made) return evict();
    sequences_[*made] = sequences_[seq];
  }
  /// Only some things may be refused, and only for want of room or of exact rows.
  void expect_refusal(const Failure& failure, bool for_rows) {
    const bool room = failure.message.find("pages, ") != std::string::npos ||
                      failure.message.find("slots of the pool") != std::string::npos;
    EXPECT_TRUE(room || for_rows) << failure.message;
    if (room) evict();
  }
  /// Somebody gives pages and a slot back.
  void evict() {
    const PoolReport before = pool_->report();
    const bool evicted = pool_->evict();
    std::erase_if(checkpoints_, [&](const auto& c) { return c.second.key && !pool_->find(*c.second.key); });
    const PoolReport after = pool_->report();
    EXPECT_EQ(after.slots_free - before.slots_free, int(evicted));
    EXPECT_EQ(before.checkpoints - after.checkpoints, int(evicted));
    if (evicted) return;
    if (!checkpoints_.empty()) return release(checkpoints_.begin()->first);
    if (ssize(sequences_) > 1) close(any());
  }
  void release(CheckpointId id) {
    pool_->release(id);
    checkpoints_.erase(id);
  }
  void close(SeqId seq) {
    verify(seq);
    pool_->close(seq);
    sequences_.erase(seq);
  }

  /// A ragged step: some sequences, each with a token, a few, or a prompt.
  void advance() {
    std::vector<SeqTokens> step;
    std::vector<int32_t> tokens;
    std::vector<SeqId> all;
    for (const auto& [seq, timeline] : sequences_) all.push_back(seq);
    for (const SeqId seq : all) {
      const Timeline& timeline = sequences_[seq];
      if (pool_->is_parked(seq) || chance(0.3)) continue;
      if (timeline.n() >= kMaxLength || ssize(timeline.events) > 8 * kMaxLength) {
        close(seq);
        continue;
      }
      const double size = rng_.uniform();
      const int most = case_.one_token_each || size < 0.4 ? 1 : size < 0.7 ? 16 : case_.prompt;
      const int n = 1 + below(std::min(most, kMaxLength - timeline.n()));
      if (const Status room = pool_->reserve(seq, n); !room) {
        EXPECT_THAT(room.error().message, testing::HasSubstr("pages, "));
        continue;
      }
      step.push_back({seq, n});
    }
    if (step.empty()) return evict();
    // The order of sequences in a step is any.
    for (size_t i = step.size(); i > 1; --i) std::swap(step[i - 1], step[size_t(below(int(i)))]);
    for (const SeqTokens& of : step)
      for (int i = 0; i < of.n_tokens; ++i) tokens.push_back(any_token());
    const LogitRows rows = chance(0.4) ? LogitRows::all : chance(0.8) ? LogitRows::last : LogitRows::none;
    crowd().backend().run({.tokens = tokens, .seqs = step, .logits = rows}, *pool_, *outputs_);
    const View2<const float> logits = outputs_->logits();
    ASSERT_EQ(logits.rows, rows == LogitRows::all ? ssize(tokens) : rows == LogitRows::last ? ssize(step) : 0);
    size_t at = 0;
    int64_t row = 0;
    for (const SeqTokens& of : step) {
      Timeline& timeline = sequences_[of.seq];
      for (int i = 0; i < of.n_tokens; ++i) {
        timeline.add(tokens[at++]);
        if (rows == LogitRows::all || (rows == LogitRows::last && i + 1 == of.n_tokens)) {
          const auto values = logits.row(row++);
          timeline.rows.back().assign(values.begin(), values.end());
        }
      }
      ASSERT_EQ(pool_->length(of.seq), timeline.n());
    }
  }
  /// The sequence's logits are those of its tokens alone.
  void verify(SeqId seq) {
    const Timeline& t = sequences_[seq];
    std::vector<std::vector<float>> rows;
    const SeqId reference = alone_pool_->open().or_throw();
    if (t.is_lossy) {
      replay(reference, t, rows);
    } else {
      feed(reference, t.tokens, rows);
    }
    alone_pool_->close(reference);
    ASSERT_EQ(rows.size(), t.rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (t.rows[i].empty()) continue;
      ++n_verified_;
      ASSERT_EQ(t.rows[i], rows[i]) << "token " << i << " of " << t.n() << (t.is_lossy ? ", lossy" : "") << ", step "
                                    << step_;
    }
  }
  void replay(SeqId reference, const Timeline& t, std::vector<std::vector<float>>& rows) {
    std::vector<int32_t> tokens;
    const auto feed_them = [&] {
      feed(reference, tokens, rows);
      tokens.clear();
    };
    for (const Event& e : t.events) {
      if (e.kind == Event::Kind::token) {
        tokens.push_back(e.a);
        continue;
      }
      feed_them();
      if (e.kind == Event::Kind::shift) {
        alone_pool_->shift(reference, e.a, e.b, turn(alone(), e.b)).or_throw();
        rows.erase(rows.begin() + e.a, rows.begin() + e.a + e.b);
        continue;
      }
      const bool exact = e.kind == Event::Kind::trim_exact;
      const auto mode = exact ? TrimMode::exact : TrimMode::coded_window;
      EXPECT_EQ(alone_pool_->trim(reference, e.a, mode).or_throw().exact, exact);
      rows.resize(size_t(e.a));
    }
    feed_them();
  }
  /// Appends tokens in random cuts, with all logits.
  void feed(SeqId reference, std::span<const int32_t> tokens, std::vector<std::vector<float>>& rows) {
    const int most = case_.one_token_each ? 1 : chance(0.3) ? kMaxLength : chance(0.5) ? 40 : 4;
    while (!tokens.empty()) {
      const SeqTokens step{reference, std::min(1 + below(most), int(tokens.size()))};
      alone_pool_->reserve(reference, step.n_tokens).or_throw();
      alone().backend().run(
          {.tokens = tokens.first(size_t(step.n_tokens)), .seqs = {&step, 1}, .logits = LogitRows::all}, *alone_pool_,
          *alone_outputs_);
      const View2<const float> logits = alone_outputs_->logits();
      for (int64_t i = 0; i < logits.rows; ++i) rows.emplace_back(logits.row(i).begin(), logits.row(i).end());
      tokens = tokens.subspan(size_t(step.n_tokens));
    }
  }

  bool is_calibrating() const {
    return std::ranges::any_of(layers_, [](const KvLayerConfig& layer) {
      return layer.k.policy.centre || layer.k.format->head_scale || layer.v.policy.centre || layer.v.format->head_scale;
    });
  }
  /// Calls visit(layer, side) for every side.
  void for_each_side(const auto& visit) const {
    for (const KvLayerConfig& layer : layers_)
      for (const KvSide side : kKvSides) visit(layer, layer.side(side));
  }
  static PageClass class_of(const KvLayerConfig& layer) {
    return layer.attention_window > 0 ? PageClass::sliding : PageClass::full;
  }
  static int coded(const KvSideConfig& side, int n) {
    const int window = side.policy.window, tile = window > 0 ? 32 : 1;
    const bool waits = (side.policy.centre || side.format->head_scale) && n < 64;
    return waits || n < window ? 0 : (n - window) / tile * tile;
  }
  /// Pages of n positions, from the rule of retention alone.
  int pages(int n, PageClass of) const {
    int most = 0;
    for_each_side([&](const KvLayerConfig& layer, const KvSideConfig& side) {
      if (class_of(layer) == of) most = std::max(most, (coded(side, n) + 127) / 128);
    });
    return most;
  }
  int pages(int n) const { return std::max(pages(n, PageClass::full), pages(n, PageClass::sliding)); }
  /// Of n positions sliding layers keep those that the next query sees or that are coded next, were it 32 back, and the
  /// rest of their page.
  int kept_from(int n) const {
    const int back = std::max(0, n - 32);
    int first = back;
    for_each_side([&](const KvLayerConfig& layer, const KvSideConfig& side) {
      if (class_of(layer) == PageClass::sliding)
        first = std::min({first, std::max(0, back + 1 - layer.attention_window), coded(side, back)});
    });
    return first / 128 * 128;
  }
  void check_bytes() {
    if (testing::Test::HasFailure()) return;
    for (auto& [seq, timeline] : sequences_) timeline.held_from = std::max(timeline.held_from, kept_from(timeline.n()));
    int64_t page_bytes[kPageClasses] = {}, slot_bytes = 0;
    for_each_side([&](const KvLayerConfig& layer, const KvSideConfig& side) {
      const bool is_v = &side == &layer.v, is_index = is_v && layer.index_dim > 0;
      const int dim = is_index ? layer.index_dim : layer.head_dim,
                heads = is_v && layer.v_is_k && !is_index ? 0 : layer.n_kv_heads;
      const bool calibrates = side.policy.centre || side.format->head_scale;
      const int ring = side.policy.window > 0 ? side.policy.window + 32 + 32 : calibrates ? 64 : 0;
      page_bytes[size_t(class_of(layer))] += heads * 128 * side.format->row_bytes(dim);
      slot_bytes += heads * (ring * side.recent().row_bytes(dim) + 2 * side.policy.sinks * dim);
      if (&side == &layer.k) slot_bytes += 4 * layer.state_values;
      slot_bytes += 4 * heads * ((side.policy.centre ? dim : 0) + (side.format->head_scale ? 1 : 0));
    });
    const PoolReport r = pool_->report();
    int slots = int(checkpoints_.size());
    for (const auto& [seq, timeline] : sequences_) {
      ASSERT_EQ(pool_->length(seq), timeline.n());
      slots += !pool_->is_parked(seq);
    }
    int64_t used_bytes = slots * slot_bytes;
    for (const PageClass of : kClasses) {
      if (std::ranges::none_of(layers_, [&](const KvLayerConfig& layer) { return class_of(layer) == of; })) continue;
      std::map<int32_t, int> holders;
      for (const auto& [seq, timeline] : sequences_) {
        const int given_back = of == PageClass::sliding ? timeline.held_from / 128 : 0;
        ASSERT_EQ(int(pool_->pages(seq, of).size()), pool_->is_parked(seq) ? 0 : pages(timeline.n(), of) - given_back);
        for (const int32_t page : pool_->pages(seq, of)) ++holders[page];
      }
      const auto by_sequences = holders;
      for (const auto& [id, kept] : checkpoints_)
        for (const int32_t page : kept.pages[size_t(of)]) ++holders[page];
      const PageReport& pages = of == PageClass::sliding && r.sliding ? *r.sliding : r;
      const auto used = int(holders.size());
      ASSERT_EQ(pages.n_pages - pages.pages_free, used) << "step " << step_;
      ASSERT_EQ(pages.pages_shared,
                std::ranges::count_if(by_sequences, [&](auto& h) { return holders.at(h.first) > 1; }))
          << "step " << step_;
      ASSERT_EQ(pages.pages_of_checkpoints, ssize(holders) - ssize(by_sequences)) << "step " << step_;
      used_bytes += used * page_bytes[size_t(of)];
    }
    ASSERT_EQ(r.sequences, ssize(sequences_)) << "step " << step_;
    ASSERT_EQ(r.checkpoints, ssize(checkpoints_)) << "step " << step_;
    ASSERT_EQ(r.n_slots - r.slots_free, slots) << "step " << step_;
    ASSERT_EQ(r.used_bytes, used_bytes) << "step " << step_;
  }

  RaggedCase case_;
  Rng rng_;
  const Model &crowd_model_, &alone_model_;
  std::vector<KvLayerConfig> layers_;
  bool calibrates_, has_states_;
  std::unique_ptr<SequencePool> pool_;
  std::unique_ptr<Outputs> outputs_;
  std::unique_ptr<SequencePool> alone_pool_;
  std::unique_ptr<Outputs> alone_outputs_;
  std::map<SeqId, Timeline> sequences_;
  std::map<CheckpointId, Kept> checkpoints_;
  int step_ = 0;
  int64_t n_verified_ = 0;
};

void run_case(RaggedCase c, uint64_t seed) {
  c.n_sequences = from_environment("RIDGE_RAGGED_SEQUENCES", c.n_sequences);
  c.n_steps = from_environment("RIDGE_RAGGED_STEPS", c.n_steps);
  Ragged(c, seed).run();
}

/// Layer i has K in format i + turn and V in format i: all turns together are all pairs.
std::vector<std::string> pairs_of_turn(int turn) {
  const auto formats = kv_formats();
  std::vector<std::string> kv;
  for (size_t i = 0; i < formats.size(); ++i)
    kv.push_back(fmt::format("{}/{}", formats[(i + size_t(turn)) % formats.size()].name, formats[i].name));
  return kv;
}

class RaggedPairs : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Turns, RaggedPairs, testing::Range(0, int(kv_formats().size())));

TEST_P(RaggedPairs, EverySequenceIsAsAlone) {
  run_case({.model = fmt::format("synth:tiny-64@layers={}@weights=q8_0", kv_formats().size()),
            .crowd = {.n_threads = 3},
            .alone = {.n_threads = 1},
            .kv = pairs_of_turn(GetParam()),
            .n_sequences = 5,
            .n_steps = 30},
           uint64_t(GetParam()) + 1);
}

TEST(Ragged, KernelsOfEveryIsaAndHeadsOfOtherSizes) {
  for (const Isa isa : isas())
    for (const char* shape : {"tiny", "tiny-64"})
      run_case({.model = fmt::format("synth:{}@layers=2@weights=q8_0", shape),
                .crowd = {.n_threads = 2, .isa = std::string(isa_name(isa))},
                .alone = {.n_threads = 1, .isa = std::string(isa_name(isa))},
                .kv = {"rotor-3", "q8_0:window=32:sinks=3/rotor-4:planar:window=64"},
                .n_sequences = 4,
                .n_steps = 16},
               7);
}

/// Every format of weights: products of one and of many rows have one order of sums.
class RaggedWeights : public testing::TestWithParam<std::string_view> {};
std::vector<std::string_view> weight_names() {
  std::vector<std::string_view> names;
  for (const WeightFormat& format : weight_formats()) names.push_back(format.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Formats, RaggedWeights, testing::ValuesIn(weight_names()),
                         [](const auto& format) { return std::string(format.param); });

TEST_P(RaggedWeights, ProductsDoNotDependOnTheirNumberOfRows) {
  run_case({.model = fmt::format("synth:tiny-64@layers=1@weights={}", GetParam()),
            .crowd = {.n_threads = 2},
            .alone = {.n_threads = 1},
            .kv = {"rotor-3/q8_0"},
            .n_sequences = 4,
            .n_steps = 12},
           3);
}

/// Windows of attention, norms on both sides, experts, sink logits, states.
class RaggedModels : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RaggedModels,
                         testing::Values("synth:tiny-gemma@weights=q8_0", "synth:tiny-experts@weights=q8_0",
                                         "synth:tiny-oss@weights=f16", "synth:tiny-delta@layers=2@weights=q8_0",
                                         "synth:tiny-gemma4-moe@weights=f16", "synth:tiny-gemma4-e@weights=q8_0",
                                         "synth:tiny-nemotron-moe@weights=f16"));

TEST_P(RaggedModels, ACrowdChangesNothing) {
  run_case({.model = GetParam(),
            .crowd = {.n_threads = 2},
            .alone = {.n_threads = 1},
            .kv = {"rotor-3", "f16/q8_0"},
            .n_sequences = 4,
            .n_steps = 24},
           11);
}

/// Pages behind a window are given back and taken by others.
TEST(Ragged, SlidingLayers) {
  for (const char* model :
       {"synth:tiny-gemma@weights=q8_0", "synth:tiny-oss@weights=f16", "synth:tiny-gemma4-e@weights=f16"})
    for (const int prompt : {20, 300})
      run_case({.model = model,
                .crowd = {.n_threads = 2},
                .alone = {.n_threads = 1},
                .kv = {"f16/q8_0:window=32:sinks=3", "rotor-3:window=64", "q8_0:centre=on"},
                .n_sequences = 4,
                .n_steps = 120,
                .prompt = prompt},
               uint64_t(prompt));
}

/// One row a token is K and V.
TEST(Ragged, LatentRows) {
  run_case({.model = "synth:tiny-latent@weights=f16",
            .crowd = {.n_threads = 2},
            .alone = {.n_threads = 1},
            .kv = {"rotor-3", "q8_0:window=32:sinks=3:centre=on", "rotor-3u"},
            .n_sequences = 4,
            .n_steps = 24},
           11);
}

/// Queries choose their keys by rows of an index, which go where the others go.
TEST(Ragged, RowsOfAnIndex) {
  run_case({.model = "synth:tiny-index@weights=f16",
            .crowd = {.n_threads = 2},
            .alone = {.n_threads = 1},
            .kv = {"f32", "rotor-3", "q8_0:window=32:sinks=3:centre=on"},
            .n_sequences = 4,
            .n_steps = 24},
           12);
}

}  // namespace
}  // namespace ridge
