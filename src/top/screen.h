// A terminal in full-screen mode. The only file behind this that knows ncurses.
#pragma once

#include <string>

#include "top/canvas.h"

namespace ridge::top {

enum class Key {
  none,
  text,
  enter,
  backspace,
  escape,
  tab,
  up,
  down,
  page_up,
  page_down,
  previous,
  next,
  reset,
  quit,
  resize
};
struct Press {
  Key key = Key::none;
  std::string text = {};  ///< of Key::text: one code point, UTF-8
};

/// One at a time. The terminal is as it was before when this is destroyed, whatever ended it.
class Screen {
 public:
  /// Throws Error(failure) when stdin and stdout are no terminal or TERM names none.
  Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();
  int rows() const;
  int columns() const;
  void show(const Canvas& canvas);
  /// Waits up to `ms` for a key.
  Press read(int ms);

 private:
  void* screen_;  ///< ncurses' SCREEN
  bool utf8_ = false, colours_ = false;
};

}  // namespace ridge::top
