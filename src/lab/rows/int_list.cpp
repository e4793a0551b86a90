#include "lab/rows/int_list.h"

#include <charconv>
#include <cstdint>

#include "engine/kv_choice.h"

namespace ridge::lab {
namespace {

constexpr size_t kMaxValues = 1000;

/// Reads a whole number at the front of `text` and removes it.
bool take_int(std::string_view& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(size_t(end - text.data()));
  return true;
}

/// One item of a list: a value or a range. False when it is not one.
bool parse_item(std::string_view text, std::vector<int>& values) {
  int first = 0, last = 0, step = 1;
  if (!take_int(text, first)) return false;
  if (text.empty()) return values.push_back(first), true;
  if (text[0] != '-') return false;
  text.remove_prefix(1);
  if (!take_int(text, last) || last < first) return false;
  bool multiply = false;
  if (!text.empty()) {
    multiply = text[0] == '*';
    if (!multiply && text[0] != '+') return false;
    text.remove_prefix(1);
    if (!take_int(text, step) || !text.empty()) return false;
  }
  if (multiply ? step < 2 || first < 1 : step < 1) return false;
  for (int64_t value = first; value <= last; value = multiply ? value * step : value + step) {
    if (values.size() >= kMaxValues) return false;
    values.push_back(int(value));
  }
  return true;
}

}  // namespace

Result<std::vector<int>> parse_int_list(std::string_view flag, std::string_view text, int min, int max) {
  std::vector<int> values;
  for (const std::string& item : split(text, ',')) {
    if (!parse_item(item, values) || values.size() > kMaxValues)
      return fail(ErrorKind::usage,
                  "{}: '{}' is not a number, list or range (8  1,2,4  512-4096*2  1-9+2, at most {} values)", flag,
                  text, kMaxValues);
    for (const int value : values)
      if (value < min || value > max)
        return fail(ErrorKind::usage, "{}: {} is out of range ({} to {})", flag, value, min, max);
  }
  return values;
}

}  // namespace ridge::lab
