// Fuzz target of the layer text. 'T' and the source of a template: it gives a text within its bounds or a reason, twice
// the same. Any other byte chooses how an answer is read, the next one how it is cut: in pieces it must be the same as
// at once.
#include <ctime>

#include "text/conversation.h"
#include "text/tool_calls.h"

namespace {

using namespace ridge;
using namespace ridge::text;

double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void try_template(std::string_view source) {
  static const ChatInput input = [] {
    ChatInput made;
    made.messages = Json::parse(
        R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "é"}]},
        {"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [{"id": "abcdefghi", "type": "function",
        "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]}, {"role": "tool", "content": "7"}])");
    made.tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
    made.bos_token = "<s>", made.eos_token = "</s>";
    return made;
  }();
  const jinja::Limits limits{.steps = 100'000, .bytes = uint64_t(4) << 20, .output = uint64_t(1) << 16};
  const double start = cpu_seconds();
  const Result<ChatTemplate> chat = ChatTemplate::parse(source);
  if (!chat) return;
  const Result<std::string> prompt = chat->render(input, limits), again = chat->render(input, limits);
  ChatInput fitted = input;
  fitted.messages = fit_messages(habits_of(*chat, input), input.messages, input.tools);
  (void)chat->render(fitted, limits);
  // A step costs well below a microsecond, with sanitizers too: more is work that nobody counts.
  RIDGE_CHECK(cpu_seconds() - start < 10, "{} s for {} bytes", cpu_seconds() - start, source.size());
  RIDGE_CHECK(prompt.has_value() == again.has_value(), "the second time it {}",
              again ? "renders" : again.error().message);
  if (!prompt) return;
  RIDGE_CHECK(prompt->size() <= limits.output, "{} bytes", prompt->size());
  RIDGE_CHECK(*prompt == *again, "another text the second time: {}", *again);
}

/// Content, reasoning and calls in one text.
std::string read(const OutputParser::Options& options, std::string_view answer, size_t piece) {
  OutputParser parser(options);
  std::string content, reasoning, calls;
  const auto add = [&](const OutputDelta& delta) {
    content += delta.content, reasoning += delta.reasoning;
    for (const ToolCall& call : delta.calls) {
      RIDGE_CHECK(!call.name.empty() && !call.id.empty(), "a call without a name or id");
      RIDGE_CHECK(Json::parse(call.arguments, nullptr, false).is_object(), "arguments are no object: {}",
                  call.arguments);
      calls += fmt::format("\n{} {} {}", call.id, call.name, call.arguments);
    }
  };
  for (size_t at = 0; at < answer.size(); at += piece) add(parser.feed(answer.substr(at, piece)));
  add(parser.finish());
  const bool changes =
      options.harmony || options.format != ToolFormat::none || options.reasoning || options.in_reasoning;
  RIDGE_CHECK(changes || content == answer, "content changes: {}", content);
  return content + "\nreasoning: " + reasoning + calls;
}

void try_answer(uint8_t choice, uint8_t cut, std::string_view answer) {
  OutputParser::Options options{ToolFormat(choice % 8)};
  options.reasoning = choice / 8 % 2 == 0;
  options.in_reasoning = choice / 16 % 2 == 1;
  options.harmony = choice / 32 % 2 == 1;
  if (options.harmony && choice % 2 == 1) options.format = ToolFormat::harmony;
  options.tools = Json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}, "s": {"type": "string"}}}}}])");
  const std::string whole = read(options, answer, answer.size() + 1);
  for (const size_t piece : {size_t(1), size_t(2) + cut % 32}) {
    const std::string pieces = read(options, answer, piece);
    RIDGE_CHECK(pieces == whole, "pieces of {} bytes give {}\nand the whole gives {}", piece, pieces, whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with('T')) try_template(bytes.substr(1));
  else if (size >= 2) try_answer(data[0], data[1], bytes.substr(2));
  return 0;
}
