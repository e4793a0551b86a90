// UTF-8: decoding that never fails, for every byte string is a sequence of code points and broken stretches, and
// encoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ridge {

enum class Utf8Kind : uint8_t {
  valid,       ///< `code` is the code point
  broken,      ///< these bytes can never be part of a valid sequence
  incomplete,  ///< the text ends inside what could become a valid sequence
};

struct Utf8Char {
  uint32_t code = 0;
  uint32_t length = 0;  ///< bytes; at least 1
  Utf8Kind kind = Utf8Kind::valid;
};

/// The first code point of `text` (not empty), or the longest broken stretch that is a prefix of a valid sequence, so
/// one U+FFFD stands for each (Unicode 15, section 3.9, "substitution of maximal subparts").
Utf8Char first_utf8(std::string_view text);

/// The bytes of a code point up to 0x1FFFFF.
std::string utf8(uint32_t code);

}  // namespace ridge
