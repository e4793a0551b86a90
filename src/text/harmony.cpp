#include "text/harmony.h"

#include <algorithm>
#include <utility>

#include "text/tool_calls.h"
#include "text/unicode.h"

namespace ridge::text {
namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>", kEnd = "<|end|>";
constexpr std::string_view kMarks[] = {kStart, kChannel, kMessage, kEnd, "<|return|>", "<|call|>", "<|constrain|>"};
constexpr std::string_view kHeaderEnds[] = {kMessage, kStart, kEnd, "<|return|>", "<|call|>"};
constexpr std::string_view kBodyEnds[] = {kEnd, "<|return|>", "<|call|>", kStart, kChannel};
constexpr std::string_view kAssistant = "assistant", kTo = "to=", kFunctions = "functions.";
/// A text that has no `<|message|>` for so many bytes is no header.
constexpr size_t kMaxHeader = 1024;

/// The word that `text` begins with: up to a blank or a mark.
std::string_view first_word(std::string_view text) {
  return text.substr(0, std::min(text.find_first_of(" \t\r\n<\xFF"), text.size()));
}

}  // namespace

std::span<const std::string_view> harmony_marks() { return kMarks; }

std::string harmony_header(std::string_view prompt) {
  const size_t start = prompt.rfind(kStart);
  if (start == prompt.npos) return {};
  std::string_view header = prompt.substr(start + kStart.size());
  for (const std::string_view end : {kEnd, kMarks[4], kMarks[5]})
    if (header.find(end) != header.npos) return {};
  if (const size_t text = header.find(kMessage); text != header.npos) header = header.substr(0, text + kMessage.size());
  return std::string(header);
}

HarmonyReader::HarmonyReader(const Marks& marks, bool calls)
    : marks_(marks),
      channel_(marks.in_text(kChannel)),
      message_(marks.in_text(kMessage)),
      header_ends_(marks.in_text(kHeaderEnds)),
      body_ends_(marks.in_text(kBodyEnds)),
      calls_(calls) {}

void HarmonyReader::advance(std::string& held, OutputDelta& to, bool last) {
  while (in_body_ ? read_body(held, to, last) : read_header(held, to, last)) continue;
}

bool HarmonyReader::read_header(std::string& held, OutputDelta& to, bool last) {
  // As many bytes decide as when the text comes byte by byte.
  const std::string head = held.substr(0, kMaxHeader + 1);
  const bool too_long = head.size() > kMaxHeader;
  const Place found = first_of(head, header_ends_, {head.size()});
  if (found.mark.empty() && !last && !too_long) return false;
  const std::string text = head.substr(0, found.at);
  const size_t n_mark = found.mark.size();
  in_body_ = found.mark == message_ || (found.mark.empty() && too_long);
  held.erase(0, found.at + n_mark);
  if (n_mark > 0 && in_body_) return begin(text), true;
  kind_ = Kind::content;
  give_leftover(text, to);
  if (!in_body_) end(to);
  return n_mark > 0 || in_body_;
}

/// Text where a header should be: models that lost the form write their answer there.
void HarmonyReader::give_leftover(std::string_view text, OutputDelta& to) {
  if (text.find(channel_) != text.npos) return;  // a header that was cut off
  if (text.starts_with(kAssistant)) text.remove_prefix(kAssistant.size());
  if (kAssistant.starts_with(text)) return;
  text = strip(text, nullptr, true, false);
  give(std::string(text), to);
}

void HarmonyReader::begin(std::string_view header) {
  const auto behind = [&](std::string_view what) {
    const size_t at = header.find(what);
    return at == header.npos ? std::string_view() : first_word(header.substr(at + what.size()));
  };
  const std::string_view recipient = behind(kTo), channel = behind(channel_);
  kind_ = channel == "analysis" ? Kind::reasoning : Kind::content;
  if (!recipient.starts_with(kFunctions) || recipient.size() == kFunctions.size() || !calls_) return;
  kind_ = Kind::call;
  name_ = recipient.substr(kFunctions.size());
  arguments_.clear();
}

bool HarmonyReader::read_body(std::string& held, OutputDelta& to, bool last) {
  const Place found = first_of(held, body_ends_, {held.size()});
  size_t n = found.at;
  if (found.mark.empty() && !last) n -= partial_mark(held, body_ends_);
  give(held.substr(0, n), to);
  const bool keeps_mark = found.mark == channel_;  // the next message lacks its start
  held.erase(0, n + (keeps_mark ? 0 : found.mark.size()));
  if (found.mark.empty() && !last) return false;
  end(to);
  in_body_ = false;
  return !found.mark.empty();
}

void HarmonyReader::give(std::string text, OutputDelta& to) {
  text = marks_.visible(std::move(text));
  if (text.empty()) return;
  if (kind_ == Kind::call) {
    arguments_ += text;
    return;
  }
  std::string& place = kind_ == Kind::reasoning ? to.reasoning : to.content;
  if (std::exchange(parted_[size_t(kind_)], false)) place += '\n';
  place += text;
  begun_[size_t(kind_)] = true;
}

void HarmonyReader::end(OutputDelta& to) {
  if (kind_ != Kind::call) {
    parted_[size_t(kind_)] = begun_[size_t(kind_)];
    return;
  }
  const Json json = strip(arguments_, nullptr, true, true).empty() ? Json::object() : parse_call_json(arguments_);
  if (json.is_object()) {
    to.calls.push_back({{}, name_, json.dump()});
    return;
  }
  kind_ = Kind::content;  // what is no call is content, word for word
  give(std::exchange(arguments_, {}), to);
  end(to);
}

}  // namespace ridge::text
