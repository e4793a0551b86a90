// Small texts that are made at random, for the prompts of tasks.
#pragma once

#include <string>
#include <string_view>

#include "base/rng.h"

namespace ridge::lab {

/// The pattern with every $x replaced by a random word or number: $a adjective, $w thing, $v verb, $n name of a person,
/// $c city, $d number below 100, $0 digit, $b true or false.
std::string filled(std::string_view pattern, Rng& rng);

/// A whole number in [low, high].
inline int whole(Rng& rng, int low, int high) { return low + int(rng.uniform() * (high - low + 1)); }

}  // namespace ridge::lab
