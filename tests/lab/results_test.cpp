#include "lab/rows/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>

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
  set_command_line({"/opt/bin/ridge", "eval", "kld", "-m", "/m/a.gguf", "--results", "/tmp/r.jsonl"});
  EXPECT_EQ(command_line(), "ridge eval kld -m /m/a.gguf --results r.jsonl");
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

TEST(Results, AFileThatBeginsWithSomethingElseIsLeftAlone) {
  TempDir dir;
  for (const char* text : {"SQLite format 3", "GGUF\n{\"n\": 1", "\n\n[1, 2"}) {
    const auto refused = ResultsFile::open(dir.write("other", text));
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("does not begin with a row"));
    std::ifstream file(dir / "other");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
  EXPECT_THAT(dir.names(), testing::ElementsAre("other"));
}

Row cell_row(int batch, double us) {
  return {{"kind", "op"}, {"cell", {{"op", "gemv"}, {"batch", batch}}}, {"median_us", us}};
}

TEST(Results, KeysDoNotDependOnTheOrderOfFields) {
  const Row a = Row::parse(R"({"kind":"op","cell":{"x":1,"y":{"b":2,"a":1.5}},"median_us":3})");
  const Row b = Row::parse(R"({"median_us":4,"cell":{"y":{"a":1.5,"b":2},"x":1}})");
  EXPECT_EQ(cell_key(a), cell_key(b));
  EXPECT_EQ(cell_key(a), R"({"x":1,"y":{"a":1.5,"b":2}})");
  EXPECT_NE(cell_key(a), cell_key(Row::parse(R"({"cell":{"x":1,"y":{"b":2,"a":1}}})")));
  EXPECT_EQ(cell_key(Row::parse(R"({"b":1,"a":2})")), R"({"a":2,"b":1})");
  EXPECT_NO_THROW(cell_key(Row{{"path", "\xff\xfe"}}));
  EXPECT_EQ(row_state({{"kind", "op"}}), "done");
  EXPECT_EQ(row_state({{"state", "skipped"}}), "skipped");
}

TEST(Store, ALaterRowOfACellReplacesTheEarlierOne) {
  const TempDir dir;
  const auto path = dir / "s.jsonl";
  const auto batches_and_times = [](const std::vector<Row>& rows) {
    std::vector<std::pair<int, double>> found;
    for (const Row& row : rows) found.emplace_back(row["cell"].value("batch", 0), row.value("median_us", 0.0));
    return found;
  };
  const std::vector<std::pair<int, double>> expected{{1, 7}, {2, 6}};
  Store store = Store::open(path).or_throw();
  for (const Row& row : {cell_row(1, 5), cell_row(2, 6), cell_row(1, 7)}) store.add(row);
  EXPECT_EQ(batches_and_times(store.rows()), expected);
  EXPECT_EQ(batches_and_times(Store::open(path).or_throw().rows()), expected);
  EXPECT_EQ(rows_of(path).size(), 3u) << "lines are added, never taken away";
  for (int i = 0; i < 2; ++i) store.add({{"kind", "bandwidth"}});
  EXPECT_EQ(Store::open(path).or_throw().rows().size(), 4u) << "a row without a cell stands for itself";
  EXPECT_FALSE(Store::open(dir.write("array.jsonl", "{}\n[1]\n")));
  EXPECT_TRUE(Store::open("").or_throw().rows().empty());
}

TEST(Store, TwoProgramsMayAddAtOnce) {
  const TempDir dir;
  Store first = Store::open(dir / "s.jsonl").or_throw(), second = Store::open(dir / "s.jsonl").or_throw();
  for (int i = 0; i < 10; ++i) (i % 2 ? first : second).add(cell_row(i, i));
  EXPECT_EQ(first.rows().size(), 5u);
  EXPECT_EQ(Store::open(dir / "s.jsonl").or_throw().rows().size(), 10u);
}

TEST(Store, AKilledProcessLeavesEveryRowThatWasTaken) {
  for (const int after_rows : {1, 7, 40}) {
    const TempDir dir;
    int channel[2];
    ASSERT_EQ(pipe(channel), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Store store = Store::open(dir / "s.jsonl").or_throw();
      for (int i = 0;; ++i) {
        store.add(cell_row(i, i));
        if (write(channel[1], "x", 1) != 1) _exit(1);
      }
    }
    close(channel[1]);
    int taken = 0;
    char byte = 0;
    while (taken < after_rows && read(channel[0], &byte, 1) == 1) ++taken;
    ASSERT_EQ(taken, after_rows);
    ASSERT_EQ(kill(child, SIGKILL), 0);  // in the middle of a later row, more often than not
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    while (read(channel[0], &byte, 1) == 1) ++taken;
    close(channel[0]);
    const std::vector<Row> rows = Store::open(dir / "s.jsonl").or_throw().rows();
    ASSERT_GE(int(rows.size()), taken);
    ASSERT_LE(int(rows.size()), taken + 1) << "the row whose word did not come through";
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i]["cell"]["batch"], int(i));
  }
}

}  // namespace
}  // namespace ridge::lab
