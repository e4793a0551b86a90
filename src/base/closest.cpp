#include "base/closest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

namespace ridge {
namespace {

constexpr size_t kMostLetters = 64, kMostWrong = 3;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// Letters added, left out, changed or swapped with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string closest_word(std::string_view unknown, std::span<const std::string_view> known) {
  std::string_view best;
  size_t best_distance = 1 + std::min(kMostWrong, unknown.size() / 3);
  for (const std::string_view word : known) {
    const size_t distance = edit_distance(lower(unknown.substr(0, kMostLetters)), lower(word));
    const bool is_likelier = distance == best_distance && !best.empty() && word.size() > best.size();
    if (distance < best_distance || is_likelier) best = word, best_distance = distance;
  }
  return std::string(best);
}

std::string choices_text(std::string_view unknown, std::span<const std::string_view> known) {
  const std::string near = closest_word(unknown, known);
  return fmt::format("{}there are: {}", near.empty() ? "" : fmt::format("did you mean {}? ", near),
                     fmt::join(known, ", "));
}

}  // namespace ridge
