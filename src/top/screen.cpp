#include "top/screen.h"

#define NCURSES_NOMACROS 1  // its macros are words like erase and move
#define NCURSES_WIDECHAR 1
#include <curses.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstring>

#include "base/result.h"
#include "base/utf8.h"

namespace ridge::top {
namespace {

constexpr int kEscapeMs = 25;  // keys that send Esc and more come within this time
constexpr short kHeat256[kHeatLevels] = {17, 19, 26, 37, 71, 178, 208, 196};
constexpr short kHeat8[kHeatLevels] = {COLOR_BLUE,  COLOR_BLUE,   COLOR_CYAN,   COLOR_CYAN,
                                       COLOR_GREEN, COLOR_YELLOW, COLOR_YELLOW, COLOR_RED};
constexpr short kHeatPair = 8;

void make_pairs() {
  const short back = use_default_colors() == OK ? -1 : COLOR_BLACK;
  init_pair(short(Style::accent), COLOR_CYAN, back);
  init_pair(short(Style::good), COLOR_GREEN, back);
  init_pair(short(Style::warn), COLOR_YELLOW, back);
  init_pair(short(Style::bad), COLOR_RED, back);
  for (int i = 0; i < kHeatLevels; ++i) init_pair(short(kHeatPair + i), COLORS >= 256 ? kHeat256[i] : kHeat8[i], back);
}

attr_t attributes_of(Style style) {
  switch (style) {
    case Style::dim: return A_DIM;
    case Style::bold: return A_BOLD;
    case Style::bad: return A_BOLD;
    case Style::inverse: return A_REVERSE;
    default: return A_NORMAL;
  }
}

short pair_of(const Cell& cell) {
  switch (cell.style) {
    case Style::accent:
    case Style::good:
    case Style::warn:
    case Style::bad: return short(cell.style);
    case Style::heat: return short(kHeatPair + cell.level - 1);
    default: return 0;
  }
}

}  // namespace

Screen::Screen() {
  std::setlocale(LC_CTYPE, "");
  utf8_ = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
    throw Error(ErrorKind::failure, "this is not a terminal (use --once, which prints the requests page)");
  screen_ = newterm(nullptr, stdout, stdin);
  if (!screen_) throw Error(ErrorKind::failure, "TERM names no terminal that is known (set TERM, or use --once)");
  colours_ = has_colors() && start_color() == OK;
  if (colours_) make_pairs();
  raw();
  noecho();
  nonl();
  set_escdelay(kEscapeMs);
  keypad(stdscr, TRUE);
  curs_set(0);
}

Screen::~Screen() {
  endwin();
  delscreen(static_cast<SCREEN*>(screen_));
}

int Screen::rows() const { return getmaxy(stdscr); }
int Screen::columns() const { return getmaxx(stdscr); }

void Screen::show(const Canvas& canvas) {
  werase(stdscr);
  for (int row = 0; row < canvas.rows(); ++row)
    for (int column = 0; column < canvas.columns(); ++column) {
      const Cell& cell = canvas.at(row, column);
      if (cell.text.empty() || (cell.text == U" " && cell.style != Style::inverse)) continue;
      wchar_t text[CCHARW_MAX + 1] = {};
      for (size_t i = 0; i < std::min<size_t>(utf8_ ? cell.text.size() : 1, CCHARW_MAX); ++i)
        text[i] = utf8_ ? wchar_t(cell.text[i]) : wchar_t(ascii_of(cell.text[i]));
      cchar_t shown;
      setcchar(&shown, text, attributes_of(cell.style), colours_ ? pair_of(cell) : short(0), nullptr);
      mvwadd_wch(stdscr, row, column, &shown);
    }
  wrefresh(stdscr);
}

Press Screen::read(int ms) {
  wtimeout(stdscr, ms);
  wint_t code = 0;
  const int kind = wget_wch(stdscr, &code);
  if (kind == ERR) return {};
  if (kind == KEY_CODE_YES) {
    switch (code) {
      case KEY_F(1): return {Key::previous};
      case KEY_F(2): return {Key::next};
      case KEY_UP: return {Key::up};
      case KEY_DOWN: return {Key::down};
      case KEY_PPAGE: return {Key::page_up};
      case KEY_NPAGE: return {Key::page_down};
      case KEY_BACKSPACE: return {Key::backspace};
      case KEY_ENTER: return {Key::enter};
      case KEY_RESIZE: return {Key::resize};
      default: return {};
    }
  }
  constexpr auto control = [](char letter) { return wint_t(letter & 0x1f); };
  if (code == control('C')) return {Key::quit};
  if (code == control('R')) return {Key::reset};
  if (code == control('L')) {
    clearok(stdscr, TRUE);
    return {Key::resize};
  }
  if (code == 27) return {Key::escape};
  if (code == '\t') return {Key::tab};
  if (code == '\r' || code == '\n') return {Key::enter};
  if (code == 8 || code == 127) return {Key::backspace};
  if (columns_of(char32_t(code)) < 0) return {};
  Press press{Key::text};
  press.text += utf8(uint32_t(code));
  return press;
}

}  // namespace ridge::top
