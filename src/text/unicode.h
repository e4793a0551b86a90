// Code points of UTF-8 texts. Bytes that are not UTF-8 count as one code point each and stay as they are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::text {

/// Bytes of the first code point; `text` is not empty.
size_t first_length(std::string_view text);
/// The first code point; bytes that are not UTF-8 give 0xFFFD.
uint32_t first_code(std::string_view text);
size_t count_codes(std::string_view text);
/// Byte position of code point `index`, or the end of the text.
size_t code_position(std::string_view text, size_t index);
/// White space and line ends as Python's str.strip() and str.splitlines() know them.
bool is_space(uint32_t code);
bool is_line_end(uint32_t code);
/// Whether Python's repr() shows the character as it is (space excepted, all separators, controls and private codes are
/// escaped).
bool is_printable(uint32_t code);
/// `text` without the code points of `chars` at its ends; white space where `chars` is null.
std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right);
/// Hands on the lines one by one, without their ends.
void each_line(std::string_view text, const std::function<void(std::string_view line)>& take);
/// Case of ASCII letters.
std::string lower(std::string_view text);
std::string upper(std::string_view text);

}  // namespace ridge::text
