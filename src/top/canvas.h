// Lines of cells that a terminal, a test or a file can show. Text from a server is cleaned on its way in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::top {

enum class Style : uint8_t { plain, dim, bold, accent, good, warn, bad, inverse, heat };
inline constexpr int kHeatLevels = 8;

struct Cell {
  std::u32string text = U" ";  ///< a printable code point and marks that combine with it; "" behind a wide one
  Style style = Style::plain;
  uint8_t level = 0;  ///< of Style::heat: 1 to kHeatLevels
};

/// Columns that the code point takes: 0 for marks, 2 for wide ones, -1 for what no terminal may get: controls, format
/// characters (direction marks among them), line and paragraph separators, private and unassigned ones.
int columns_of(char32_t code);
/// Code points of UTF-8 text that are safe on a terminal: what columns_of() refuses and broken bytes become U+FFFD, a
/// tab a space. Line feeds stay when `lines`, else they become spaces.
std::u32string safe_text(std::string_view text, bool lines = false);
/// The lines of safe text, broken at spaces so that none takes more than `width` (> 1) columns.
std::vector<std::u32string> wrap(const std::u32string& text, int width);
int width_of(std::u32string_view text);

class Canvas {
 public:
  Canvas(int rows, int columns);
  int rows() const { return rows_; }
  int columns() const { return columns_; }
  const Cell& at(int row, int column) const { return cells_[size_t(row) * size_t(columns_) + size_t(column)]; }

  /// Puts text at a place, cut at `width` columns (-1: none) and at the right edge; places outside are left out.
  /// Returns the column behind the text.
  int put(int row, int column, std::string_view text, Style style = Style::plain, int width = -1);
  int put(int row, int column, std::u32string_view safe, Style style = Style::plain, int width = -1);
  /// Ends at column `end`, exclusive.
  void put_right(int row, int end, std::string_view text, Style style = Style::plain);
  void heat(int row, int column, int level);
  void fill(int row, Style style);

  /// A row as UTF-8 without the spaces at its end.
  std::string line(int row) const;

 private:
  Cell& cell(int row, int column) { return cells_[size_t(row) * size_t(columns_) + size_t(column)]; }
  int rows_, columns_;
  std::vector<Cell> cells_;
};

/// 0 for no value (not finite, or not above 0), else 1 to kHeatLevels from `low` to `high`; the middle when they are
/// equal.
int heat_level(double value, double low, double high);
/// "·" for 0, else a block of that height: levels differ without colours too.
char32_t heat_glyph(int level);
/// The newest `width` values as blocks between 0 and the largest value.
std::u32string sparkline(const std::vector<double>& values, int width);
/// ASCII character that a terminal without UTF-8 shows for a glyph of these pages.
char ascii_of(char32_t glyph);

}  // namespace ridge::top
