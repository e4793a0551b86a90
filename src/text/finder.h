// One text looked for in others, in time linear in both whatever they hold.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ridge::text {

/// Knuth, Morris and Pratt. `what` must outlive it and is not empty; it needs 4 bytes of memory for each of its bytes.
class Finder {
 public:
  /// `backwards`: find() gives the last place instead of the first.
  explicit Finder(std::string_view what, bool backwards = false);
  /// Where `what` begins in `text`, or npos.
  size_t find(std::string_view text) const;

 private:
  char at(std::string_view text, size_t i) const { return backwards_ ? text[text.size() - 1 - i] : text[i]; }

  std::string_view what_;
  bool backwards_;
  std::vector<uint32_t> borders_;  ///< of every begin: how long a shorter begin it ends with
};

}  // namespace ridge::text
