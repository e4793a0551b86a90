// The results store: what is added is there, whatever happens to the process, the disk or the file.
#include "lab/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iterator>

#include "cases/temp_dir.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;

Row cell_row(int batch, double us) {
  return {{"kind", "op"}, {"cell", {{"op", "gemv"}, {"batch", batch}}}, {"median_us", us}};
}

void run_sql(const std::filesystem::path& path, const char* sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 0, nullptr);
  char* message = nullptr;
  EXPECT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, &message), SQLITE_OK) << message;
  sqlite3_close(db);
}

Failure refused(const std::filesystem::path& path) {
  auto store = Store::open(path, true);
  if (store) {
    auto rows = store->rows();
    EXPECT_FALSE(rows) << "opened and read " << path;
    return rows ? Failure{} : rows.error();
  }
  return store.error();
}

TEST(Store, RowsComeBackInOrderAndACellIsReplaced) {
  const TempDir dir;
  {
    Store store = Store::open(dir / "s.db", true).or_throw();
    store.add(cell_row(1, 5));
    store.add(cell_row(2, 6));
    store.add({{"kind", "bandwidth"}, {"read_gb_s", 30.5}});
  }
  Store store = Store::open(dir / "s.db", false).or_throw();
  EXPECT_EQ(store.rows().or_throw().size(), 3u);
  Row again = cell_row(1, 7);
  again["state"] = "failed";
  store.add(again);
  const std::vector<Row> rows = store.rows().or_throw();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["cell"]["batch"], 2);
  EXPECT_EQ(rows[2]["median_us"], 7.0);
  const auto states = store.states().or_throw();
  EXPECT_EQ(states.at(cell_key(cell_row(1, 0))), "failed");
  EXPECT_EQ(states.at(cell_key(cell_row(2, 0))), "done");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"s.db"}) << "no journal is left";
}

TEST(Store, KeysDoNotDependOnTheOrderOfFields) {
  const Row a = Row::parse(R"({"kind":"op","cell":{"x":1,"y":{"b":2,"a":1.5}},"median_us":3})");
  const Row b = Row::parse(R"({"median_us":4,"cell":{"y":{"a":1.5,"b":2},"x":1}})");
  EXPECT_EQ(cell_key(a), cell_key(b));
  EXPECT_EQ(cell_key(a), R"({"x":1,"y":{"a":1.5,"b":2}})");
  EXPECT_NE(cell_key(a), cell_key(Row::parse(R"({"cell":{"x":1,"y":{"b":2,"a":1}}})")));
  // A row without a cell is identified by all it says.
  EXPECT_EQ(cell_key(Row::parse(R"({"b":1,"a":2})")), R"({"a":2,"b":1})");
  EXPECT_NO_THROW(cell_key(Row{{"path", "\xff\xfe"}}));
}

TEST(Store, RowsHaveAKindAndAState) {
  EXPECT_EQ(row_kind({{"kind", "op"}}), "op");
  EXPECT_EQ(row_kind({{"avg_ts", 3.5}}), "decode");
  EXPECT_EQ(row_state({{"kind", "op"}}), "done");
  EXPECT_EQ(row_state({{"state", "skipped"}}), "skipped");
}

TEST(Store, TextThatIsNotUtf8DoesNotLoseTheRow) {
  const TempDir dir;
  Store store = Store::open(dir / "s.db", true).or_throw();
  store.add({{"model", "caf\xe9"}, {"nul", std::string("a\0b", 3)}});
  const std::vector<Row> rows = store.rows().or_throw();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["nul"], std::string("a\0b", 3));
}

TEST(Store, WhatIsNoStoreIsRefused) {
  const TempDir dir;
  const auto text = dir.write("rows.jsonl", "{\"kind\":\"op\"}\n");
  EXPECT_EQ(refused(text).kind, ErrorKind::bad_file);
  EXPECT_THAT(refused(text).message, HasSubstr("not a SQLite file"));
  EXPECT_THAT(refused(text).message, HasSubstr("rows.jsonl"));

  run_sql(dir / "other.db", "CREATE TABLE people (name TEXT)");
  EXPECT_EQ(refused(dir / "other.db").kind, ErrorKind::bad_file);
  EXPECT_THAT(refused(dir / "other.db").message, HasSubstr("of another program"));

  EXPECT_EQ(refused(dir.path()).kind, ErrorKind::usage);
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(refused(dir / "fifo").kind, ErrorKind::usage);
  EXPECT_EQ(refused(dir / "none" / "s.db").kind, ErrorKind::usage);
  const auto missing = Store::open(dir / "missing.db", false);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("no such file"));
}

TEST(Store, EditedStoresAreRefused) {
  const TempDir dir;
  int n = 0;
  const auto edited = [&](const char* sql) {
    const auto path = dir / fmt::format("edited-{}.db", n++);
    Store::open(path, true).or_throw().add(cell_row(1, 5));
    run_sql(path, sql);
    return refused(path);
  };
  for (const char* sql :
       {"CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END", "CREATE VIEW v AS SELECT * FROM rows",
        "CREATE TABLE more (x)", "ALTER TABLE rows ADD COLUMN x TEXT", "DROP TABLE rows",
        "DROP TABLE rows; CREATE VIEW rows AS SELECT 1 AS row", "CREATE INDEX i ON rows (kind)"}) {
    const Failure failure = edited(sql);
    EXPECT_EQ(failure.kind, ErrorKind::bad_file) << sql;
    EXPECT_THAT(failure.message, HasSubstr("tables are not those of a store")) << sql;
  }
  EXPECT_THAT(edited("PRAGMA user_version=2").message, HasSubstr("version 2, this program knows 1"));
  EXPECT_THAT(edited("UPDATE rows SET row='[1]'").message, HasSubstr("row 1 is not a JSON object"));
  EXPECT_THAT(edited("UPDATE rows SET row='{\"a\":'").message, HasSubstr("row 1 is not a JSON object"));
}

TEST(Store, DamagedFilesEndInAMessage) {
  const TempDir dir;
  const auto whole = dir / "whole.db";
  {
    Store store = Store::open(whole, true).or_throw();
    for (int i = 0; i < 200; ++i) store.add(cell_row(i, i));
  }
  std::ifstream file(whole, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  ASSERT_GT(bytes.size(), 8192u);
  const Failure cut = refused(dir.write("cut.db", std::string_view(bytes).substr(0, bytes.size() / 2)));
  EXPECT_EQ(cut.kind, ErrorKind::bad_file) << cut.message;
  // Every place of the file, a page's worth of noise at a time: rows, or a message; never a crash, never half of it.
  for (size_t at = 0; at < bytes.size(); at += 512) {
    std::string noise = bytes;
    for (size_t i = at; i < std::min(at + 64, noise.size()); ++i) noise[i] = char(i * 131 + 7);
    const auto store = Store::open(dir.write("noise.db", noise), true);
    if (!store) {
      EXPECT_TRUE(store.error().kind == ErrorKind::bad_file || store.error().kind == ErrorKind::failure)
          << store.error().message;
      continue;
    }
    const auto rows = store->rows();
    if (rows) {
      EXPECT_LE(rows->size(), 200u);
    }
  }
}

TEST(Store, AKilledProcessLeavesEveryRowThatWasTaken) {
  for (const int after_rows : {1, 7, 40}) {
    const TempDir dir;
    int channel[2];
    ASSERT_EQ(pipe(channel), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Store store = Store::open(dir / "s.db", true).or_throw();
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
    Store store = Store::open(dir / "s.db", false).or_throw();
    const std::vector<Row> rows = store.rows().or_throw();
    ASSERT_GE(int(rows.size()), taken);
    ASSERT_LE(int(rows.size()), taken + 1) << "the row whose word did not come through";
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i]["cell"]["batch"], int(i));
    store.add(cell_row(-1, 0));
    EXPECT_EQ(store.rows().or_throw().size(), rows.size() + 1);
  }
}

TEST(Store, AFullDiskIsAFailureThatLosesNothing) {
  const TempDir dir;
  Store store = Store::open(dir / "s.db", true).or_throw();
  store.add(cell_row(1, 5));
  // No file may grow beyond 64 KiB: what a full disk looks like to SQLite.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto on_limit = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  int added = 1;
  std::string message;
  ErrorKind kind{};
  try {
    for (; added < 1000; ++added) {
      Row row = cell_row(added + 1, 5);
      row["samples_us"] = std::vector<double>(200, 1.25);
      store.add(row);
    }
  } catch (const Error& error) {
    message = error.what();
    kind = error.kind();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, on_limit);
  EXPECT_EQ(kind, ErrorKind::failure);
  EXPECT_THAT(message, HasSubstr("cannot store a row"));
  EXPECT_THAT(message, HasSubstr("s.db"));
  EXPECT_GT(added, 5);
  EXPECT_LT(added, 1000);
  EXPECT_EQ(int(store.rows().or_throw().size()), added);
  store.add(cell_row(0, 5));  // space is back
  EXPECT_EQ(int(Store::open(dir / "s.db", false).or_throw().rows().or_throw().size()), added + 1);
}

TEST(Store, TwoProgramsMayAddAtOnce) {
  const TempDir dir;
  Store first = Store::open(dir / "s.db", true).or_throw();
  Store second = Store::open(dir / "s.db", true).or_throw();
  for (int i = 0; i < 10; ++i) (i % 2 ? first : second).add(cell_row(i, i));
  EXPECT_EQ(first.rows().or_throw().size(), 10u);
  EXPECT_EQ(second.states().or_throw().size(), 10u);
}

}  // namespace
}  // namespace ridge::lab
