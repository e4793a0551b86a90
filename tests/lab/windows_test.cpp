// The pass over the windows, with timelines whose logits are known in closed form.
#include "lab/quality/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ridge::lab {
namespace {

constexpr int kSmallVocab = 5;

/// Sequences that after token t are `sure` of token t + 1 and share the rest. They remember what they were fed.
class Cyclic : public Timelines {
 public:
  explicit Cyclic(double sure, int n_seq = 1) : fed(size_t(n_seq)) {
    for (int t = 0; t < kSmallVocab; ++t)
      for (int next = 0; next < kSmallVocab; ++next)
        rows_[t][next] = float(std::log(next == (t + 1) % kSmallVocab ? sure : (1 - sure) / (kSmallVocab - 1)));
  }
  int n_seq() const override { return int(fed.size()); }
  void reset(int n_active) override {
    ++resets;
    n_active_ = n_active;
    for (auto& tokens : fed) tokens.clear();
  }
  void run(std::span<const int32_t> tokens, bool with_logits) override {
    ++(with_logits ? runs_with_logits : runs_without_logits);
    const size_t n = tokens.size() / size_t(n_active_);
    ASSERT_EQ(n * size_t(n_active_), tokens.size());
    most_tokens = std::max(most_tokens, int(n));
    logits_.clear();
    for (size_t i = 0; i < tokens.size(); ++i) {
      fed[i / n].push_back(tokens[i]);
      const float* const row = row_after(fed[i / n]);
      if (with_logits) logits_.insert(logits_.end(), row, row + kSmallVocab);
    }
  }
  View2<const float> logits() override { return {logits_.data(), ssize(logits_) / kSmallVocab, kSmallVocab}; }

  std::vector<std::vector<int32_t>> fed;  // of each sequence since reset()
  int resets = 0, runs_with_logits = 0, runs_without_logits = 0, most_tokens = 0;

 protected:
  virtual const float* row_after(const std::vector<int32_t>& tokens) { return rows_[tokens.back()]; }
  float rows_[kSmallVocab][kSmallVocab];

 private:
  int n_active_ = 0;
  std::vector<float> logits_;
};

std::vector<int32_t> cycle(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(i % kSmallVocab);
  return tokens;
}

PassOptions options_of(EvalPath path, int step_tokens = 3) {
  PassOptions options;
  options.path = path;
  options.step_tokens = step_tokens;
  return options;
}

class BothPaths : public testing::TestWithParam<EvalPath> {
 protected:
  std::vector<Scores> scores_;
};
INSTANTIATE_TEST_SUITE_P(Paths, BothPaths, testing::Values(EvalPath::prefill, EvalPath::decode),
                         [](const auto& path) { return std::string(eval_path_name(path.param)); });

TEST_P(BothPaths, PerplexityOfACycleIsOneOverItsProbability) {
  const auto text = cycle(64);
  const Windows windows = plan_windows(64, 20, -1, {}).or_throw();
  Cyclic model(0.7);
  Timelines* candidates[] = {&model};
  EXPECT_EQ(run_windows(windows, text, nullptr, candidates, options_of(GetParam()), scores_), 3);
  EXPECT_NEAR(scores_[0].ppl.ppl().value, 1 / 0.7, 1e-6);
  EXPECT_EQ(scores_[0].ppl.count(), 3 * 9);  // 20 - 10 - 1 a chunk
  EXPECT_EQ(model.resets, 3);
}

TEST_P(BothPaths, StepSizeDoesNotChangeTheScores) {
  const auto text = cycle(40);
  const Windows windows = plan_windows(40, 20, -1, 4).or_throw();
  Cyclic base(0.7), candidate(0.5);
  Timelines* candidates[] = {&candidate};
  for (const int step : {1, 2, 5, 9, 64}) {
    std::vector<Scores> scores;
    run_windows(windows, text, &base, candidates, options_of(GetParam(), step), scores);
    EXPECT_EQ(scores[0].pair.count(), 18) << step;
    EXPECT_NEAR(scores[0].pair.means().ppl.value, 2, 1e-6) << step;
    EXPECT_LE(candidate.most_tokens, step);
  }
}

TEST_P(BothPaths, SequencesSideBySideScoreAsOneAfterAnother) {
  class Varied : public Cyclic {  // as sure as the tokens of the chunk so far say
   public:
    using Cyclic::Cyclic;
    const float* row_after(const std::vector<int32_t>& tokens) override {
      const int sum = std::accumulate(tokens.begin(), tokens.end(), 0);
      std::copy_n(rows_[tokens.back()], kSmallVocab, row_);
      row_[sum % kSmallVocab] += float(0.01 * (sum % 17));
      return row_;
    }
    float row_[kSmallVocab];
  };
  std::vector<int32_t> text;
  for (int i = 0; i < 7 * 20 + 3; ++i) text.push_back(i * i % 11 % kSmallVocab);
  const Windows windows = plan_windows(ssize(text), 20, -1, 4).or_throw();
  std::vector<std::vector<Scores>> results;
  for (const int n_seq : {1, 2, 3, 7, 9}) {
    Varied base(0.7, n_seq + 1), candidate(0.5, n_seq);
    Timelines* candidates[] = {&candidate};
    EXPECT_EQ(run_windows(windows, text, &base, candidates, options_of(GetParam()), results.emplace_back()), 7);
    EXPECT_EQ(candidate.resets, (7 + n_seq - 1) / n_seq);
  }
  const Scores& one = results[0][0];
  EXPECT_GT(one.pair.means().kld.error, 0);
  for (const std::vector<Scores>& scores : results) {
    EXPECT_EQ(scores[0].pair.count(), 7 * 9);
    EXPECT_EQ(scores[0].pair.means().kld.value, one.pair.means().kld.value) << "added in the order of the text";
    EXPECT_EQ(scores[0].pair.means().ppl.value, one.pair.means().ppl.value);
    for (int part = 0; part < kCurveParts; ++part)
      EXPECT_EQ(scores[0].curve[size_t(part)].sum(), one.curve[size_t(part)].sum()) << part;
  }
}

TEST_P(BothPaths, CandidatesShareOneBaseAndDivergeByTheClosedForm) {
  const auto text = cycle(100);
  const Windows windows = plan_windows(100, 50, -1, {}).or_throw();
  Cyclic base(0.6), same(0.6), worse(0.4);
  Timelines* candidates[] = {&same, &worse};
  run_windows(windows, text, &base, candidates, options_of(GetParam()), scores_);
  EXPECT_EQ(base.resets, 2);
  const PairMeans control = scores_[0].pair.means(), m = scores_[1].pair.means();
  EXPECT_EQ(control.kld.value, 0);
  EXPECT_EQ(control.ln_ratio.value, 0);
  EXPECT_EQ(control.same_top.value, 1);
  EXPECT_NEAR(m.kld.value, 0.6 * std::log(0.6 / 0.4) + 0.4 * std::log(0.4 / 0.6), 1e-6);
  EXPECT_NEAR(m.ratio.value, 1.5, 1e-6);
  EXPECT_NEAR(m.delta_p.value, -0.2, 1e-6);
  EXPECT_EQ(m.count, 2 * 24);
}

TEST_P(BothPaths, EachChunkStartsWithBosAndLeavesItsLastTokenUnfed) {
  const auto text = cycle(16);
  const Windows windows = plan_windows(16, 8, -1, 3).or_throw();
  Cyclic model(0.7);
  Timelines* candidates[] = {&model};
  run_windows(windows, text, nullptr, candidates, options_of(GetParam()), scores_);
  EXPECT_THAT(model.fed[0], testing::ElementsAre(3, 4, 0, 1, 2, 3, 4));  // second chunk: 8..14, BOS for 8
}

TEST_P(BothPaths, StoppingKeepsWholeChunksOnly) {
  const auto text = cycle(60);
  const Windows windows = plan_windows(60, 20, -1, {}).or_throw();
  Cyclic model(0.7);
  Timelines* candidates[] = {&model};
  PassOptions options = options_of(GetParam());
  int64_t fed = 0;
  options.on_progress = [&](int64_t steps) { fed += steps; };
  options.stop = [&] { return fed > 25; };  // in the second chunk
  EXPECT_EQ(run_windows(windows, text, nullptr, candidates, options, scores_), 1);
  EXPECT_EQ(scores_[0].ppl.count(), 9);
}

TEST_P(BothPaths, NonFiniteLogitsEndTheRunNamingThePlace) {
  class Broken : public Cyclic {
   public:
    Broken() : Cyclic(0.7) { rows_[2][1] = NAN; }
  };
  const auto text = cycle(20);
  const Windows windows = plan_windows(20, 20, -1, {}).or_throw();
  Cyclic base(0.7);
  Broken broken;
  Timelines* candidates[] = {&base, &broken};
  try {
    Cyclic reference(0.7);
    run_windows(windows, text, &reference, candidates, options_of(GetParam()), scores_);
    FAIL() << "NaN logits gave statistics";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("candidate 2"), testing::HasSubstr("chunk 1"),
                                             testing::HasSubstr("position 12")));
  }
}

TEST(Windows, PrefillPathDoesNotAskForLogitsOfTheFirstHalf) {
  const auto text = cycle(20);
  const Windows windows = plan_windows(20, 20, -1, {}).or_throw();
  Cyclic model(0.7);
  Timelines* candidates[] = {&model};
  std::vector<Scores> scores;
  run_windows(windows, text, nullptr, candidates, options_of(EvalPath::prefill, 16), scores);
  EXPECT_EQ(model.runs_without_logits, 1);
  EXPECT_EQ(model.runs_with_logits, 1);
  EXPECT_EQ(model.fed[0].size(), 19u);
}

TEST_P(BothPaths, TheCurveFollowsThePositionAndTheWholeWindowOnDemand) {
  class WorseLater : public Cyclic {  // as sure as the base up to position 24, then less
   public:
    WorseLater() : Cyclic(0.6), later_(0.4) {}

   private:
    class Later : public Cyclic {
     public:
      using Cyclic::Cyclic;
      using Cyclic::row_after;
    };
    const float* row_after(const std::vector<int32_t>& tokens) override {
      return tokens.size() <= 24 ? Cyclic::row_after(tokens) : later_.row_after(tokens);
    }
    Later later_;
  };
  const auto text = cycle(64);
  const Windows windows = plan_windows(64, 32, -1, {}).or_throw();
  Cyclic base(0.6);
  WorseLater candidate;
  Timelines* candidates[] = {&candidate};
  const double worse = 0.6 * std::log(0.6 / 0.4) + 0.4 * std::log(0.4 / 0.6);
  for (const bool whole : {false, true}) {
    PassOptions options = options_of(GetParam());
    options.whole_curve = whole;
    std::vector<Scores> scores;
    run_windows(windows, text, &base, candidates, options, scores);
    EXPECT_EQ(scores[0].pair.count(), 2 * 15);  // the statistics are those of the second half either way
    EXPECT_NEAR(scores[0].pair.means().kld.value, worse * 7 / 15, 1e-6);
    for (int part = 0; part < kCurveParts; ++part) {
      const MeanStat& stat = scores[0].curve[size_t(part)];
      const int positions = part == kCurveParts - 1 ? 1 : 2;  // the last token predicts nothing
      EXPECT_EQ(stat.count(), part < 8 && !whole ? 0 : 2 * positions) << part;
      EXPECT_NEAR(stat.mean().value, part < 12 ? 0 : worse, 1e-6) << part;
    }
  }
}

TEST_P(BothPaths, ABaseOfLogProbabilitiesScoresAsTheTimelineItWasTakenFrom) {
  const auto text = cycle(40);
  const Windows windows = plan_windows(40, 20, -1, {}).or_throw();
  Cyclic base(0.6), candidate(0.4);
  Timelines* candidates[] = {&candidate};
  std::vector<float> saved;
  PassOptions options = options_of(GetParam());
  options.whole_curve = true;  // rows before the second half are not saved
  options.on_base_rows = [&](View2<const float> rows) {
    saved.insert(saved.end(), rows.data, rows.data + rows.rows * rows.cols);
  };
  run_windows(windows, text, &base, candidates, options, scores_);
  ASSERT_EQ(saved.size(), size_t(2 * 9 * kSmallVocab));

  options.on_base_rows = {};
  options.base_log_probs = [&](int64_t row, std::span<float> out) {
    std::copy_n(saved.begin() + row * kSmallVocab, kSmallVocab, out.begin());
  };
  std::vector<Scores> from_rows;
  run_windows(windows, text, nullptr, candidates, options, from_rows);
  const PairMeans a = scores_[0].pair.means(), b = from_rows[0].pair.means();
  EXPECT_EQ(a.count, b.count);
  EXPECT_NEAR(a.kld.value, b.kld.value, 1e-6);
  EXPECT_NEAR(a.ppl_base.value, b.ppl_base.value, 1e-6);
  EXPECT_EQ(a.same_top.value, b.same_top.value);
  EXPECT_EQ(from_rows[0].ppl.count(), 0);
}

TEST(Windows, CurvePartsTileEveryWindow) {
  for (const int n_ctx : {4, 16, 17, 100, 512, 1 << 26}) {
    EXPECT_EQ(curve_begin(0, n_ctx), 0);
    EXPECT_EQ(curve_begin(kCurveParts, n_ctx), n_ctx);
    for (int part = 0; part < kCurveParts; ++part) {
      const int begin = curve_begin(part, n_ctx), end = curve_begin(part + 1, n_ctx);
      if (begin == end) continue;
      EXPECT_EQ(curve_part(begin, n_ctx), part) << n_ctx;
      EXPECT_EQ(curve_part(end - 1, n_ctx), part) << n_ctx;
    }
  }
}

TEST(Windows, PlanFollowsTheTextAndTheLimit) {
  EXPECT_EQ(plan_windows(1023, 512, -1, {}).or_throw().n_chunks, 1);
  EXPECT_EQ(plan_windows(1024, 512, -1, {}).or_throw().n_chunks, 2);
  EXPECT_EQ(plan_windows(10240, 512, 7, {}).or_throw().n_chunks, 7);
  const Windows odd = plan_windows(9, 9, -1, {}).or_throw();
  EXPECT_EQ(odd.first_scored(), 4);
  EXPECT_EQ(odd.scored_per_chunk(), 4);
}

TEST(Windows, PlanRefusesWhatScoresNothing) {
  EXPECT_FALSE(plan_windows(511, 512, -1, {}));
  EXPECT_FALSE(plan_windows(1000, 512, 0, {}));
  EXPECT_FALSE(plan_windows(1000, 3, -1, {}));
  EXPECT_FALSE(plan_windows(0, 512, -1, {}));
  EXPECT_THAT(plan_windows(511, 512, -1, {}).error().message, testing::HasSubstr("511 tokens"));
}

}  // namespace
}  // namespace ridge::lab
