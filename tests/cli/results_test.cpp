// ridge results: rows into a store and out again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/run_program.h"

namespace ridge {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Results, ImportAndExportGiveTheSameRowsBack) {
  const TempDir dir;
  const std::string lines =
      "{\"kind\":\"op\",\"cell\":{\"batch\":1},\"median_us\":4.25}\n"
      "{\"kind\":\"bandwidth\",\"read_gb_s\":30.125,\"name\":\"caf\xc3\xa9\"}\n"
      "{\"avg_ts\":2.5,\"n_gen\":64}\n";
  const std::string file = dir.write("rows.jsonl", lines).native(), store = (dir / "lab.db").native();
  const Outcome in = run_ridge({"results", "import", file, "--store", store});
  EXPECT_EQ(in.code, 0) << in.err;
  EXPECT_THAT(in.out, HasSubstr("3 rows added"));
  const Outcome out = run_ridge({"results", "export", "--store", store});
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_EQ(out.out, lines);
  const Outcome again = run_ridge({"results", "import", file, "--store", store, "--json"});
  EXPECT_EQ(json::parse(again.out), json::parse(R"({"added":0,"already_there":3})"));
  EXPECT_EQ(run_ridge({"results", "export", "--store", store}).out, lines);
  const Outcome kind = run_ridge({"results", "export", "--store", store, "--kind", "decode", "--json"});
  ASSERT_EQ(json::parse(kind.out).size(), 1u);
  EXPECT_EQ(json::parse(kind.out)[0]["n_gen"], 64);
}

TEST(Results, WrongFilesAreRefused) {
  const TempDir dir;
  const std::string text = dir.write("rows.jsonl", "{\"kind\":\"op\"}\n").native();
  const std::string broken = dir.write("broken.jsonl", "{\"kind\":\"op\"}\n{\"ki").native();
  const std::string store = (dir / "lab.db").native();
  const auto code = [](std::vector<std::string> args, const std::string& says) {
    args.insert(args.begin(), "results");
    const Outcome outcome = run_ridge(args);
    EXPECT_THAT(outcome.err, HasSubstr(says));
    return outcome.code;
  };
  EXPECT_EQ(code({"export", "--store", text}, "not a SQLite file"), 4);
  EXPECT_EQ(code({"export", "--store", store}, "no such file"), 2);
  EXPECT_EQ(code({"export"}, "--store is required"), 2);
  EXPECT_EQ(code({"import", text, "--store", text}, "not a SQLite file"), 4);
  EXPECT_EQ(code({"import", broken, "--store", store}, "line 2 is not a JSON object"), 4);
  EXPECT_EQ(code({"import", (dir / "none").native(), "--store", store}, "no such file"), 2);
  EXPECT_EQ(code({"import", text, "--store", dir.path().native()}, "not a regular file"), 2);
  EXPECT_FALSE(std::filesystem::exists(store)) << "nothing was imported, so there is no store";
}

}  // namespace
}  // namespace ridge
