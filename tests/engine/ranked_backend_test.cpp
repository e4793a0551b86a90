// Ranks of one process as one backend: what it makes of a text, its memory, its sampling and its threads.
#include "engine/ranked_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "cases/thread_ranks.h"
#include "engine/decode/decoder.h"
#include "engine/engine.h"

namespace ridge {
namespace {

using testing::HasSubstr;

TEST(RankThreads, EveryRankRunsOnItsOwnThread) {
  RankThreads threads(3);
  std::vector<std::thread::id> first(3), second(3);
  threads.for_all([&](int rank) { first[size_t(rank)] = std::this_thread::get_id(); });
  threads.for_all([&](int rank) { second[size_t(rank)] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_NE(first[1], first[2]);
}

TEST(RankThreads, ThousandsOfMeetingsKeepStep) {
  RankThreads threads(4);
  std::atomic<int> count{0};
  threads.for_all([&](int) {
    for (int i = 1; i <= 2000; ++i) {
      ++count;
      threads.meet();
      EXPECT_EQ(count % 4, 0) << "meeting " << i;
      threads.meet();
    }
  });
  EXPECT_EQ(count, 8000);
}

TEST(RankThreads, AFailedRankFreesThoseThatWaitForIt) {
  RankThreads threads(3);
  try {
    threads.for_all([&](int rank) {
      if (rank == 1) throw Error(ErrorKind::no_memory, "rank 1 has no memory");
      threads.meet();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has no memory")) << "the first error, not what followed from it";
  }
  int n = 0;
  threads.for_all([&](int rank) {
    threads.meet();
    if (rank == 0) n = 1;
  });
  EXPECT_EQ(n, 1) << "they go on afterwards";
}

/// Ranks of one machine share its memory, and the fullest machine counts.
TEST(RoomForAll, IsWhatEveryPlaceHasRoomForItsRanksPartsOf) {
  const auto sides = [](Extent heads) { return std::vector<SidePart>(2, SidePart{heads, {}}); };
  const std::vector<std::vector<SidePart>> halves = {sides({0, 2}), sides({2, 2})}, copies(2, sides({0, 1}));
  EXPECT_EQ(room_for_all(halves, std::vector<FreeMemory>{{"a", 100}, {"a", 90}}), 90);
  EXPECT_EQ(room_for_all(halves, std::vector<FreeMemory>{{"a", 100}, {"b", 90}}), 180);
  EXPECT_EQ(room_for_all(copies, std::vector<FreeMemory>{{"a", 100}, {"b", 90}}), 90);
  EXPECT_EQ(room_for_all(copies, std::vector<FreeMemory>{{"a", 100}, {"a", 100}}), 50);
  const std::vector<std::vector<SidePart>> stages = {{{{0, 4}, {}}, {}}, {{}, {{0, 4}, {}}}};
  EXPECT_EQ(room_for_all(stages, std::vector<FreeMemory>{{"a", 100}, {"b", 300}}), 200);
}

/// A model on CPU ranks of this process, whose collectives are messages between threads.
struct CpuRanks {
  struct Rank {
    Rank(ThreadMail& mail, int rank, const std::string& isa)
        : ranks(std::make_unique<ThreadTransport>(mail, rank), 60), context(1, find_isa(isa).or_throw()) {}
    Ranks ranks;
    CpuContext context;
    ModelSlice slice;
    Config config;
    Weights weights;
    ModelPlan plan;
  };

  CpuRanks(Engine& whole, int n, const std::string& isa) : mail(n) {
    RankedParts parts{.threads = std::make_shared<RankThreads>(n), .name = "ranks", .check = [] {}, .end = [] {}};
    for (int r = 0; r < n; ++r) {
      Rank& own = *all.emplace_back(std::make_unique<Rank>(mail, r, isa));
      own.slice = plan_slice(whole.config(), whole.weights(), r, n).or_throw();
      own.config = whole.config();
      own.weights = view_of(whole.weights());
      apply_slice(own.slice, own.config, own.weights);
      own.plan = make_plan(own.config, own.weights.rope_factors, own.weights.long_rope_factors);
      parts.ranks.push_back(make_cpu_backend(own.context, own.plan, own.weights, &own.ranks, &own.slice));
      parts.sides.push_back(side_parts(own.slice, r));
    }
    backend = make_ranked_backend(std::move(parts));
  }

  ThreadMail mail;
  std::vector<std::unique_ptr<Rank>> all;
  std::unique_ptr<Backend> backend;
};

class RankedBackend : public testing::TestWithParam<std::pair<std::string, int>> {
 protected:
  RankedBackend() {
    const auto& [kv, n] = GetParam();
    ranks_ = std::make_unique<CpuRanks>(whole_, n, "scalar");
    SessionOptions options{.n_ctx = kContext, .n_ubatch = 40};
    options.k.format = options.v.format = kv;
    layers_ = layer_configs(options, whole_.plan());
    pool_ = open(*ranks_->backend);
    alone_ = open(whole_.backend());
  }
  std::unique_ptr<SequencePool> open(Backend& backend) {
    const KvMetric* const metric = whole_.kv_metric(layers_);
    return std::make_unique<SequencePool>(backend.open_memory(layers_, metric_views(metric, int(layers_.size())),
                                                              pool_pages(layers_, kContext, 3, 40), 4),
                                          [this](int n) { return whole_.open_host_memory(layers_, n, 1); });
  }
  std::vector<int32_t> text(int n, int seed) const {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(int32_t((i * 37 + seed * 101 + i * i) % whole_.plan().vocab_size));
    return ids;
  }
  static std::vector<float> run(Backend& backend, SequencePool& pool, Outputs& outputs, SeqId seq,
                                std::span<const int32_t> ids) {
    std::vector<float> all;
    for (size_t first = 0; first < ids.size(); first += 40) {
      const auto part = ids.subspan(first, std::min<size_t>(40, ids.size() - first));
      const SeqTokens of{seq, int(part.size())};
      pool.reserve(seq, of.n_tokens).or_throw();
      backend.run({.tokens = part, .seqs = {&of, 1}, .logits = LogitRows::all}, pool, outputs);
      const View2<const float> rows = outputs.logits();
      all.insert(all.end(), rows.data, rows.data + rows.rows * rows.cols);
    }
    return all;
  }
  void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double(a[i]) - double(b[i])));
    EXPECT_LT(worst, kBound);
  }

  static constexpr int kContext = 300;
  /// Sums over ranks are in another order; a code of the cache that flips for it moves a logit by less than this.
  static constexpr double kBound = 0.02;
  Engine whole_{"synth:tiny@weights=f32", {.n_threads = 1, .isa = "scalar"}};
  std::unique_ptr<CpuRanks> ranks_;
  std::vector<KvLayerConfig> layers_;
  std::unique_ptr<SequencePool> pool_, alone_;
};

TEST_P(RankedBackend, PromptsTokensForksAndImagesAreThoseOfOneRank) {
  const auto outputs = ranks_->backend->make_outputs(), alone_outputs = whole_.backend().make_outputs();
  const SeqId seq = pool_->open().or_throw(), alone = alone_->open().or_throw();
  const std::vector<int32_t> prompt = text(200, 1), more = text(3, 2);
  expect_near(run(*ranks_->backend, *pool_, *outputs, seq, prompt),
              run(whole_.backend(), *alone_, *alone_outputs, alone, prompt));
  for (size_t i = 0; i < more.size(); ++i)
    expect_near(run(*ranks_->backend, *pool_, *outputs, seq, {&more[i], 1}),
                run(whole_.backend(), *alone_, *alone_outputs, alone, {&more[i], 1}));
  EXPECT_EQ(pool_->report().used_bytes, alone_->report().used_bytes);

  // What ranks hold goes into one rank's memory and on from there; and back.
  const SequenceImage image = pool_->save(seq);
  const SeqId moved = alone_->load(image).or_throw();
  const std::vector<int32_t> next = text(9, 3);
  const std::vector<float> expected = run(whole_.backend(), *alone_, *alone_outputs, moved, next);
  const SeqId fork = pool_->fork(seq, pool_->length(seq)).or_throw();
  const std::vector<float> of_fork = run(*ranks_->backend, *pool_, *outputs, fork, next);
  expect_near(of_fork, expected);
  pool_->trim(fork, 203, TrimMode::exact).or_throw();
  EXPECT_EQ(run(*ranks_->backend, *pool_, *outputs, fork, next), of_fork) << "back by nine tokens";
  const SeqId back = pool_->load(image).or_throw();
  EXPECT_EQ(run(*ranks_->backend, *pool_, *outputs, back, next), of_fork);
  pool_->close(back);
  pool_->park(fork);
  EXPECT_TRUE(pool_->unpark(fork));
  pool_->trim(fork, 203, TrimMode::exact).or_throw();
  EXPECT_EQ(run(*ranks_->backend, *pool_, *outputs, fork, next), of_fork) << "parked and back";
}

TEST_P(RankedBackend, WritesTheTextsOfStepsByHand) {
  const auto outputs = ranks_->backend->make_outputs();
  const SeqId seq = pool_->open().or_throw(), by_hand = pool_->open().or_throw();
  const std::vector<int32_t> prompt = text(70, 4);
  run(*ranks_->backend, *pool_, *outputs, by_hand, prompt);
  SamplerOptions options;
  options.temperature = 0;
  std::vector<int32_t> expected;
  const std::vector<int32_t> known;
  const SeqTokens one{by_hand, 1};
  // The last row of a batch of all rows is sampled from a step of its own.
  pool_->trim(by_hand, 69, TrimMode::exact).or_throw();
  pool_->reserve(by_hand, 1).or_throw();
  ranks_->backend->run({.tokens = {&prompt.back(), 1}, .seqs = {&one, 1}}, *pool_, *outputs);
  for (int i = 0; i < 12; ++i) {
    expected.push_back(ranks_->backend->sample(*outputs, {&options, 1}, {&known, 1})[0]);
    pool_->reserve(by_hand, 1).or_throw();
    ranks_->backend->run({.tokens = {&expected.back(), 1}, .seqs = {&one, 1}}, *pool_, *outputs);
  }

  run(*ranks_->backend, *pool_, *outputs, seq, std::span(prompt).first(69));
  std::vector<int32_t> generated;
  Text one_text{.seq = seq, .tokens = {prompt.back()}, .sampler = options, .n_left = 12};
  one_text.on_token = [&](int32_t token) { return generated.push_back(token), true; };
  Decoder(*ranks_->backend, *pool_, whole_.plan().n_ids).finish(one_text);
  EXPECT_EQ(generated, expected);
  EXPECT_EQ(pool_->length(seq), 70 + 11);
}

TEST_P(RankedBackend, BlocksAreShownOnceAndTakenByAllRanks) {
  const auto outputs = ranks_->backend->make_outputs();
  const SeqId seq = pool_->open().or_throw();
  int n_shown = 0;
  ranks_->backend->watch(nullptr, [&](int, Block, View2<float> x) {
    ++n_shown;
    std::fill_n(x.data, x.rows * x.cols, 0.5f);
  });
  const std::vector<float> first = run(*ranks_->backend, *pool_, *outputs, seq, text(1, 5));
  EXPECT_EQ(n_shown, 2 * int(whole_.plan().layers.size()) + 1);
  const std::vector<float> second = run(*ranks_->backend, *pool_, *outputs, seq, text(1, 6));
  EXPECT_EQ(first, second) << "the output reads what was shown last, on every rank";
  ranks_->backend->watch(nullptr, nullptr);
  EXPECT_NE(run(*ranks_->backend, *pool_, *outputs, seq, text(1, 6)), first);
}

INSTANTIATE_TEST_SUITE_P(Caches, RankedBackend,
                         testing::Values(std::pair("f32", 2), std::pair("q8_0", 2), std::pair("rotor-3", 2),
                                         std::pair("f16", 4)),
                         [](const auto& of) {
                           std::string name = of.param.first + "_" + std::to_string(of.param.second);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ridge
