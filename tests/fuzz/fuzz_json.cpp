// Fuzz target of parse_json(): any text gives a document or a reason, and a document survives being written and read.
#include <cstdint>

#include "io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge::io;
  // The form of requests: keys in their order, the last of two equal ones counts.
  if (const auto ordered = ridge::parse_within<ridge::OrderedJson>({reinterpret_cast<const char*>(data), size}))
    RIDGE_CHECK(ridge::parse_within<ridge::OrderedJson>(ordered->dump()).or_throw() == *ordered,
                "an ordered one changes");
  const auto document = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!document) return 0;
  const std::string text = document->dump();
  const auto again = parse_json(text, "its own dump");
  RIDGE_CHECK(again.has_value(), "a parsed document is refused: {}", again.error().message);
  RIDGE_CHECK(again->dump() == text, "a document changes when it is written and read");
  return 0;
}
