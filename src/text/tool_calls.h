// From the text that a model writes to content, reasoning and tool calls, while it is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ordered_json.h"
#include "base/rng.h"
#include "text/harmony.h"
#include "text/marks.h"

namespace ridge::text {

using Json = OrderedJson;

/// How models write calls; `...` is the arguments as JSON.
enum class ToolFormat : uint8_t {
  none,
  tags,     ///< <tool_call>{"name": "f", "arguments": ...}</tool_call> (Hermes, Qwen 2.5 and 3, SmolLM3)
  xml,      ///< <tool_call><function=f><parameter=x>value</parameter></function></tool_call> (Qwen3-coder, Qwen 3.5)
  llama,    ///< {"name": "f", "parameters": ...} as the whole answer or behind <|python_tag|> (Llama 3)
  mistral,  ///< [TOOL_CALLS][{"name": "f", "arguments": ...}], or [TOOL_CALLS]f[ARGS]...
  granite,  ///< <|tool_call|>[{"name": "f", "arguments": ...}]
  deepseek,  ///< <｜tool▁call▁begin｜>function<｜tool▁sep｜>f, a line ```json, ..., ```<｜tool▁call▁end｜>
  json,  ///< {"name": "f", "arguments": ...} of a tool of the request as the begin of the answer, or behind ```json or
         ///< <tool_call>
  harmony,  ///< messages to functions (gpt-oss, text/harmony.h)
};

/// Whether the document nests no deeper than a call may; discarded otherwise, and for what is no JSON.
Json parse_call_json(std::string_view text);

/// The format that a template asks its model for or writes earlier calls in; none if it knows no calls.
ToolFormat detect_tool_format(std::string_view template_source);
/// Marks of reasoning: what opens it, and what closes it.
struct ReasoningMarks {
  std::string_view open, close;
};
std::span<const ReasoningMarks> reasoning_marks();
/// The marks of the reasoning that the prompt ends with the opening mark of, so that the model's answer begins with
/// reasoning; null where it does not.
const ReasoningMarks* opened_reasoning(std::string_view prompt);
/// Does the prompt end with a mark that closes reasoning: the model shall not reason?
bool prompt_closes_reasoning(std::string_view prompt);
/// All marks that the parser of this format looks for. Those that are control tokens of a vocabulary belong into
/// OutputParser::Options::control, and come by feed_mark().
std::vector<std::string_view> marks_of(ToolFormat format);

struct ToolCall {
  std::string id;  ///< 9 letters and digits, which every template accepts, unless the model wrote one
  std::string name;
  std::string arguments;  ///< a JSON object as text
};

/// What one more piece of text adds. Calls come whole.
struct OutputDelta {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
};

/// Splits one answer. Text that may still become a call or a tag is held back, white space before it too. What looks
/// like a call and is none is content, word for word.
class OutputParser {
 public:
  struct Options {
    ToolFormat format = ToolFormat::none;  ///< none: calls are content (requests without tools)
    bool reasoning = true;                 ///< text between marks of reasoning at the begin of the answer is reasoning
    bool in_reasoning = false;             ///< opened_reasoning()
    std::vector<std::string> control;      ///< marks that are control tokens: text that spells them is text
    bool harmony = false;                  ///< the answer has the form of harmony, whatever `format` says of calls
    std::string header;                    ///< harmony_header()
    Json tools = nullptr;                  ///< of the request: names for the format json, types of parameters for xml
    uint64_t seed = 0;                     ///< of the ids
  };
  explicit OutputParser(Options options);

  OutputDelta feed(std::string_view text);
  /// A control token, one of Options::control. It never becomes text.
  OutputDelta feed_mark(std::string_view mark);
  /// The end of the answer: what was held back. A call that lacks its end tag only is a call.
  OutputDelta finish();

 private:
  enum class State : uint8_t { start, reasoning, content, call };
  enum class Found : uint8_t { more, yes, no };

  void advance(OutputDelta& to, bool last);
  bool step(OutputDelta& to, bool last);
  bool read_start(bool last);
  void begin_call(size_t lead, size_t marker);
  bool read_reasoning(OutputDelta& to, bool last);
  bool read_content(OutputDelta& to, bool last);
  bool read_call(OutputDelta& to, bool last);
  Found find_call(bool last, size_t& end, std::vector<ToolCall>& calls);
  Found find_xml(size_t at, bool last, size_t& end, std::vector<ToolCall>& calls);
  bool starts_bare() const { return options_.format == ToolFormat::llama || options_.format == ToolFormat::json; }
  bool is_tool(const std::string& name) const;
  Found find_json_begin(size_t at);
  Found scan_json();
  Found skip_closers(bool last, size_t& end) const;
  bool add_calls(const Json& json, std::vector<ToolCall>& calls);
  Json typed(const std::string& function, const std::string& parameter, std::string value) const;
  std::string new_id();

  struct FormatFacts {
    std::vector<std::string> markers, closers, noise;  ///< noise: tags around several calls, which say nothing
  };
  FormatFacts facts_of(ToolFormat format) const;
  void give_content(std::string text, OutputDelta& to) const { to.content += marks_.visible(std::move(text)); }

  Options options_;
  const Marks marks_;
  const FormatFacts facts_;
  const std::string call_separator_, args_, call_id_;
  std::vector<std::string> opens_, closes_;  ///< of reasoning
  std::optional<HarmonyReader> harmony_;
  Rng rng_;
  State state_;
  std::string held_;          ///< text that nothing was made of yet
  bool skip_space_;           ///< white space that comes next belongs to nothing
  bool behind_call_ = false;  ///< no content came since the last call
  // Of the call that held_ begins with, after `lead_` bytes of white space and a marker of `marker_` bytes:
  size_t lead_ = 0, marker_ = 0;
  std::string name_, id_;       ///< as far as they stand before the JSON
  size_t json_ = 0, scan_ = 0;  ///< begin of the JSON (npos: not found yet) and how far it was read
  std::string brackets_;        ///< that wait to be closed, and '"' inside of a text
  bool escaped_ = false;
};

}  // namespace ridge::text
