// Sequences of models with states of fixed size: they go back to states that are kept, of the newest lengths or of
// checkpoints. Everything else that goes back is refused, and all else keeps its bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "cases/temp_dir.h"
#include "engine/engine.h"

namespace ridge {
namespace {

using testing::HasSubstr;

class States : public testing::Test {
 protected:
  static std::vector<int32_t> tokens(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back((i * 7919 + 13) % 512);
    return ids;
  }
  std::vector<float> feed(SeqId seq, const std::vector<int32_t>& ids) {
    const SeqTokens of{seq, int(ids.size())};
    pool_->reserve(seq, of.n_tokens).or_throw();
    engine().backend().run({.tokens = ids, .seqs = {&of, 1}, .logits = LogitRows::last}, *pool_, *outputs_);
    const View2<const float> rows = outputs_->logits();
    return {rows.data, rows.data + rows.cols};
  }
  static const Model& model() {
    static const Model loaded = Model::load("synth:tiny-delta@weights=f32", {.n_threads = 1});
    return loaded;
  }
  static Engine& engine() { return model().engine(); }

  std::vector<KvLayerConfig> layers_ = layer_configs({.k = {.format = "f32"}, .v = {.format = "f32"}}, engine().plan());
  std::unique_ptr<SequencePool> pool_ = engine().open_pool(layers_, 16, 4);
  std::unique_ptr<Outputs> outputs_ = engine().backend().make_outputs();
};

TEST_F(States, SlotsHoldThemToTheByte) {
  // Two of four layers: 4 value heads of 16 x 32, and 3 rows of 2 x 32 keys and 128 values.
  EXPECT_EQ(pool_->report().slot_bytes, 2 * 4 * (4 * 16 * 32 + 3 * (2 * 32 + 128)));
  EXPECT_EQ(pool_->report().page_bytes, 2 * 2 * 128 * 2 * 32 * 4) << "pages are of the layers that attend";
}

TEST_F(States, GoBackToNothingOrToACheckpoint) {
  const SeqId seq = pool_->open().or_throw();
  feed(seq, tokens(20));
  const CheckpointId checkpoint = pool_->checkpoint(seq).or_throw();
  const std::vector<float> expected = feed(seq, tokens(7));
  for (const TrimMode mode : {TrimMode::exact, TrimMode::coded_window}) {
    EXPECT_THAT(pool_->trim(seq, 26, mode).error().message, HasSubstr("states are those of 27 positions"));
    EXPECT_EQ(pool_->length(seq), 27);
    EXPECT_TRUE(pool_->trim(seq, 27, mode));
  }
  EXPECT_THAT(pool_->fork(seq, 20).error().message, HasSubstr("open a checkpoint"));
  EXPECT_THAT(pool_->shift(seq, 4, 8, [](int, KvSide, float*) {}).error().message, HasSubstr("hold all of them"));

  const SeqId again = pool_->open(checkpoint).or_throw();
  EXPECT_EQ(feed(again, tokens(7)), expected);
  // A fork goes on with a state of its own.
  const SeqId fork = pool_->fork(seq, 27).or_throw();
  const std::vector<float> next = feed(seq, tokens(3));
  EXPECT_EQ(feed(fork, tokens(3)), next);
  EXPECT_TRUE(pool_->trim(fork, 0, TrimMode::exact));
  feed(fork, tokens(20));
  EXPECT_EQ(feed(fork, tokens(7)), expected) << "a sequence that was reset begins with zeros";
}

TEST_F(States, OfTheNewestLengthsAreKeptInAHistory) {
  pool_ = engine().open_pool(layers_, 16, {4, 2});
  EXPECT_EQ(pool_->report().used_bytes, 0);
  const SeqId seq = pool_->open().or_throw();
  const PoolReport report = pool_->report();
  EXPECT_EQ(report.used_bytes, 4 * report.slot_bytes) << "a state for each of four lengths";
  EXPECT_EQ(pool_->memory().states_kept(pool_->slot(seq)), 4);
  EXPECT_EQ(pool_->most_taken_back(seq), 4);

  const CheckpointId first = pool_->checkpoint(seq).or_throw(), second = pool_->checkpoint(seq).or_throw();
  EXPECT_THAT(pool_->checkpoint(seq).error().message, HasSubstr("all 2 slots")) << "the others are for sequences";
  pool_->release(first), pool_->release(second);

  // A text of wrong tokens that are taken back, and one without.
  const std::vector<int32_t> text = tokens(60), wrong = {5, 6, 7};
  const SeqId plain = pool_->open().or_throw();
  feed(seq, {text.begin(), text.begin() + 20});
  feed(plain, {text.begin(), text.begin() + 20});
  EXPECT_THAT(pool_->trim(seq, 19, TrimMode::exact).error().message, HasSubstr("states are those of 20 positions"));
  for (int n = 20, step = 0; n + 4 <= 60; ++step) {
    const int right = 1 + step % 4, n_wrong = step % (5 - right);
    std::vector<int32_t> ids(text.begin() + n, text.begin() + n + right);
    ids.insert(ids.end(), wrong.begin(), wrong.begin() + n_wrong);
    feed(seq, ids);
    if (step == 3) {
      EXPECT_THAT(pool_->trim(seq, n - 1, TrimMode::exact).error().message, HasSubstr(" to "));
    }
    n += right;
    pool_->trim(seq, n, TrimMode::exact).or_throw();
    std::vector<float> expected;
    for (int i = n - right; i < n; ++i) expected = feed(plain, {text[size_t(i)]});
    EXPECT_EQ(pool_->save(seq).sides[0].bytes, pool_->save(plain).sides[0].bytes) << n;
    // Forks, checkpoints and images begin with the state of their length.
    const SeqId fork = pool_->fork(seq, n).or_throw();
    EXPECT_EQ(pool_->memory().states_kept(pool_->slot(fork)), 1) << "slots with a history are taken";
    EXPECT_EQ(pool_->most_taken_back(fork), 1);
    const CheckpointId checkpoint = pool_->checkpoint(seq).or_throw();
    const std::vector<float> next = feed(fork, {1, 2, 3});
    EXPECT_EQ(feed(seq, {1, 2, 3}), next);
    pool_->restore(seq, checkpoint);
    EXPECT_EQ(feed(seq, {1, 2, 3}), next);
    pool_->restore(seq, checkpoint);
    pool_->close(fork);
    pool_->release(checkpoint);
    pool_->park(seq);
    pool_->unpark(seq).or_throw();
    EXPECT_THAT(pool_->trim(seq, n - 1, TrimMode::exact).error().message, HasSubstr("those of"));
  }
}

TEST_F(States, ImagesHoldThemAndMustBeFinite) {
  const SeqId seq = pool_->open().or_throw();
  feed(seq, tokens(20));
  SequenceImage image = pool_->save(seq);
  EXPECT_EQ(image.sides[0].bytes.size(), 4u * (4 * 16 * 32 + 3 * (2 * 32 + 128)));
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(image.sides[0].bytes.data() + 4 * 5, &bad, 4);
  EXPECT_THAT(pool_->load(image).error().message, HasSubstr("state 5 is nan"));
}

TEST_F(States, SessionsSaveAndRestoreThem) {
  const TempDir dir;
  const std::string path = (dir / "state").native();
  Session first(model(), {.n_ctx = 64}), second(model(), {.n_ctx = 64});
  first.prefill(tokens(30));
  first.save(path);
  second.prefill(tokens(5));
  second.restore(path);
  for (const int32_t token : tokens(4)) {
    const auto a = first.decode(token), b = second.decode(token);
    EXPECT_TRUE(std::ranges::equal(a, b));
  }
  EXPECT_THROW(first.truncate(10), Error);
  EXPECT_THROW(first.shift(2, 4), Error);
  EXPECT_EQ(first.n_past(), 34);
  first.truncate(0);
  first.prefill(tokens(30));
  second.restore(path);
  EXPECT_TRUE(std::ranges::equal(first.decode(7), second.decode(7)));
}

}  // namespace
}  // namespace ridge
