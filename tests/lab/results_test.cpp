#include "lab/store/results.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>

#include "cases/temp_dir.h"

namespace ridge::lab {
namespace {

std::vector<Row> rows_of(const std::filesystem::path& path) {
  std::vector<Row> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) rows.push_back(Row::parse(line));
  return rows;
}

TEST(Results, RowsAreAppendedToWhatIsThere) {
  TempDir dir;
  for (int run = 0; run < 2; ++run) {
    ResultsFile file = ResultsFile::open(dir / "r.jsonl").or_throw();
    file.add({{"run", run}, {"text", "line\nbreak"}});
  }
  const auto rows = rows_of(dir / "r.jsonl");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["run"], 0);
  EXPECT_EQ(rows[1]["text"], "line\nbreak");
}

TEST(Results, ARowIsOnDiskBeforeTheNextOne) {
  TempDir dir;
  ResultsFile file = ResultsFile::open(dir / "r.jsonl").or_throw();
  file.add({{"n", 1}});
  EXPECT_EQ(rows_of(dir / "r.jsonl").size(), 1u);
  file.add({{"n", 2}});
  EXPECT_EQ(rows_of(dir / "r.jsonl").size(), 2u);
}

TEST(Results, TextThatIsNotUtf8DoesNotLoseTheRow) {
  TempDir dir;
  ResultsFile file = ResultsFile::open(dir / "r.jsonl").or_throw();
  file.add({{"model", "caf\xe9"}});
  EXPECT_EQ(rows_of(dir / "r.jsonl").size(), 1u);
}

TEST(Results, WhatIsNotARegularFileIsRefusedAtOnce) {
  TempDir dir;
  EXPECT_FALSE(ResultsFile::open(dir.path()));
  EXPECT_FALSE(ResultsFile::open(dir / "none" / "r.jsonl"));
  const std::filesystem::path fifo = dir / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_FALSE(ResultsFile::open(fifo));
  EXPECT_FALSE(ResultsFile::open("/dev/null"));
}

TEST(Results, AnEmptyPathDropsRows) {
  ResultsFile file = ResultsFile::open("").or_throw();
  file.add({{"n", 1}});
}

TEST(Results, AFullDiskIsAnErrorNotASilentLoss) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_FALSE(ResultsFile::open("/dev/full"));
}

TEST(Results, ARowThatWasCutOffDoesNotTakeTheNextOneWithIt) {
  TempDir dir;
  dir.write("r.jsonl", "{\"n\": 1}\n{\"n\": 2, \"samples_us\": [1, ");
  ResultsFile::open(dir / "r.jsonl").or_throw().add({{"n", 3}});
  const std::vector<Row> rows = read_rows(dir / "r.jsonl").or_throw();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["n"], 1);
  EXPECT_EQ(rows[1]["n"], 3);
  std::ifstream aside(dir / "r.jsonl.cut");
  std::string line;
  ASSERT_TRUE(std::getline(aside, line));
  EXPECT_EQ(line, "{\"n\": 2, \"samples_us\": [1, ");
}

TEST(Results, ARowThatOnlyLacksItsLineEndStays) {
  TempDir dir;
  dir.write("r.jsonl", "{\"n\": 1}");
  ResultsFile::open(dir / "r.jsonl").or_throw().add({{"n", 2}});
  EXPECT_EQ(read_rows(dir / "r.jsonl").or_throw().size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(dir / "r.jsonl.cut"));
}

TEST(Results, WhatIsNotANumberIsNull) {
  EXPECT_TRUE(number(NAN).is_null());
  EXPECT_TRUE(number(INFINITY).is_null());
  EXPECT_EQ(number(1.5), 1.5);
}

TEST(Results, CommandLinesAreQuotedForAShell) {
  set_command_line({"ridge", "run", "-p", "it's a test", ""});
  EXPECT_EQ(command_line(), "ridge run -p 'it'\\''s a test' ''");
  set_command_line(
      {"/opt/bin/ridge", "sweep", "--store", "/tmp/a/lab.db", "-m", "/m/a.gguf", "--results", "/tmp/r.jsonl"});
  EXPECT_EQ(command_line(), "ridge sweep --store lab.db -m /m/a.gguf --results r.jsonl");
  set_command_line({"ridge", "profile", "--results=/tmp/r.jsonl", "--trace=/tmp/t.json"});
  EXPECT_EQ(command_line(), "ridge profile --results=r.jsonl --trace=/tmp/t.json");
  set_command_line({});
}

TEST(Results, ProvenanceNamesBuildMachineAndCommand) {
  set_command_line({"ridge", "info"});
  const Row row = provenance(2, 42);
  for (const char* field : {"date", "version", "build_commit", "compiler", "cpu", "command"})
    EXPECT_FALSE(row[field].get<std::string>().empty()) << field;
  EXPECT_EQ(row["n_threads"], 2);
  EXPECT_EQ(row["seed"], 42);
  EXPECT_EQ(row["date"].get<std::string>().size(), 20u);
  set_command_line({});
}

TEST(Results, RowsAreReadBackAndBrokenLinesAreNamed) {
  TempDir dir;
  EXPECT_TRUE(read_rows(dir / "missing.jsonl").or_throw().empty());
  EXPECT_TRUE(read_rows("").or_throw().empty());
  EXPECT_TRUE(read_rows(dir.write("empty.jsonl", "")).or_throw().empty());
  ResultsFile file = ResultsFile::open(dir / "rows.jsonl").or_throw();
  file.add({{"a", 1}});
  file.add({{"b", "x\n"}});
  const std::vector<Row> rows = read_rows(dir / "rows.jsonl").or_throw();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["b"], "x\n");
  const auto broken = read_rows(dir.write("broken.jsonl", "{\"a\":1}\n{\"a\":"));
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("line 2"), std::string::npos);
  EXPECT_FALSE(read_rows(dir.write("array.jsonl", "[1]\n")));
}

}  // namespace
}  // namespace ridge::lab
