// Fuzz target of what a chat says before a model is asked: its body, messages, tools and the choice of one. Whatever the
// bytes are, they are taken or refused as a client's fault, and what is taken survives being written and read.
#include "serve/messages.h"

namespace {

using namespace ridge;
using namespace ridge::serve;

/// Reads once more what was read: nothing changes, for the walks that follow trust it.
void check_again(const Json& body) {
  for (const auto& [name, read] : {std::pair{"messages", &read_messages}, std::pair{"tools", &read_tools}}) {
    const Json once = read(body);
    if (once.is_null()) continue;
    Json again = body;
    again[name] = once;
    RIDGE_CHECK(read(again) == once, "{} change when they are read again", name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Json body = parse_body({reinterpret_cast<const char*>(data), size});
    RIDGE_CHECK(parse_body(body.dump()) == body, "a body changes when it is written and read");
    read_tool_choice(body);
    check_again(body);
  } catch (const ApiError& error) {
    RIDGE_CHECK(error.status == 400 && !error.message.empty(), "refused with {} {}", error.status, error.message);
    (void)error.response();
  }
  return 0;
}
