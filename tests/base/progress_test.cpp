#include "base/progress.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ridge {
namespace {

TEST(Progress, DurationsAreShort) {
  EXPECT_EQ(short_duration(0), "0s");
  EXPECT_EQ(short_duration(11.2), "12s");
  EXPECT_EQ(short_duration(187), "3m07s");
  EXPECT_EQ(short_duration(3723), "1h02m");
}

TEST(Progress, WhatIsNotATimeIsAQuestionMark) {
  for (const double seconds : {-1.0, double(NAN), double(INFINITY), 1e300}) EXPECT_EQ(short_duration(seconds), "?");
}

TEST(Progress, EtaIsTheRestAtTheRateSoFar) {
  EXPECT_EQ(progress_line("eval", 5, 20, 10, "", 200), "eval [#####...............]  25% 5/20, 30s left");
}

TEST(Progress, NoEtaBeforeTheFirstStepOrAfterTheLast) {
  EXPECT_EQ(progress_line("eval", 0, 20, 10, "", 200).find("left"), std::string::npos);
  EXPECT_EQ(progress_line("eval", 20, 20, 10, "", 200).find("left"), std::string::npos);
}

TEST(Progress, CountsPastTheTotalStayInsideTheBar) {
  EXPECT_EQ(progress_line("x", 30, 20, 1, "", 200), "x [####################] 100% 30/20");
}

TEST(Progress, LinesFitTheTerminal) {
  EXPECT_LT(progress_line("label", 5, 20, 10, std::string(500, 'd'), 80).size(), 80u);
}

TEST(Progress, UnknownTotalsHaveNoBar) { EXPECT_EQ(progress_line("read", 7, 0, 3, "tokens", 80), "read 7 tokens"); }

}  // namespace
}  // namespace ridge
