#include "base/utf8.h"

namespace ridge {
namespace {

/// Sequence length and range of the second byte that a lead byte asks for. The range excludes overlong forms,
/// surrogates and code points past U+10FFFF.
struct Lead {
  uint32_t length = 0;  ///< 0: not a lead byte
  uint8_t second_low = 0x80, second_high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_low = 0xA0};
  if (byte == 0xED) return {.length = 3, .second_high = 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_low = 0x90};
  if (byte == 0xF4) return {.length = 4, .second_high = 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3) return {.length = 4};
  return {};
}

}  // namespace

Utf8Char first_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return uint8_t(text[i]); };
  if (byte(0) < 0x80) return {.code = byte(0), .length = 1};
  const Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {.length = 1, .kind = Utf8Kind::broken};
  uint32_t code = byte(0) & (0x7Fu >> lead.length);
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {.length = i, .kind = Utf8Kind::incomplete};
    const uint8_t low = i == 1 ? lead.second_low : 0x80, high = i == 1 ? lead.second_high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {.length = i, .kind = Utf8Kind::broken};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  return {.code = code, .length = lead.length};
}

std::string utf8(uint32_t code) {
  const auto tail = [&](int shift) { return char(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {char(code)};
  if (code < 0x800) return {char(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {char(0xE0 | code >> 12), tail(6), tail(0)};
  return {char(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace ridge
