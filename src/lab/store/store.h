// The results store: rows in one SQLite file, each under the key of its cell.
//
// A row is the JSON object that results/*.jsonl hold. Its field `cell` identifies the measurement; rows
// without one are identified by all of their fields. A row whose `state` is "failed" or "skipped" says `reason` and has
// no times; without `state` it is done. Adding a row replaces the one of the same cell. Every row is on disk when add()
// returns: a process that is killed, or a disk that is full, loses at most the row that was being written, and the file
// stays readable.
//
//     rows(key TEXT PRIMARY KEY, kind TEXT, state TEXT, date TEXT, row TEXT)      in the order of rowid
#pragma once

#include <map>
#include <memory>

#include "lab/store/results.h"

struct sqlite3;

namespace ridge::lab {

/// Sorted, compact JSON of row["cell"], or of the row without a cell: equal for equal cells.
std::string cell_key(const Row& row);

/// "done", "failed" or "skipped".
std::string row_state(const Row& row);
/// Its field `kind`; "decode" for rows of bench decode, which have llama-bench's fields and no kind.
std::string row_kind(const Row& row);
/// When it was measured: its field `date`, `test_time` in rows of bench decode.
std::string row_date(const Row& row);

class Store {
 public:
  /// Opens a store; `create` makes one where there is no file, or an empty one. Refuses a path that is not a
  /// regular file (usage), and a file that is not a store, has a newer version or is damaged (bad_file).
  static Result<Store> open(const std::filesystem::path& path, bool create);

  /// Throws Error(failure) when the row could not be written: the disk is full, the file is read-only or locked.
  void add(const Row& row);

  /// All rows in the order they were added; bad_file when one is no JSON object.
  Result<std::vector<Row>> rows() const;
  /// The state of every cell, by key.
  Result<std::map<std::string, std::string>> states() const;

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  Store(std::unique_ptr<sqlite3, Close> db, std::filesystem::path path) : db_(std::move(db)), path_(std::move(path)) {}

  std::unique_ptr<sqlite3, Close> db_;
  std::filesystem::path path_;
};

}  // namespace ridge::lab
