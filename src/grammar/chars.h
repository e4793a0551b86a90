// Sets of Unicode code points and what UTF-8 makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::grammar {

/// Code points first to last, both included.
struct CharRange {
  uint32_t first = 0, last = 0;
};

/// Sorted, disjoint ranges of code points; never surrogates, nothing past U+10FFFF.
class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CharRange> ranges);
  explicit CharSet(std::vector<CharRange> ranges);  ///< in any order
  static CharSet all() { return {{0, 0x10FFFF}}; }

  void add(CharRange range);
  void add(const CharSet& other);
  CharSet inverted() const;
  CharSet without(const CharSet& other) const;
  bool contains(uint32_t code) const;
  const std::vector<CharRange>& ranges() const { return ranges_; }

 private:
  std::vector<CharRange> ranges_;
};

struct ByteRange {
  uint8_t first = 0, last = 0;
};
/// Calls `emit` with sequences of byte ranges that together spell exactly the code points of `range` in UTF-8.
void utf8_ranges(CharRange range, const std::function<void(const std::vector<ByteRange>&)>& emit);

/// The code points of `text`, or nothing when it is not valid UTF-8.
std::optional<std::vector<uint32_t>> code_points(std::string_view text);
/// The value of a hexadecimal digit, or nothing.
std::optional<uint32_t> hex_digit(char c);

}  // namespace ridge::grammar
