// The border between C and C++: exceptions become status codes here, NULLs become errors, and structs of older callers
// get the defaults of the fields that they lack.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "base/result.h"
#include "ridge/ridge.h"

namespace ridge::capi {

/// Keeps the message for ridge_last_error() of this thread.
ridge_status failed(ErrorKind kind, std::string_view message) noexcept;
/// The status of the exception that is being handled.
ridge_status failed_with_exception() noexcept;

/// Runs the body of a function of the C API.
template <class Body>
ridge_status guarded(const Body& body) noexcept {
  try {
    body();
    return RIDGE_OK;
  } catch (...) {
    return failed_with_exception();
  }
}

/// Object behind a pointer of the caller; throws usage for NULL.
template <class T>
T& given(T* pointer, std::string_view name) {
  if (!pointer) throw_error(ErrorKind::usage, "{} is NULL", name);
  return *pointer;
}
/// Values of the caller; NULL is allowed where there are none.
template <class T>
std::span<T> values(T* first, size_t n, std::string_view name) {
  if (n > 0) given(first, name);
  return {first, n};
}

/// Refuses a size that no struct of this library has.
void check_size(size_t size, size_t known);
/// A struct of the caller over its defaults; NULL: the defaults.
template <class Struct>
Struct read_struct(const Struct* from, Struct defaults) {
  if (!from) return defaults;
  check_size(from->size, sizeof defaults);
  std::memcpy(&defaults, from, from->size);
  return defaults;
}
/// Fills what the caller's struct has of the values.
template <class Struct>
void write_struct(Struct* to, Struct filled, std::string_view name) {
  check_size(given(to, name).size, sizeof filled);
  filled.size = to->size;
  std::memcpy(to, &filled, to->size);
}
/// An _init function.
template <class Struct>
void init_struct(Struct* to, size_t size, Struct defaults) {
  if (!to || size < sizeof(size_t)) return;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(to, &defaults, std::min(size, sizeof defaults));
  to->size = size;
}

/// Writes a result into a buffer of the caller (ridge_text, ridge_tokens).
template <class Buffer, class T>
void write_result(Buffer& buffer, std::span<const T> result, std::string_view name) {
  buffer.n = result.size();
  if (buffer.capacity == 0) return;
  if (result.size() > buffer.capacity)
    throw_error(ErrorKind::usage, "{}: {} do not fit into a capacity of {}", name, result.size(), buffer.capacity);
  if (!result.empty()) std::copy(result.begin(), result.end(), &given(buffer.data, name));
}

inline std::string text_or(const char* text, const char* otherwise) { return text ? text : otherwise; }

}  // namespace ridge::capi
