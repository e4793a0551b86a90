#include "text/finder.h"

namespace ridge::text {

Finder::Finder(std::string_view what, bool backwards) : what_(what), backwards_(backwards), borders_(what.size(), 0) {
  for (size_t i = 1, n = 0; i < what.size(); ++i) {
    while (n > 0 && at(what, i) != at(what, n)) n = borders_[n - 1];
    if (at(what, i) == at(what, n)) ++n;
    borders_[i] = uint32_t(n);
  }
}

size_t Finder::find(std::string_view text) const {
  for (size_t i = 0, n = 0; i < text.size(); ++i) {
    if (n == 0 && !backwards_) {
      i = text.find(what_[0], i);
      if (i == text.npos) return i;
    }
    while (n > 0 && at(text, i) != at(what_, n)) n = borders_[n - 1];
    if (at(text, i) == at(what_, n)) ++n;
    if (n == what_.size()) return backwards_ ? text.size() - 1 - i : i + 1 - n;
  }
  return text.npos;
}

}  // namespace ridge::text
