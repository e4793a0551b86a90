// RIDGE_CHECK: we are wrong. Always on; prints the condition, the place and the values, then throws.
#pragma once

#include <fmt/format.h>

#include <string>

namespace ridge {

/// Throws Error(failure) with file, line, condition and message.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace ridge

#define RIDGE_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::ridge::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (0)
