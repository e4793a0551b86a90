// Result<T>: a value, or the reason why untrusted input did not give one.
//
// Names follow std::expected, which g++ 12 does not have in C++20 mode. A Failure's message has four parts: what
// failed, where (file, flag, tensor), why, and what to do next; four_parts() writes them in that order.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "ridge/error.h"

namespace ridge {

struct Failure {
  ErrorKind kind = ErrorKind::bad_file;
  std::string message;
  std::string field = {};  ///< as Error::field()
};

/// "what: where: why (next)"; an empty part is left out.
std::string four_parts(std::string_view what, std::string_view where, std::string_view why, std::string_view next);

/// A Failure of kind bad_file with a formatted reason.
template <class... Args>
Failure bad_file(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::bad_file, fmt::format(format, std::forward<Args>(args)...)};
}

/// A Failure of any kind with a formatted reason.
template <class... Args>
Failure fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return {kind, fmt::format(format, std::forward<Args>(args)...)};
}

/// A usage Failure about one field of an options struct; the message names the field too.
template <class... Args>
Failure wrong_field(std::string field, fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...), std::move(field)};
}

/// For callers past the trust boundary: these throw what the two above return.
template <class... Args>
[[noreturn]] void throw_error(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void throw_wrong_field(std::string field, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...), std::move(field));
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}            // NOLINT: implicit on purpose
  Result(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}  // NOLINT: implicit on purpose

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& value() & { return checked(), std::get<0>(state_); }
  const T& value() const& { return checked(), std::get<0>(state_); }
  T&& value() && { return checked(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Failure& error() const& {
    RIDGE_CHECK(!has_value(), "error() of a Result that holds a value");
    return std::get<1>(state_);
  }
  Failure&& error() && { return std::get<1>(std::move(state_)); }

  /// The value, or throws Error with the failure's kind and message (for callers past the trust boundary).
  T or_throw() && {
    if (!has_value()) throw Error(error().kind, error().message, error().field);
    return std::get<0>(std::move(state_));
  }

 private:
  void checked() const {
    if (!has_value()) RIDGE_CHECK(false, "value() of a failed Result: {}", std::get<1>(state_).message);
  }
  std::variant<T, Failure> state_;
};

/// Result without a value: `Status s = write(...); if (!s) return s.error();`
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Failure failure) : failure_(std::move(failure)), ok_(false) {}  // NOLINT: implicit on purpose
  bool has_value() const noexcept { return ok_; }
  explicit operator bool() const noexcept { return ok_; }
  const Failure& error() const {
    RIDGE_CHECK(!ok_, "error() of an ok Status");
    return failure_;
  }
  void or_throw() const {
    if (!ok_) throw Error(failure_.kind, failure_.message, failure_.field);
  }

 private:
  Failure failure_;
  bool ok_ = true;
};

#define RIDGE_CONCAT_(a, b) a##b
#define RIDGE_CONCAT(a, b) RIDGE_CONCAT_(a, b)
/// `RIDGE_TRY(auto x, parse(bytes));` declares x, or returns the failure to the caller.
#define RIDGE_TRY(declaration, expression) RIDGE_TRY_(RIDGE_CONCAT(ridge_result_, __LINE__), declaration, expression)
#define RIDGE_TRY_(result, declaration, expression)                \
  auto result = (expression);                                      \
  if (!result) return ::ridge::Failure(std::move(result).error()); \
  declaration = std::move(result).value()
/// `RIDGE_TRY_STATUS(check(bytes));` returns the failure to the caller.
#define RIDGE_TRY_STATUS(expression)                                      \
  do {                                                                    \
    if (const ::ridge::Status ridge_status = (expression); !ridge_status) \
      return ::ridge::Failure(ridge_status.error());                      \
  } while (0)

}  // namespace ridge
