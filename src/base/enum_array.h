// An array with an element for each value of an enum.
#pragma once

#include <array>
#include <cstddef>

namespace ridge {

/// `Enum` counts from 0, and its last value is `count`.
template <class Enum, class T>
struct EnumArray : std::array<T, size_t(Enum::count)> {
  using Base = std::array<T, size_t(Enum::count)>;
  T& operator[](Enum of) { return Base::operator[](size_t(of)); }
  const T& operator[](Enum of) const { return Base::operator[](size_t(of)); }
};

}  // namespace ridge
