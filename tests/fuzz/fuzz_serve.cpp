// Fuzz target of what a chat says before a model is asked: its body, messages, tools and the choice of one, in the form
// of each API. Whatever the bytes are, they are taken or refused as a client's fault, and what is taken survives being
// written and read.
// Behind an 'L' stands a piece of JSON: bodies of many such pieces are read in work and time linear in their bytes.
#include <ctime>

#include "base/work_limit.h"
#include "serve/api/anthropic.h"
#include "serve/api/responses.h"
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

/// Whether `read` took a body; it may refuse it as the client's fault.
bool taken(const auto& read) {
  try {
    read();
    return true;
  } catch (const ApiError& error) {
    RIDGE_CHECK(error.status == 400 && !error.message.empty(), "refused with {} {}", error.status, error.message);
    (void)error.response(), (void)anthropic_refusal(error);
    return false;
  }
}

void try_body(std::string_view bytes) {
  Json body, chat, messages;
  if (!taken([&] { body = parse_body(bytes); })) return;
  RIDGE_CHECK(parse_body(body.dump()) == body, "a body changes when it is written and read");
  taken([&] {
    read_tool_choice(body);
    check_again(body);
  });
  // Bodies of other APIs become chats whose messages are taken.
  if (taken([&] { chat = anthropic_chat(body); })) {
    read_messages(chat);
    taken([&] {
      read_tool_choice(chat);
      check_again(chat);
    });
  }
  if (const Json* input = member(body, "input"))
    if (taken([&] { messages = chat_of_input(*input); }) && !messages.empty())
      taken([&] { read_messages({{"messages", messages}}); });  // arguments of calls may nest too deep
}

/// Where many values stand: as the values of a list, as members of an object, as messages, as parts of a content, as
/// calls.
struct Place {
  const char *begin, *end;
  bool named = false;
};
constexpr Place kPlaces[] = {
    {R"({"x":[)", "]}"},
    {R"({"x":{)", "}}", true},
    {R"({"messages":[)", "]}"},
    {R"({"messages":[{"role":"user","content":[)", "]}]}"},
    {R"({"messages":[{"role":"assistant","tool_calls":[)", "]}]}"},
    {R"({"input":[)", "]}"},
};

std::string body_of(const Place& place, std::string_view piece, size_t bytes) {
  std::string body = place.begin;
  for (size_t i = 0; body.size() < bytes; ++i) {
    if (i > 0) body += ',';
    if (place.named) body += fmt::format("\"{}\":", i);
    body += piece;
  }
  return body + place.end;
}

struct Work {
  uint64_t counted;
  double cpu_seconds;
};
Work work_of(std::string_view body) {
  static const std::atomic<bool> never = false;
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
  };
  const WorkLimit limit(std::chrono::hours(1), never);
  const double start = now();
  try {
    const Json json = parse_body(body);
    if (json.contains("input")) return (void)chat_of_input(json["input"]), Work{limit.n_checks(), now() - start};
    if (json.contains("messages")) taken([&] { (void)anthropic_chat(json); }), read_messages(json);
  } catch (const ApiError&) {
    // What was read before the refusal counts too.
  }
  return {limit.n_checks(), now() - start};
}

void try_many(std::string_view piece) {
  constexpr size_t kBytes = size_t(1) << 18;
  if (piece.empty() || piece.size() > 4096) return;
  for (const Place& place : kPlaces) {
    const Work small = work_of(body_of(place, piece, kBytes)), large = work_of(body_of(place, piece, 4 * kBytes));
    RIDGE_CHECK(large.counted <= 5 * small.counted + 100, "{} of {}: four times the bytes are {} steps, not {}",
                place.begin, piece, large.counted, small.counted);
    // Work that nobody counts: a byte takes some ten nanoseconds, with sanitizers too far less than five microseconds.
    RIDGE_CHECK(large.cpu_seconds < 5, "{} of {}: {} s", place.begin, piece, large.cpu_seconds);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with('L')) try_many(bytes.substr(1));
  else try_body(bytes);
  return 0;
}
