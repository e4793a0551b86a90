// How many proposals pay: what steps cost, and how long texts pause.
#include <gtest/gtest.h>

#include "engine/decode/text.h"

namespace ridge {
namespace {

/// Steps of n_texts that take 10 ms, `extra` seconds more a proposal, of which `holds` in ten hold; the seconds that n
/// tokens take over plain steps'.
double relative_seconds(int holds, int n_tokens, double extra = 1e-3, int n_texts = 1) {
  SpecCost cost;
  std::vector<SpecDepth> depths(static_cast<size_t>(n_texts));
  std::vector<const SpecDepth*> texts;
  for (const SpecDepth& depth : depths) texts.push_back(&depth);
  double seconds = 0;
  int n = 0, n_tried = 0;
  while (n < n_tokens) {
    const std::vector<int> asked = spec_depths(cost, n_texts, texts, 8);
    int n_proposed = 0;
    bool late = false;
    for (size_t i = 0; i < depths.size(); ++i)
      n_proposed += asked[i], late = late || (asked[i] > 0 && depths[i].must_catch_up());
    const double took = 0.01 + n_proposed * extra;
    if (!late) cost.add(n_proposed, took);
    for (size_t i = 0; i < depths.size(); ++i) {
      int n_held = 0;
      while (n_held < asked[i] && (7 * n_tried++) % 10 < holds) ++n_held;
      // Each text loses by its own proposals.
      depths[i].add(asked[i], asked[i], n_held, cost, n_texts, 0.01 + asked[i] * extra);
      n += 1 + n_held;
    }
    seconds += took;
  }
  return seconds / (n * 0.01 / n_texts);
}

TEST(SpecDepth, FollowsWhatPays) {
  EXPECT_LT(relative_seconds(10, 1000), 0.25) << "all hold: 9 tokens for 18 ms";
  EXPECT_LT(relative_seconds(6, 1000), 0.75) << "six of ten hold";
  EXPECT_LT(relative_seconds(0, 1000), 1.02) << "none holds";
  EXPECT_LT(relative_seconds(0, 256), 1.03) << "none holds in a short text";
  EXPECT_LT(relative_seconds(6, 256, 1e-2), 1.02) << "a proposal costs a step";
  EXPECT_LT(relative_seconds(2, 256, 3e-3), 1.03) << "two of ten hold, a proposal costs a third of a step";
  EXPECT_LT(relative_seconds(10, 4000, 1e-3, 4), 0.5) << "four texts: 36 tokens for 42 ms";
  EXPECT_LT(relative_seconds(3, 4000, 3e-3, 4), 1.03) << "a proposal promises less than the texts' tokens cost";
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
      depth.add(asked, asked, held, cost, 1, took);
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

TEST(SpecDepth, ATextWhoseProposalsHoldGetsThemAll) {
  SpecCost cost;
  cost.add(0, 0.01);
  SpecDepth good, bad;
  const SpecDepth* const texts[] = {&good, &bad};
  EXPECT_TRUE(good.probes() && good.must_catch_up());
  for (int i = 0; i < 25; ++i) {
    const std::vector<int> asked = spec_depths(cost, 2, texts, 4);
    if (!good.must_catch_up() && asked[0] + asked[1] > 0)
      cost.add(asked[0] + asked[1], 0.01 + 2e-3 * (asked[0] + asked[1]));
    good.add(asked[0], asked[0], asked[0], cost, 2, 0.01 + 2e-3 * asked[0]);
    bad.add(asked[1], asked[1], 0, cost, 2, 0.01 + 2e-3 * asked[1]);
  }
  EXPECT_EQ(spec_depths(cost, 2, texts, 4), (std::vector<int>{4, 0}));
  EXPECT_TRUE(bad.paused());
}

TEST(SpecDepth, OneSlowStepDoesNotEndProposals) {
  SpecCost cost;
  SpecDepth depth;
  const SpecDepth* const one[] = {&depth};
  cost.add(0, 0.01);
  for (int i = 0; i < 20; ++i) {
    if (!depth.must_catch_up()) cost.add(2, 0.012);
    depth.add(2, 2, 2, cost, 1, 0.012);
  }
  cost.add(2, 5);
  depth.add(2, 2, 2, cost, 1, 5);
  EXPECT_GT(spec_depths(cost, 1, one, 4)[0], 0);
}

TEST(SpecDepth, AStepWithoutProposalsIsMeasuredAgain) {
  SpecCost cost;
  SpecDepth depth;
  const SpecDepth* const one[] = {&depth};
  EXPECT_EQ(spec_depths(cost, 1, one, 4)[0], 0) << "nothing is known";
  cost.add(0, 0.01);
  int n = 0;
  for (; n < 200 && !cost.stale(); ++n) {
    cost.add(1, 0.0101);
    depth.add(1, 1, 1, cost, 1, 0.0101);
  }
  EXPECT_TRUE(n > 30 && n < 200) << n;
  EXPECT_EQ(spec_depths(cost, 1, one, 4)[0], 0);
  EXPECT_EQ(cost.paid(0, 1e-5), 0) << "a look-up that found nothing is free";
  EXPECT_EQ(cost.paid(0, 5e-3), 1) << "a draft that is not sure has run";
}

}  // namespace
}  // namespace ridge
