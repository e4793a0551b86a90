// Byte views of test inputs, and checks of failure messages.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ridge {

/// A copy with nothing readable behind it, so that AddressSanitizer sees a read one byte past the end.
inline std::vector<std::byte> exact_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A bad_file failure whose message has `part` in it, is one line, and is not endless.
template <class R>
void expect_refused(const R& result, std::string_view part) {
  ASSERT_FALSE(result.has_value()) << "accepted, expected a failure with: " << part;
  EXPECT_EQ(result.error().kind, ErrorKind::bad_file);
  EXPECT_THAT(result.error().message, testing::HasSubstr(std::string(part)));
  EXPECT_LT(result.error().message.size(), 600u);
  for (const char c : result.error().message) EXPECT_TRUE(uint8_t(c) >= 0x20 && c != 0x7F) << int(uint8_t(c));
}

}  // namespace ridge
