// ridge report: hands its files to the script and the script's exit code back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/paths.h"
#include "cli/run_program.h"

namespace ridge {
namespace {

using testing::HasSubstr;

const std::string kStoredRows = RIDGE_SOURCE_DIR "/results";
constexpr int kMissing = 6;

TEST(Report, DrawsTheStoredRowsIntoOnePage) {
  TempDir dir;
  const Outcome outcome = run_ridge({"report", "--results", kStoredRows, "-o", (dir / "out").native()});
  if (outcome.code == kMissing) GTEST_SKIP() << "no matplotlib";
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, (dir / "out/index.html").native() + "\n");
  EXPECT_THAT(slurp(dir / "out/index.html"), HasSubstr("</html>"));
  EXPECT_THAT(slurp(dir / "out/quality.csv"), HasSubstr("rotor-3"));
}

TEST(Report, RefusesWhatHoldsNoRows) {
  TempDir dir;
  const std::string bad = dir.write("bad.jsonl", "{\"kind\":\"op\"}\n{").native();
  const Outcome outcome = run_ridge({"report", "--results", bad, "-o", (dir / "out").native()});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("bad.jsonl: line 2: not a JSON object"));
}

TEST(Report, NamesWhatIsMissingWithoutPython) {
  TempDir dir;
  const Outcome outcome = run_ridge({"report", "--results", kStoredRows, "-o", (dir / "out").native()},
                                    {.env = {"PATH=" + (dir / "nothing").native()}});
  EXPECT_EQ(outcome.code, kMissing);
  EXPECT_THAT(outcome.err, HasSubstr("apt-get install --no-install-recommends python3-matplotlib"));
}

}  // namespace
}  // namespace ridge
