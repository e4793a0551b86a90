#include "top/canvas.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace ridge::top {
namespace {

constexpr size_t kMostMarks = 3;  // a terminal's cell holds few, and a text may stack thousands
constexpr std::u32string_view kBlocks = U"▁▂▃▄▅▆▇█";
constexpr std::string_view kAsciiBlocks = ".:-=+*#@";

}  // namespace

int columns_of(char32_t code) {
  switch (utf8proc_category(utf8proc_int32_t(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return -1;
    default: return utf8proc_charwidth(utf8proc_int32_t(code));
  }
}

std::u32string safe_text(std::string_view text, bool lines) {
  std::u32string out;
  while (!text.empty()) {
    const Utf8Char next = first_utf8(text);
    text.remove_prefix(next.length);
    const auto code = char32_t(next.code);
    if (next.kind != Utf8Kind::valid) out += U'\uFFFD';
    else if (code == '\n' && lines) out += U'\n';
    else if (code == '\n' || code == '\t') out += U' ';
    else out += columns_of(code) < 0 ? U'\uFFFD' : code;
  }
  return out;
}

int width_of(std::u32string_view text) {
  int width = 0;
  for (const char32_t code : text) width += std::max(0, columns_of(code));
  return width;
}

std::vector<std::u32string> wrap(const std::u32string& text, int width) {
  std::vector<std::u32string> lines(1);
  int used = 0;
  for (const char32_t code : text) {
    if (code == '\n') {
      lines.emplace_back();
      used = 0;
      continue;
    }
    const int n = std::max(0, columns_of(code));
    if (used + n > width) {
      const size_t space = lines.back().rfind(U' ');
      std::u32string rest;
      if (code != ' ' && space != lines.back().npos && space > 0) {
        rest = lines.back().substr(space + 1);
        lines.back().resize(space);
      }
      used = width_of(rest);
      lines.push_back(std::move(rest));
      if (code == ' ') continue;
    }
    lines.back() += code;
    used += n;
  }
  return lines;
}

Canvas::Canvas(int rows, int columns) : rows_(rows), columns_(columns), cells_(size_t(rows) * size_t(columns)) {}

int Canvas::put(int row, int column, std::string_view text, Style style, int width) {
  return put(row, column, safe_text(text), style, width);
}

int Canvas::put(int row, int column, std::u32string_view safe, Style style, int width) {
  const int end = width < 0 ? columns_ : std::min(columns_, column + width);
  if (row < 0 || row >= rows_ || column < 0) return column;
  int last = -1;
  for (const char32_t code : safe) {
    const int n = columns_of(code);
    if (n < 0) continue;
    if (n == 0) {
      if (last >= 0 && cell(row, last).text.size() <= kMostMarks) cell(row, last).text += code;
      continue;
    }
    if (column + n > end) break;
    last = column;
    cell(row, column++) = {std::u32string(1, code), style};
    if (n == 2) cell(row, column++) = {{}, style};
  }
  return column;
}

void Canvas::put_right(int row, int end, std::string_view text, Style style) {
  const std::u32string safe = safe_text(text);
  put(row, std::max(0, end - width_of(safe)), safe, style);
}

void Canvas::heat(int row, int column, int level) {
  if (row < 0 || row >= rows_ || column < 0 || column >= columns_) return;
  cell(row, column) = {std::u32string(1, heat_glyph(level)), level == 0 ? Style::dim : Style::heat, uint8_t(level)};
}

void Canvas::fill(int row, Style style) {
  if (row < 0 || row >= rows_) return;
  for (int column = 0; column < columns_; ++column) cell(row, column).style = style;
}

std::string Canvas::line(int row) const {
  std::string out;
  for (int column = 0; column < columns_; ++column)
    for (const char32_t code : at(row, column).text) out += utf8(code);
  out.resize(out.find_last_not_of(' ') + 1);
  return out;
}

int heat_level(double value, double low, double high) {
  if (!std::isfinite(value) || value <= 0) return 0;
  if (!(high > low)) return kHeatLevels / 2;
  const double part = std::clamp((value - low) / (high - low), 0.0, 1.0);
  return 1 + std::min(kHeatLevels - 1, int(part * kHeatLevels));
}

char32_t heat_glyph(int level) { return level <= 0 ? U'·' : kBlocks[size_t(std::min(level, kHeatLevels) - 1)]; }

std::u32string sparkline(const std::vector<double>& values, int width) {
  const size_t n = std::min(values.size(), size_t(std::max(0, width)));
  double high = 0;
  for (size_t i = values.size() - n; i < values.size(); ++i) high = std::max(high, values[i]);
  std::u32string out;
  for (size_t i = values.size() - n; i < values.size(); ++i)
    out += values[i] > 0 ? heat_glyph(heat_level(values[i], 0, high)) : U' ';
  return out;
}

char ascii_of(char32_t glyph) {
  if (glyph >= ' ' && glyph < 127) return char(glyph);
  if (const size_t block = kBlocks.find(glyph); block != kBlocks.npos) return kAsciiBlocks[block];
  switch (glyph) {
    case U'·': return '.';
    case U'─': return '-';
    case U'│': return '|';
    case U'▒': return '%';
    case U'░': return '.';
    case U'▓': return '%';
    case U'…': return '~';
    default: return '?';
  }
}

}  // namespace ridge::top
