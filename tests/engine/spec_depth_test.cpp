// How many proposals pay: what steps cost, and how long texts pause.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <tuple>
#include <utility>

#include "engine/decode/text.h"

namespace ridge {
namespace {

/// What proposals add to a step, in plain steps.
struct TrueCost {
  double first;  ///< the first proposal, beside `each`: a proposer's pass and the model's for several tokens
  double each;
  double of(int n) const { return n == 0 ? 0 : first + n * each; }
  /// The part of a text that has n of all these proposals.
  double part(int n, int of_all) const { return of_all == 0 ? 0 : of(of_all) * n / of_all; }
};

/// Texts whose steps take `plain` seconds, and more with proposals.
struct Crowd {
  Crowd(int n_texts, const TrueCost& of, double plain_seconds)
      : true_cost(of), plain(plain_seconds), depths(size_t(n_texts)) {
    for (const SpecDepth& depth : depths) texts.push_back(&depth);
  }
  /// A step with up to `most` proposals a text: its seconds and tokens. seen(seconds, n_proposed): what is measured;
  /// holds(): whether a proposal does whose predecessors do. Each text loses by its own proposals.
  std::pair<double, int> step(int most, const auto& seen, const auto& holds) {
    const int n_texts = int(depths.size());
    const std::vector<int> asked = spec_depths(cost, n_texts, texts, most);
    int n_proposed = 0, n_tokens = 0;
    bool late = false;
    for (size_t i = 0; i < depths.size(); ++i)
      n_proposed += asked[i], late = late || (asked[i] > 0 && depths[i].must_catch_up());
    const double took = plain * (1 + true_cost.of(n_proposed)), measured = seen(took, n_proposed);
    if (!late) cost.add(n_proposed, measured);
    for (size_t i = 0; i < depths.size(); ++i) {
      int n_held = 0;
      while (n_held < asked[i] && holds()) ++n_held;
      const int n_others = n_proposed - asked[i];
      depths[i].add(asked[i], asked[i], n_held,
                    {cost, n_texts, n_others, measured - plain * true_cost.part(n_others, n_proposed)});
      n_tokens += 1 + n_held;
    }
    return {took, n_tokens};
  }

  SpecCost cost;
  TrueCost true_cost;
  double plain;
  std::vector<SpecDepth> depths;
  std::vector<const SpecDepth*> texts;
};

/// Of n_texts with up to `most` proposals, of which `holds` in ten hold: the seconds that n tokens take over plain
/// steps'.
double relative_seconds(int holds, int n_tokens, const TrueCost& cost_of = {0, 0.1}, int n_texts = 1, int most = 8) {
  Crowd crowd(n_texts, cost_of, 0.01);
  double seconds = 0;
  int n = 0, n_tried = 0;
  while (n < n_tokens) {
    const auto [took, n_new] = crowd.step(
        most, [](double s, int) { return s; }, [&] { return (7 * n_tried++) % 10 < holds; });
    seconds += took, n += n_new;
  }
  return seconds / (n * 0.01 / n_texts);
}

TEST(SpecDepth, FollowsWhatPays) {
  EXPECT_LT(relative_seconds(10, 1000), 0.25) << "all hold: 9 tokens for 18 ms";
  EXPECT_LT(relative_seconds(6, 1000), 0.75) << "six of ten hold";
  EXPECT_LT(relative_seconds(0, 1000), 1.02) << "none holds";
  EXPECT_LT(relative_seconds(0, 256), 1.03) << "none holds in a short text";
  EXPECT_LT(relative_seconds(6, 256, {0, 1}), 1.02) << "a proposal costs a step";
  EXPECT_LT(relative_seconds(2, 256, {0, 0.3}), 1.03) << "two of ten hold, a proposal costs a third of a step";
  EXPECT_LT(relative_seconds(10, 4000, {0, 0.1}, 4), 0.5) << "four texts: 36 tokens for 42 ms";
  EXPECT_LT(relative_seconds(3, 4000, {0, 0.3}, 4), 1.03) << "a proposal promises less than the texts' tokens cost";
  EXPECT_LT(relative_seconds(7, 4000, {0.7, 0.05}, 1, 3), 0.8)
      << "one does not pay alone: three proposals: 2.53 tokens in 1.85 steps, 0.73; one: 1.7 in 1.75; none: 1";
}

/// A device's text: 10 ms a paused step, 13 where the proposer listens, 4 more a proposal, 20 to begin and to end a
/// pause. Proposals hold from token `from` on. Seconds for tokens `first` to `last`, over those of paused steps.
double relative_seconds_of_device(int from, int first, int last) {
  SpecCost cost;
  SpecDepth depth;
  const SpecDepth* const one[] = {&depth};
  double seconds = 0;
  int n_counted = 0;
  for (int n = 0; n < last;) {
    double took = 0;
    int n_tokens = depth.paused_steps(true);
    if (n_tokens > 0) {
      for (int i = 0; i < n_tokens; ++i) cost.add_paused(0.01);
      depth.on_paused_steps(n_tokens, 2);
      took = 0.02 + n_tokens * 0.01;
    } else {
      const int asked = spec_depths(cost, 1, one, 8)[0], held = n >= from ? asked : 0;
      took = 0.013 + asked * 0.004;
      if (asked == 0 || !depth.must_catch_up()) cost.add(asked, took);
      depth.add(asked, asked, held, {cost, 1, 0, took});
      n_tokens = 1 + held;
    }
    if (n >= first) seconds += took, n_counted += n_tokens;
    n += n_tokens;
  }
  return seconds / (0.01 * n_counted);
}

TEST(SpecDepth, TriesLoseLittleOfThePausesBetweenThem) {
  EXPECT_LT(relative_seconds_of_device(10000, 0, 4000), 1.03) << "none holds, the first try included";
  EXPECT_LT(relative_seconds_of_device(10000, 1000, 8000), 1.03) << "none holds";
  EXPECT_GT(relative_seconds_of_device(10000, 1000, 8000), 1) << "it is tried again";
  EXPECT_LT(relative_seconds_of_device(0, 0, 1000), 0.6) << "all hold";
  EXPECT_LT(relative_seconds_of_device(1500, 3000, 4000), 0.6) << "all hold by then: the pause has ended";
}

/// What the machine does to the times that are measured.
struct Noise {
  double jitter, waits;  ///< standard deviation of their logarithm; how probably a step takes 3 to 23 times as long
  double first;          ///< times as long the first step takes, and the first one with proposals
};

/// Proposals hold with one probability, or text of which nearly all hold, so often, takes turns with text of which
/// nearly none holds, every 10 to 70 proposals.
struct Luck {
  double holds;
  bool changes;
};

/// Steps of n_texts that take 0.2 ms, and more with proposals. The most that any 512 tokens a text take, over plain
/// steps, in true times; the policy sees the measured ones.
double worst_window(unsigned seed, const Noise& noise, const Luck& luck, const TrueCost& cost_of, int n_texts) {
  constexpr double kPlain = 2e-4;
  constexpr int kWindow = 512, kTokens = 2048;
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::normal_distribution<double> normal;
  Crowd crowd(n_texts, cost_of, kPlain);
  bool is_first[2] = {true, true};
  std::deque<std::pair<double, int>> window;  // steps: seconds, tokens
  double seconds = 0, worst = 0;
  int n_window = 0, n_same = 0;
  bool is_good = true;
  const auto holds = [&] {
    if (!luck.changes) return uniform(rng) < luck.holds;
    if (--n_same < 0) is_good = uniform(rng) < luck.holds, n_same = int(10 + 60 * uniform(rng));
    return uniform(rng) < (is_good ? 0.95 : 0.05);
  };
  const auto seen = [&](double took, int n_proposed) {
    took *= std::exp(noise.jitter * normal(rng));
    if (uniform(rng) < noise.waits) took *= 3 + 20 * uniform(rng);
    if (std::exchange(is_first[n_proposed > 0], false)) took *= noise.first;
    return took;
  };
  for (int n = 0; n < kTokens * n_texts;) {
    const auto [took, n_tokens] = crowd.step(8, seen, holds);
    n += n_tokens;
    window.emplace_back(took, n_tokens);
    seconds += took, n_window += n_tokens;
    for (; n_window - window.front().second >= kWindow * n_texts; window.pop_front())
      seconds -= window.front().first, n_window -= window.front().second;
    if (n_window >= kWindow * n_texts) worst = std::max(worst, seconds / (n_window * kPlain / n_texts));
  }
  return worst;
}

// 200 texts and crowds of four, each with a cost and a share of proposals that hold drawn at random: none loses more
// than a fiftieth over any 512 tokens, whatever the first measurements say, and 3 % where the text changes all the
// time.
TEST(SpecDepth, NoWindowOfATextLosesMoreThanAFiftieth) {
  for (const Noise& noise : {Noise{0, 0, 1}, Noise{0, 0, 10}, Noise{0.05, 0.01, 1}, Noise{0.05, 0.01, 10}})
    for (const auto& [n_texts, most_first, changes] :
         {std::tuple{1, 0.0, false}, {4, 0.0, false}, {1, 0.6, false}, {4, 0.3, false}, {1, 0.6, true}})
      for (unsigned seed = 0; seed < 200; ++seed) {
        std::mt19937 rng(1000 + seed);
        std::uniform_real_distribution<double> uniform(0, 1);
        const double holds = 0.95 * uniform(rng), extra = 0.02 + 1.2 * uniform(rng) * uniform(rng);
        const double first = most_first * uniform(rng);
        EXPECT_LE(worst_window(seed, noise, {holds, changes}, {first, extra}, n_texts), 1 / (changes ? 0.97 : 0.98))
            << n_texts << " texts, seed " << seed << ", jitter " << noise.jitter << ", first times " << noise.first
            << ": " << holds << (changes ? " by turns" : "") << " hold, each costs " << extra << ", the first one "
            << first << " more";
      }
}

/// Steps without proposals of 10 ms, three before they are believed.
SpecCost cost_of_plain_steps() {
  SpecCost cost;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(cost.stale(), i < 3);
    cost.add(0, 0.01);
  }
  return cost;
}

TEST(SpecDepth, ATextWhoseProposalsHoldGetsThemAll) {
  SpecCost cost = cost_of_plain_steps();
  SpecDepth good, bad;
  const SpecDepth* const texts[] = {&good, &bad};
  EXPECT_TRUE(good.probes() && good.must_catch_up());
  for (int i = 0; i < 25; ++i) {
    const std::vector<int> asked = spec_depths(cost, 2, texts, 4);
    if (!good.must_catch_up() && asked[0] + asked[1] > 0)
      cost.add(asked[0] + asked[1], 0.01 + 2e-3 * (asked[0] + asked[1]));
    good.add(asked[0], asked[0], asked[0], {cost, 2, asked[1], 0.01 + 2e-3 * asked[0]});
    bad.add(asked[1], asked[1], 0, {cost, 2, asked[0], 0.01 + 2e-3 * asked[1]});
  }
  EXPECT_EQ(spec_depths(cost, 2, texts, 4), (std::vector<int>{4, 0}));
  EXPECT_TRUE(bad.paused());
}

TEST(SpecDepth, OneSlowStepDoesNotEndProposals) {
  SpecCost cost = cost_of_plain_steps();
  SpecDepth depth;
  const SpecDepth* const one[] = {&depth};
  for (int i = 0; i < 20; ++i) {
    if (!depth.must_catch_up()) cost.add(2, 0.012);
    depth.add(2, 2, 2, {cost, 1, 0, 0.012});
  }
  cost.add(2, 5);
  depth.add(2, 2, 2, {cost, 1, 0, 5});
  EXPECT_GT(spec_depths(cost, 1, one, 4)[0], 0);
}

/// A device records its steps again when it has too many: the first times of a number say nothing then, also where
/// there are two of them. Where they are the first of all, the text pauses once.
TEST(SpecDepth, FirstTimesThatWereSlowAreForgotten) {
  for (const int n_slow : {1, 2, 3})
    for (const int slow : {2, 3}) {  // proposals
      SpecCost cost = cost_of_plain_steps();
      SpecDepth depth;
      const SpecDepth* const one[] = {&depth};
      int n_left = n_slow, last = 0;
      for (int i = 0; i < 800; ++i) {
        last = cost.stale() ? last : spec_depths(cost, 1, one, 3)[0];
        const int asked = cost.stale() ? 0 : last;
        const double seconds = 0.01 + 5e-4 * asked + (asked == slow && n_left-- > 0 ? 0.05 * (1 + n_left) : 0);
        if (asked == 0 || !depth.must_catch_up()) cost.add(asked, seconds);
        depth.add(asked, asked, asked, {cost, 1, 0, seconds});
      }
      EXPECT_EQ(last, 3) << n_slow << " slow steps of " << slow << " proposals";
    }
}

TEST(SpecDepth, AStepWithoutProposalsIsMeasuredAgain) {
  SpecCost cost;
  SpecDepth depth;
  const SpecDepth* const one[] = {&depth};
  EXPECT_EQ(spec_depths(cost, 1, one, 4)[0], 0) << "nothing is known";
  cost = cost_of_plain_steps();
  int n = 0;
  for (; n < 200 && !cost.stale(); ++n) {
    cost.add(1, 0.0101);
    depth.add(1, 1, 1, {cost, 1, 0, 0.0101});
  }
  EXPECT_TRUE(n > 30 && n < 200) << n;
  EXPECT_EQ(spec_depths(cost, 1, one, 4)[0], 0);
  EXPECT_EQ(cost.paid(0, 1e-5), 0) << "a look-up that found nothing is free";
  EXPECT_EQ(cost.paid(0, 5e-3), 1) << "a draft that is not sure has run";
}

}  // namespace
}  // namespace ridge
