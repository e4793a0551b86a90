// Columns of a kind of row: one list gives the fields of its JSON and the table that people read.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lab/rows/results.h"

namespace ridge::lab {

/// A field or a column of rows that are made from a T.
template <class T>
struct Column {
  std::string_view key;     ///< of the JSON field; "*": `get` gives an object whose fields are taken; empty: no field
  Row (*get)(const T& of);  ///< null leaves the cell empty, absent() leaves out the field too
  std::string_view head = {};  ///< of the table's column, with '>' in front where numbers stand right; empty: no column
  std::string_view format = {};  ///< of a number in the table: "{:.1f} %"
};

/// The value of a field that a row does not have.
inline Row absent() { return Row::value_t::discarded; }

/// A value in a table: numbers by `format`, texts as they are.
std::string cell_text(const Row& value, std::string_view format);
/// "| 812.3 | ok |"
std::string table_line(std::span<const std::string> cells);
/// Two lines, without the last line's end: the headings, and how their columns are aligned.
std::string table_head(std::span<const std::string_view> heads);

template <class T>
Row fields_of(std::span<const Column<T>> columns, const T& of) {
  Row fields;
  for (const Column<T>& column : columns) {
    if (column.key.empty()) continue;
    Row value = column.get(of);
    if (column.key == "*") fields.update(value);
    else if (!value.is_discarded()) fields[std::string(column.key)] = std::move(value);
  }
  return fields;
}

template <class T>
std::string table_head(std::span<const Column<T>> columns) {
  std::vector<std::string_view> heads;
  for (const Column<T>& column : columns)
    if (!column.head.empty()) heads.push_back(column.head);
  return table_head(heads);
}

template <class T>
std::string table_line(std::span<const Column<T>> columns, const T& of) {
  std::vector<std::string> cells;
  for (const Column<T>& column : columns)
    if (!column.head.empty()) cells.push_back(cell_text(column.get(of), column.format));
  return table_line(cells);
}

/// The whole table, each line with its end.
template <class T>
std::string table_of(std::span<const Column<T>> columns, std::span<const T> rows) {
  std::string text = table_head(columns) + "\n";
  for (const T& row : rows) text += table_line(columns, row) + "\n";
  return text;
}

}  // namespace ridge::lab
