// Columns of a kind of row: one list gives the fields of its JSON, the table that people read, and what both mean.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "lab/rows/machine.h"
#include "lab/rows/results.h"

namespace ridge::lab {

/// A column in words.
struct ColumnText {
  std::string_view key, unit, help, head;
};

/// A field or a column of rows that are made from a T.
template <class T>
struct Column {
  std::string_view key;   ///< of the JSON field; empty: no field
  std::string_view unit;  ///< "us", "GB/s"; "-": none
  std::string_view help;  ///< a few words
  /// Null, NaN and infinity leave the cell empty, absent() leaves out the field too.
  std::function<Row(const T& of)> get;
  // "" and not {}: g++ 12 then calls a constructor of string_view that it does not emit.
  std::string_view head = "";  ///< of the table's column, with '>' in front where numbers stand right; empty: no column
  std::string_view format = "";  ///< of a number in the table: "{:.1f} %"
  std::vector<ColumnText> part;  ///< fields of the object that `get` gives; they are taken one by one
};

/// The value of a field that a row does not have.
inline Row absent() { return Row::value_t::discarded; }
/// The value under a condition; null, or no field, without it.
inline Row when(bool condition, Row value) { return condition ? std::move(value) : Row(); }
inline Row only(bool condition, Row value) { return condition ? std::move(value) : absent(); }
/// NaN and infinity, which JSON cannot hold, become null.
Row finite(Row value);

/// A list with a value for each of `range`.
template <class Range, class Make>
Row list_of(const Range& range, Make make) {
  Row list = Row::array();
  for (const auto& of : range) list.push_back(finite(make(of)));
  return list;
}

/// A value in a table: numbers by `format`, texts as they are.
std::string cell_text(const Row& value, std::string_view format);
/// "| 812.3 | ok |"
std::string table_line(std::span<const std::string> cells);
/// Two lines, without the last line's end: the headings, and how their columns are aligned.
std::string table_head(std::span<const ColumnText> columns);
/// For --help, a line for each column of the table: heading, meaning, unit, field.
std::string columns_help(std::span<const ColumnText> columns);

template <class T>
class Columns {
 public:
  Columns(std::initializer_list<Column<T>> list) : list_(list) {}

  Row fields(const T& of) const {
    Row fields = Row::object();
    for (const Column<T>& column : list_) {
      if (!column.part.empty()) fields.update(column.get(of));
      if (column.key.empty()) continue;
      if (Row value = column.get(of); !value.is_discarded()) fields[std::string(column.key)] = finite(std::move(value));
    }
    return fields;
  }
  Row operator()(const T& of) const { return fields(of); }
  std::string head() const { return table_head(texts()); }
  std::string line(const T& of) const {
    std::vector<std::string> cells;
    for (const Column<T>& column : list_)
      if (!column.head.empty()) cells.push_back(cell_text(finite(column.get(of)), column.format));
    return table_line(cells);
  }
  /// The whole table, each line with its end.
  std::string table(std::span<const T> rows) const {
    std::string text = head() + "\n";
    for (const T& row : rows) text += line(row) + "\n";
    return text;
  }
  std::vector<ColumnText> texts() const {
    std::vector<ColumnText> texts;
    for (const Column<T>& c : list_) {
      if (c.part.empty()) texts.push_back({c.key, c.unit, c.help, c.head});
      else texts.insert(texts.end(), c.part.begin(), c.part.end());
    }
    return texts;
  }
  /// The columns of these fields, in this order.
  Columns picked(std::initializer_list<std::string_view> keys) const {
    Columns columns{};
    for (const std::string_view key : keys) {
      const auto found = std::ranges::find(list_, key, &Column<T>::key);
      RIDGE_CHECK(found != list_.end(), "no column {}", key);
      columns.list_.push_back(*found);
    }
    return columns;
  }
  Columns with(const Columns& more) const {
    Columns columns = *this;
    columns.list_.insert(columns.list_.end(), more.list_.begin(), more.list_.end());
    return columns;
  }

 private:
  std::vector<Column<T>> list_;
};

/// The fields of something that a T has: `see` finds it. An empty optional has no fields.
template <class T, class Part, class See>
Column<T> part_of(const Columns<Part>& columns, See see) {
  const auto get = [columns, see](const T& of) -> Row {
    const auto& seen = std::invoke(see, of);
    if constexpr (requires { seen.has_value(); }) return seen ? columns.fields(*seen) : Row::object();
    else return columns.fields(seen);
  };
  std::vector<ColumnText> texts = columns.texts();
  for (ColumnText& text : texts) text.head = "";  // the table is the T's
  std::erase_if(texts, [](const ColumnText& text) { return text.key.empty(); });
  return {"", "", "", get, "", "", texts};
}

/// Where a row comes from.
struct Provenance {
  int n_threads = 0;
  uint64_t seed = 0;
  std::string date = utc_now(), command = command_line();
  MachineInfo machine = machine_info();
};
Columns<Provenance> provenance_columns();

}  // namespace ridge::lab
