// Suggestions for names that were typed wrong.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ridge {

/// The nearest of `known` by letters left out, added, changed or swapped with their neighbour; upper and lower case are
/// alike. Empty when none is near: a third of the letters, at most 3, may be wrong. Of names as near, the longest: a
/// letter is left out more easily than typed.
std::string closest_word(std::string_view unknown, std::span<const std::string_view> known);

/// "did you mean rotor-3? there are: f16, rotor-3", without the question where no name is near.
std::string choices_text(std::string_view unknown, std::span<const std::string_view> known);

}  // namespace ridge
