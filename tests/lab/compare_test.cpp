// Verdicts on made-up times with the noise that real ones have: an A/A comparison has no verdict, a planted slowdown of
// 5 % is found, and the stated interval covers the truth as often as it says.
#include "lab/sweep/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;
using Answer = Verdict::Answer;

/// Times of single calls as a busy machine gives them: a narrow bell, now and then something that took much longer, and
/// a clock that wanders slowly.
class NoisyClock {
 public:
  explicit NoisyClock(uint64_t seed, double width = 0.006) : rng_(seed), width_(width) {}
  double time(double true_us) {
    drift_ = 0.98 * drift_ + 0.0008 * rng_.normal();
    const double interrupted = rng_.uniform() < 0.05 ? 0.3 * rng_.uniform() : 0;
    return true_us * (1 + width_ * rng_.normal() + drift_ + interrupted);
  }

 private:
  Rng rng_;
  double width_, drift_ = 0;
};

struct Times {
  std::vector<double> a, again, b;
};
/// A A' B in turns, B `slowdown` times as long.
Times measured(uint64_t seed, double slowdown, int n = 60, double width = 0.006) {
  NoisyClock clock(seed, width);
  Times times;
  for (int i = 0; i < n; ++i) {
    times.a.push_back(clock.time(100));
    times.again.push_back(clock.time(100));
    times.b.push_back(clock.time(100 * slowdown));
  }
  return times;
}
Verdict judged(const Times& times) { return judge(times.a, times.again, times.b); }

constexpr int kTrials = 200;

TEST(Compare, AnAAComparisonHasNoVerdict) {
  int verdicts = 0;
  for (int seed = 0; seed < kTrials; ++seed) verdicts += judged(measured(uint64_t(seed), 1)).answer != Answer::none;
  EXPECT_EQ(verdicts, 0);
}

TEST(Compare, APlantedSlowdownOfFivePercentIsFound) {
  int found = 0;
  for (int seed = 0; seed < kTrials; ++seed) {
    const Verdict v = judged(measured(uint64_t(seed), 1.05));
    EXPECT_NE(v.answer, Answer::faster);
    found += v.answer == Answer::slower;
    EXPECT_NEAR(v.effect, -0.05, 0.02);
  }
  EXPECT_GE(found, kTrials * 99 / 100);
}

TEST(Compare, ASpeedUpIsFoundToo) {
  const Verdict v = judged(measured(1, 1 / 1.05));
  EXPECT_EQ(v.answer, Answer::faster) << verdict_text(v);
  EXPECT_NEAR(v.effect, 0.05, 0.01);
  EXPECT_GT(v.low, 1);
}

TEST(Compare, TheIntervalCoversTheTruthAsOftenAsItSays) {
  int covered = 0;
  for (int seed = 0; seed < kTrials; ++seed) {
    // Without drift the samples are what the bootstrap takes them for.
    Rng rng(uint64_t(seed) + 1000);
    std::vector<double> a, b;
    for (int i = 0; i < 60; ++i) {
      a.push_back(100 * (1 + 0.01 * rng.normal()));
      b.push_back(80 * (1 + 0.01 * rng.normal()));
    }
    const Verdict v = judge(a, {}, b);
    covered += v.low <= 1.25 && 1.25 <= v.high;
  }
  EXPECT_GE(covered, kTrials * 91 / 100);
  EXPECT_LE(covered, kTrials * 99 / 100);
}

TEST(Compare, NoiseHidesWhatIsSmallerThanIt) {
  const Verdict wide = judged(measured(3, 1.05, 60, 0.05));
  EXPECT_EQ(wide.answer, Answer::none);
  EXPECT_THAT(wide.why_none, HasSubstr("inside the noise"));
  EXPECT_GT(wide.spread, 0.05);
  // A and A' that differ are noise, however narrow each is.
  const std::vector<double> a(20, 100.0), again(20, 110.0), b(20, 98.0);
  const Verdict shifted = judge(a, again, b);
  EXPECT_EQ(shifted.answer, Answer::none) << verdict_text(shifted);
  EXPECT_NEAR(shifted.aa_effect, 1 - 1.1, 1e-12);
  EXPECT_NEAR(shifted.noise, 0.1, 1e-12);
  // Without the control the same B would have passed.
  EXPECT_EQ(judge(a, {}, b).answer, Answer::faster);
}

TEST(Compare, TheBudgetHidesWhatDoesNotMatter) {
  const std::vector<double> a(20, 100.0), b(20, 98.0);
  EXPECT_EQ(judge(a, a, b).answer, Answer::faster);
  const Verdict v = judge(a, a, b, 0.05);
  EXPECT_EQ(v.answer, Answer::none);
  EXPECT_THAT(v.why_none, HasSubstr("inside the budget of 5.0 %"));
}

TEST(Compare, EffectsAreSymmetricAndMediansIgnoreOutliers) {
  std::vector<double> a(21, 100.0), b(21, 50.0);
  a[3] = 1e9;
  b[4] = 1e-9;
  const Verdict v = judge(a, {}, b), w = judge(b, {}, a);
  EXPECT_DOUBLE_EQ(v.ratio, 2);
  EXPECT_DOUBLE_EQ(v.effect, 1);
  EXPECT_DOUBLE_EQ(w.effect, -1);
  const std::vector<double> even{1, 2, 3, 4, 5, 6};
  EXPECT_DOUBLE_EQ(judge(even, {}, even).ratio, 1);
}

TEST(Compare, TimesThatAreNoneHaveNoVerdict) {
  const std::vector<double> good(10, 1.0), few(4, 1.0);
  EXPECT_THAT(judge(few, {}, good).why_none, HasSubstr("fewer than 5 samples"));
  EXPECT_EQ(judge(good, few, good).answer, Answer::none);
  EXPECT_EQ(judge(good, good, {}).answer, Answer::none);
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    std::vector<double> bad = good;
    bad[2] = wrong;
    const Verdict v = judge(good, good, bad);
    EXPECT_EQ(v.answer, Answer::none);
    EXPECT_TRUE(std::isnan(v.ratio));
    EXPECT_EQ(verdict_text(v), "NO VERDICT: a sample is not a time above 0");
    EXPECT_TRUE(verdict_columns().fields(v)["ratio"].is_null());
  }
}

TEST(Compare, EqualSamplesGiveEqualVerdicts) {
  const Times times = measured(9, 1.03);
  EXPECT_EQ(verdict_columns().fields(judged(times)), verdict_columns().fields(judged(times)));
  EXPECT_THAT(verdict_text(judged(measured(9, 0.5))), testing::StartsWith("FASTER: 2.0"));
}

}  // namespace
}  // namespace ridge::lab
