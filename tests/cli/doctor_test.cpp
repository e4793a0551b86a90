// ridge doctor: a verdict and an exit code that agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/run_program.h"

namespace ridge {
namespace {

TEST(Doctor, VerdictAndExitCodeAgreeAndABadFileIsAProblem) {
  TempDir dir;
  dir.write("rows.jsonl", "{");
  const Outcome text = run_ridge({"doctor", "--results", dir.path().native()});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, testing::HasSubstr("problem  ceilings      results file "));
  EXPECT_THAT(text.out, testing::ContainsRegex("\nNOT GREEN \\([^)]*ceilings[^)]*\\): [0-9]+ checks"));

  const Outcome json = run_ridge({"doctor", "--json"});
  const auto row = nlohmann::json::parse(json.out);
  EXPECT_EQ(json.code, row["green"].get<bool>() ? 0 : 1);
  for (const auto& check : row["checks"])
    if (check["finding"] == "problem") {
      EXPECT_NE(check["advice"], "") << check;
    }
}

}  // namespace
}  // namespace ridge
