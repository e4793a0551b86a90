// Loops whose index the compiler knows, so that small arrays of vectors live in registers: GCC 12 keeps an array that
// an ordinary loop indexes in memory, even when it unrolls the loop later, and copies it there and back.
#pragma once

#include <type_traits>
#include <utility>

namespace ridge {
namespace {

/// body(i) for i = 0 .. kCount - 1, each an integral_constant.
template <int kCount, class Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

}  // namespace
}  // namespace ridge
