// Harmony, the form of gpt-oss's answers: messages with a channel each.
//
//     <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
//     <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
#pragma once

#include <cstdint>

#include "text/marks.h"

namespace ridge::text {

struct OutputDelta;

/// The marks of harmony.
std::span<const std::string_view> harmony_marks();
/// Header behind the last `<|start|>` of a prompt, which belongs to the message that the answer goes on with. Empty
/// where that message has ended.
std::string harmony_header(std::string_view prompt);

/// Reads the messages of one answer: the channel analysis is reasoning, messages to functions are calls, all other text
/// is content.
class HarmonyReader {
 public:
  /// Without `calls` messages to functions are content.
  HarmonyReader(const Marks& marks, bool calls);

  /// Takes what it understands from the begin of `held`. Calls have no id.
  void advance(std::string& held, OutputDelta& to, bool last);

 private:
  enum class Kind : uint8_t { content, reasoning, call };

  bool read_header(std::string& held, OutputDelta& to, bool last);
  bool read_body(std::string& held, OutputDelta& to, bool last);
  void begin(std::string_view header);
  void give(std::string text, OutputDelta& to);
  void give_leftover(std::string_view text, OutputDelta& to);
  void end(OutputDelta& to);

  const Marks marks_;
  const std::string channel_, message_;
  const std::vector<std::string> header_ends_, body_ends_;
  const bool calls_;
  bool in_body_ = false;
  Kind kind_ = Kind::content;
  bool begun_[2] = {},
       parted_[2] = {};  ///< content, reasoning: has text; a message is behind us, the next begins a line
  std::string name_, arguments_;
};

}  // namespace ridge::text
