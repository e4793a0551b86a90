#include "lab/store/store.h"

#include <sqlite3.h>

#include <cstdint>

#include "base/json.h"

namespace ridge::lab {
namespace {

constexpr int kApplicationId = 0x52694467;  // "RiDg", in the file's header
constexpr int kVersion = 1;
constexpr int kMaxRowBytes = 1 << 26;
constexpr int kBusyMs = 10000;  // another process may be adding a row
constexpr const char* kTable =
    "CREATE TABLE rows (key TEXT PRIMARY KEY NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, date TEXT NOT NULL, "
    "row TEXT NOT NULL) STRICT";

/// A prepared statement; freed at the end. `code()` is what the last call of SQLite answered.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { code_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int place, const std::string& text) {
    if (code_ == SQLITE_OK)
      code_ = sqlite3_bind_text64(statement_, place, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  /// True while there is a row; then code() is SQLITE_DONE, or says what went wrong.
  bool next() {
    if (code_ == SQLITE_OK || code_ == SQLITE_ROW) code_ = sqlite3_step(statement_);
    return code_ == SQLITE_ROW;
  }
  int code() const { return code_; }
  bool done() const { return code_ == SQLITE_DONE; }

  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes ? std::string(bytes, size_t(sqlite3_column_bytes(statement_, column))) : std::string();
  }
  int64_t whole(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
};

int execute(sqlite3* db, const std::string& sql) { return sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr); }

std::string reason(sqlite3* db) { return sqlite3_errmsg(db); }

/// Why a store could not be opened or read: what the file is to blame for is bad_file.
Failure read_failure(sqlite3* db, const std::filesystem::path& path) {
  switch (sqlite3_errcode(db)) {
    case SQLITE_NOTADB:
      return {ErrorKind::bad_file, four_parts("results store", path.native(), "not a SQLite file",
                                              "`ridge results import` takes rows from JSON lines")};
    case SQLITE_CORRUPT:
    case SQLITE_FORMAT:
    case SQLITE_SCHEMA:
    case SQLITE_ERROR:
    case SQLITE_TOOBIG:
    case SQLITE_MISMATCH:
      return {ErrorKind::bad_file, four_parts("results store", path.native(), "damaged: " + reason(db),
                                              "name another file; `sqlite3 FILE .recover` may save its rows")};
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return {ErrorKind::failure, four_parts("results store", path.native(), "another program keeps it locked", "")};
    default: return {ErrorKind::failure, four_parts("cannot read the results store", path.native(), reason(db), "")};
  }
}

/// A new store in an empty database. Two processes that start at once: the second waits, and finds the table.
int make_table(sqlite3* db) {
  const int code = execute(db, fmt::format("BEGIN IMMEDIATE; PRAGMA application_id={}; PRAGMA user_version={}; {}; "
                                           "COMMIT",
                                           kApplicationId, kVersion, kTable));
  if (code != SQLITE_OK) execute(db, "ROLLBACK");
  return code;
}

Result<int64_t> pragma(sqlite3* db, const std::filesystem::path& path, const char* sql) {
  Statement statement(db, sql);
  if (!statement.next()) return read_failure(db, path);
  return statement.whole(0);
}

/// How many tables, indexes, views and triggers there are, and whether they are a store's. Anything else than the one
/// table could run code of the file's on our rows.
struct Schema {
  int n_objects = 0;
  bool ours = true;
};
Result<Schema> read_schema(sqlite3* db, const std::filesystem::path& path) {
  Schema schema;
  Statement statement(db, "SELECT name, sql FROM sqlite_schema");
  while (statement.next()) {
    ++schema.n_objects;
    const std::string name = statement.text(0), sql = statement.text(1);
    schema.ours &= (name == "rows" && sql == kTable) || (name == "sqlite_autoindex_rows_1" && sql.empty());
  }
  if (!statement.done()) return read_failure(db, path);
  return schema;
}

Status check_store(sqlite3* db, const std::filesystem::path& path) {
  RIDGE_TRY(const int64_t id, pragma(db, path, "PRAGMA application_id"));
  RIDGE_TRY(const int64_t version, pragma(db, path, "PRAGMA user_version"));
  if (id != kApplicationId)
    return bad_file("results store {}: a SQLite file of another program (name another file)", path.native());
  if (version != kVersion)
    return bad_file("results store {}: version {}, this program knows {} (use the program that wrote it)",
                    path.native(), version, kVersion);
  RIDGE_TRY(const Schema schema, read_schema(db, path));
  if (!schema.ours || schema.n_objects != 2)
    return bad_file("results store {}: its tables are not those of a store (was it edited? name another file)",
                    path.native());
  Statement check(db, "PRAGMA quick_check(1)");
  if (!check.next()) return read_failure(db, path);
  if (check.text(0) != "ok")
    return bad_file("results store {}: damaged: {} (name another file; `sqlite3 FILE .recover` may save its rows)",
                    path.native(), check.text(0));
  return {};
}

}  // namespace

std::string cell_key(const Row& row) {
  const auto cell = row.find("cell");
  const nlohmann::json sorted = nlohmann::json::parse(json_text(cell != row.end() ? *cell : row));
  return sorted.dump();
}

std::string row_state(const Row& row) {
  const std::string state = text_in(row, "state");
  return state.empty() ? "done" : state;
}

std::string row_kind(const Row& row) {
  const std::string kind = text_in(row, "kind");
  return kind.empty() ? "decode" : kind;
}

std::string row_date(const Row& row) {
  const std::string date = text_in(row, "date");
  return date.empty() ? text_in(row, "test_time") : date;
}

void Store::Close::operator()(sqlite3* db) const { sqlite3_close_v2(db); }

Result<Store> Store::open(const std::filesystem::path& path, bool create) {
  const auto refuse = [&](std::string_view why) {
    return wrong_field("store", "{}",
                       four_parts("cannot open the results store", path.native(), why, "name another file"));
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool exists = std::filesystem::exists(status);
  if (!exists && !create) return refuse("no such file");
  // SQLite would wait on a FIFO.
  if (exists && !std::filesystem::is_regular_file(status)) return refuse("not a regular file");

  sqlite3* opened = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0);
  const int code = sqlite3_open_v2(path.c_str(), &opened, flags, nullptr);
  std::unique_ptr<sqlite3, Close> db(opened);
  if (code != SQLITE_OK) return refuse(db ? reason(db.get()) : "out of memory");
  sqlite3_busy_timeout(db.get(), kBusyMs);
  sqlite3_limit(db.get(), SQLITE_LIMIT_LENGTH, kMaxRowBytes);
  // The file is untrusted: nothing of its schema may run, pages are checked as they are read.
  sqlite3_db_config(db.get(), SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db.get(), SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  execute(db.get(), "PRAGMA cell_size_check=ON");
  execute(db.get(), "PRAGMA synchronous=EXTRA");  // a row that add() took survives a loss of power

  RIDGE_TRY(const Schema schema, read_schema(db.get(), path));
  RIDGE_TRY(const int64_t id, pragma(db.get(), path, "PRAGMA application_id"));
  if (schema.n_objects == 0 && id == 0 && create && make_table(db.get()) != SQLITE_OK) {
    RIDGE_TRY(const Schema again, read_schema(db.get(), path));
    if (again.n_objects == 0)
      return fail(ErrorKind::failure, "{}",
                  four_parts("cannot create the results store", path.native(), reason(db.get()),
                             "free space or name another file"));
  }
  RIDGE_TRY_STATUS(check_store(db.get(), path));
  return Store(std::move(db), path);
}

void Store::add(const Row& row) {
  const std::string date = row_date(row);
  Statement statement(db_.get(), "INSERT OR REPLACE INTO rows (key, kind, state, date, row) VALUES (?, ?, ?, ?, ?)");
  statement.bind(1, cell_key(row));
  statement.bind(2, row_kind(row));
  statement.bind(3, row_state(row));
  statement.bind(4, date.empty() ? utc_now() : date);
  statement.bind(5, json_text(row));
  statement.next();
  if (!statement.done())
    throw Error(ErrorKind::failure, four_parts("cannot store a row", path_.native(), reason(db_.get()),
                                               "free space; rows stored before are safe and are not measured again"));
}

Result<std::vector<Row>> Store::rows() const {
  std::vector<Row> rows;
  Statement statement(db_.get(), "SELECT row FROM rows ORDER BY rowid");
  while (statement.next()) {
    Result<Row> row = parse_within<Row>(statement.text(0));
    if (!row || !row->is_object())
      return bad_file("results store {}: row {} is not a JSON object (was it edited? name another file)",
                      path_.native(), rows.size() + 1);
    rows.push_back(std::move(*row));
  }
  if (!statement.done()) return read_failure(db_.get(), path_);
  return rows;
}

Result<std::map<std::string, std::string>> Store::states() const {
  std::map<std::string, std::string> states;
  Statement statement(db_.get(), "SELECT key, state FROM rows");
  while (statement.next()) states[statement.text(0)] = statement.text(1);
  if (!statement.done()) return read_failure(db_.get(), path_);
  return states;
}

}  // namespace ridge::lab
