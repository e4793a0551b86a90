#include "text/tool_calls.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/json.h"
#include "text/unicode.h"

namespace ridge::text {
namespace {

constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>", kParameter = "<parameter=";
constexpr std::string_view kArgs = "[ARGS]", kCallId = "[CALL_ID]", kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>", kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr ReasoningMarks kReasoning[] = {{"<think>", "</think>"},
                                         {"[THINK]", "[/THINK]"},
                                         {"<seed:think>", "</seed:think>"},
                                         {"<|START_THINKING|>", "<|END_THINKING|>"},
                                         {"<|inner_prefix|>", "<|inner_suffix|>"},
                                         {"◁think▷", "◁/think▷"}};
/// Deeper JSON is no call; it keeps recursive uses of a document safe.
constexpr int kMaxDepth = 100;
/// Bytes before the JSON of a call: names end, so that a long text is not searched again with each piece.
constexpr size_t kMaxHead = 1024;

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
size_t skip_blanks(std::string_view text, size_t at) {
  while (at < text.size() && is_blank(text[at])) ++at;
  return at;
}
size_t without_blanks(std::string_view text) {
  size_t size = text.size();
  while (size > 0 && is_blank(text[size - 1])) --size;
  return size;
}

struct FormatMarks {
  std::vector<std::string_view> markers, closers, noise, others;
};

const FormatMarks& format_marks(ToolFormat format) {
  static const FormatMarks kMarks[] = {
      {},
      {{kCall}, {kCallEnd}, {}, {}},
      {{kCall, kFunction}, {kCallEnd}, {}, {}},
      {{"<|python_tag|>"}, {}, {}, {}},
      {{"[TOOL_CALLS]"}, {}, {}, {kArgs, kCallId}},
      {{"<|tool_call|>", kCall}, {}, {kCallEnd}, {}},
      {{kCallBegin}, {"```", "<｜tool▁call▁end｜>"}, {kCallsBegin, "<｜tool▁calls▁end｜>"}, {kSeparator}},
      {{"```json", kCall}, {"```", kCallEnd}, {}, {}},
      {},
  };
  return kMarks[size_t(format)];
}

/// The marks of which the prompt ends with the one that `of` names; null: with none.
const ReasoningMarks* last_mark(std::string_view prompt, std::string_view ReasoningMarks::*of) {
  prompt = strip(prompt, nullptr, false, true);
  const auto* found = std::ranges::find_if(kReasoning, [&](const auto& marks) { return prompt.ends_with(marks.*of); });
  return found == std::end(kReasoning) ? nullptr : found;
}

}  // namespace

Json parse_call_json(std::string_view text) {
  Result<Json> json = parse_within<Json>(text, {.depth = kMaxDepth});
  return json ? std::move(*json) : Json(Json::value_t::discarded);
}

ToolFormat detect_tool_format(std::string_view source) {
  const auto has = [&](std::string_view what) { return source.find(what) != source.npos; };
  if (has("<|channel|>") && has("<|message|>")) return ToolFormat::harmony;
  if (has(kFunction)) return ToolFormat::xml;
  if (has(kCall)) return ToolFormat::tags;
  if (has("[TOOL_CALLS]")) return ToolFormat::mistral;
  if (has("<|tool_call|>")) return ToolFormat::granite;
  if (has(kCallBegin)) return ToolFormat::deepseek;
  if (has("<|python_tag|>") || (has("\"parameters\": ") && has("ipython"))) return ToolFormat::llama;
  return ToolFormat::none;
}

std::span<const ReasoningMarks> reasoning_marks() { return kReasoning; }

const ReasoningMarks* opened_reasoning(std::string_view prompt) { return last_mark(prompt, &ReasoningMarks::open); }
bool prompt_closes_reasoning(std::string_view prompt) { return last_mark(prompt, &ReasoningMarks::close) != nullptr; }

std::vector<std::string_view> marks_of(ToolFormat format) {
  if (format == ToolFormat::harmony) return {harmony_marks().begin(), harmony_marks().end()};
  const FormatMarks& known = format_marks(format);
  std::vector<std::string_view> marks;
  for (const auto* list : {&known.markers, &known.closers, &known.noise, &known.others})
    marks.insert(marks.end(), list->begin(), list->end());
  for (const ReasoningMarks& one : kReasoning) marks.insert(marks.end(), {one.open, one.close});
  return marks;
}

OutputParser::FormatFacts OutputParser::facts_of(ToolFormat format) const {
  const FormatMarks& known = format_marks(format);
  return {marks_.in_text(known.markers), marks_.in_text(known.closers), marks_.in_text(known.noise)};
}

OutputParser::OutputParser(Options options)
    : options_(std::move(options)),
      marks_(options_.control),
      facts_(facts_of(options_.format)),
      call_separator_(marks_.in_text(kSeparator)),
      args_(marks_.in_text(kArgs)),
      call_id_(marks_.in_text(kCallId)),
      rng_(options_.seed),
      state_(options_.in_reasoning ? State::reasoning : State::start),
      skip_space_(options_.in_reasoning) {
  for (const ReasoningMarks& one : kReasoning) {
    opens_.push_back(marks_.in_text(one.open));
    closes_.push_back(marks_.in_text(one.close));
  }
  if (!options_.harmony) return;
  harmony_.emplace(marks_, options_.format == ToolFormat::harmony);
  held_ = marks_.tokens_in(options_.header);
}

OutputDelta OutputParser::feed(std::string_view text) {
  OutputDelta delta;
  held_ += text;
  advance(delta, false);
  return delta;
}

OutputDelta OutputParser::feed_mark(std::string_view mark) { return feed(marks_.in_text(mark)); }

OutputDelta OutputParser::finish() {
  OutputDelta delta;
  advance(delta, true);
  return delta;
}

void OutputParser::advance(OutputDelta& to, bool last) {
  if (!harmony_) {
    while (!held_.empty() && step(to, last)) continue;
    return;
  }
  harmony_->advance(held_, to, last);
  for (ToolCall& call : to.calls) call.id = new_id();
}

/// Makes something of the begin of held_; false if that takes more text.
bool OutputParser::step(OutputDelta& to, bool last) {
  if (skip_space_ && state_ != State::call) {
    held_.erase(0, skip_blanks(held_, 0));
    if (held_.empty()) return false;
    skip_space_ = false;
  }
  switch (state_) {
    case State::start: return read_start(last);
    case State::reasoning: return read_reasoning(to, last);
    case State::content: return read_content(to, last);
    default: return read_call(to, last);
  }
}

/// The begin of the answer, and what follows reasoning or a call of Llama's.
bool OutputParser::read_start(bool last) {
  const size_t at = skip_blanks(held_, 0);
  const std::string_view rest = std::string_view(held_).substr(at);
  const bool bare = starts_bare();
  const auto may_open = [&](const std::string& open) { return rest.size() < open.size() && open.starts_with(rest); };
  if (!last && rest.empty() && (bare || options_.reasoning)) return false;
  if (!last && options_.reasoning && std::ranges::any_of(opens_, may_open)) return false;
  state_ = State::content;
  if (bare && rest.starts_with('{')) begin_call(at, 0);
  for (size_t i = 0; options_.reasoning && i < opens_.size(); ++i) {
    if (!rest.starts_with(opens_[i])) continue;
    held_.erase(0, at + opens_[i].size());
    closes_ = {closes_[i]};
    skip_space_ = true;
    state_ = State::reasoning;
    return true;
  }
  return true;
}

void OutputParser::begin_call(size_t lead, size_t marker) {
  lead_ = lead, marker_ = marker;
  json_ = std::string::npos, scan_ = 0;
  state_ = State::call;
}

bool OutputParser::read_reasoning(OutputDelta& to, bool last) {
  const Place end = first_of(held_, closes_, {held_.size()});
  size_t size = end.at;
  if (end.mark.empty() && !last) size -= partial_mark(held_, closes_);
  const size_t shown = without_blanks(std::string_view(held_).substr(0, size));
  to.reasoning += marks_.visible(held_.substr(0, shown));
  if (end.mark.empty() && !last) return held_.erase(0, shown), false;
  held_.erase(0, end.at + end.mark.size());
  options_.reasoning = false;  // it comes once
  skip_space_ = true;
  state_ = State::start;
  return true;
}

bool OutputParser::read_content(OutputDelta& to, bool last) {
  // A tag that says nothing, behind a call, may be cut by the answer's end.
  if (last && behind_call_ && partial_mark(held_, facts_.noise) == held_.size()) held_.clear();
  const Place found = first_of(held_, facts_.noise, first_of(held_, facts_.markers, {held_.size()}));
  const bool noise = std::ranges::find(facts_.noise, found.mark) != facts_.noise.end();
  size_t shown = found.at;
  if (found.mark.empty() && !last)
    shown -= std::max(partial_mark(held_, facts_.markers), partial_mark(held_, facts_.noise));
  if (options_.format != ToolFormat::none && !(found.mark.empty() && last))
    shown = without_blanks(std::string_view(held_).substr(0, shown));
  give_content(held_.substr(0, shown), to);
  behind_call_ = behind_call_ && shown == 0;
  held_.erase(0, shown);
  if (found.mark.empty()) return false;
  const size_t lead = found.at - shown, marker = found.mark == kFunction ? 0 : found.mark.size();
  if (noise) held_.erase(0, lead + marker), skip_space_ = true;
  else begin_call(lead, marker);
  return true;
}

bool OutputParser::read_call(OutputDelta& to, bool last) {
  size_t end = 0;
  std::vector<ToolCall> calls;
  const Found found = find_call(last, end, calls);
  if (found == Found::more && !last) return false;
  if (found == Found::yes) {
    std::move(calls.begin(), calls.end(), std::back_inserter(to.calls));
    held_.erase(0, end);
    skip_space_ = behind_call_ = true;
    state_ = starts_bare() ? State::start : State::content;
    return true;
  }
  // No call: its marker (or first bracket) is content, and so is what follows unless another call begins there.
  const size_t plain = found == Found::more ? held_.size() : lead_ + std::max<size_t>(marker_, 1);
  give_content(held_.substr(0, plain), to);
  held_.erase(0, plain);
  state_ = State::content;
  return true;
}

OutputParser::Found OutputParser::find_call(bool last, size_t& end, std::vector<ToolCall>& calls) {
  const size_t at = skip_blanks(held_, lead_ + marker_);
  if (at == held_.size()) return Found::more;
  const bool tags = options_.format == ToolFormat::tags || options_.format == ToolFormat::xml;
  if (tags && held_[at] == '<') return find_xml(at, last, end, calls);
  if (json_ == held_.npos) {
    const Found found = find_json_begin(at);
    if (found != Found::yes) return json_ = held_.npos, found;
    scan_ = json_;
    brackets_.clear();
    escaped_ = false;
  }
  const Found complete = scan_json();
  if (complete != Found::yes) return complete;
  end = scan_;
  if (skip_closers(last, end) == Found::more) return Found::more;
  const Json json = parse_call_json(std::string_view(held_).substr(json_, scan_ - json_));
  if (json.is_discarded()) return Found::no;
  if (name_.empty() ? !add_calls(json, calls) : !json.is_object()) return Found::no;
  if (!name_.empty()) calls.push_back({id_.empty() ? new_id() : id_, name_, json.dump()});
  return Found::yes;
}

/// Where the JSON of a call begins, and the name that some formats write before it.
OutputParser::Found OutputParser::find_json_begin(size_t at) {
  name_.clear(), id_.clear();
  const std::string_view text = held_;
  json_ = at;
  if (options_.format == ToolFormat::deepseek) {
    const size_t separator = text.find(call_separator_, at), name = separator + call_separator_.size();
    json_ = separator == text.npos ? text.npos : text.find('{', name);
    if (std::min(json_, text.size()) - at > kMaxHead) return Found::no;
    if (json_ == text.npos) return Found::more;
    // function<sep>NAME, a line ```json, {...}; newer models: NAME<sep>{...}
    const std::string_view before = strip(text.substr(at, separator - at), nullptr, true, true);
    const std::string_view between = text.substr(name, json_ - name);
    const size_t line = between.find('\n');
    const bool fenced = line != between.npos && strip(between.substr(line), nullptr, true, true) == "```json";
    const bool bare = before != "function" && strip(between, nullptr, true, true).empty();
    name_ = bare ? before : strip(between.substr(0, fenced ? line : 0), nullptr, true, true);
    return !name_.empty() && (fenced || bare) ? Found::yes : Found::no;
  }
  if (text[at] == '{' || text[at] == '[') return Found::yes;
  if (options_.format != ToolFormat::mistral) return Found::no;
  json_ = text.find('{', at);
  if (std::min(json_, text.size()) - at > kMaxHead) return Found::no;
  const std::string_view head = text.substr(at, json_ - at);
  const auto is_name = [](char c) { return isalnum(uint8_t(c)) || c == '_' || c == '-' || c == '.'; };
  name_ = head.substr(0, size_t(std::find_if_not(head.begin(), head.end(), is_name) - head.begin()));
  std::string_view rest = strip(head.substr(name_.size()), nullptr, true, true);
  if (json_ == text.npos)
    return rest.empty() || args_.starts_with(rest[0]) || call_id_.starts_with(rest[0]) ? Found::more : Found::no;
  if (rest.ends_with(args_)) rest.remove_suffix(args_.size());
  if (rest.starts_with(call_id_)) id_ = strip(rest.substr(call_id_.size()), nullptr, true, true);
  return !name_.empty() && (rest.empty() || !id_.empty()) ? Found::yes : Found::no;
}

/// Reads on to the end of the JSON value: no further than what cannot be JSON.
OutputParser::Found OutputParser::scan_json() {
  if (scan_ > json_ && brackets_.empty()) return Found::yes;
  for (; scan_ < held_.size(); ++scan_) {
    const char c = held_[scan_];
    if (!brackets_.empty() && brackets_.back() == '"') {
      if (escaped_) escaped_ = false;
      else if (c == '\\') escaped_ = true;
      else if (c == '"') brackets_.pop_back();
    } else if (c == '{' || c == '[' || c == '"') {
      if (int(brackets_.size()) > kMaxDepth) return Found::no;
      brackets_ += c == '{' ? '}' : c == '[' ? ']' : '"';
    } else if (c == '}' || c == ']') {
      if (brackets_.empty() || brackets_.back() != c) return Found::no;
      brackets_.pop_back();
      if (brackets_.empty()) return ++scan_, Found::yes;
    } else if (!is_blank(c) && !isalnum(uint8_t(c)) && std::string_view(":,.+-").find(c) == std::string_view::npos) {
      return Found::no;
    }
  }
  return Found::more;
}

/// Moves `end` behind the end tags. They may be missing: then the call ends with its JSON.
OutputParser::Found OutputParser::skip_closers(bool last, size_t& end) const {
  size_t at = end;
  for (const std::string_view closer : facts_.closers) {
    at = skip_blanks(held_, at);
    const std::string_view rest = std::string_view(held_).substr(at);
    if (rest.starts_with(closer)) end = at += closer.size();
    else if (closer.starts_with(rest) && !last) return Found::more;
    else if (closer.starts_with(rest)) end = held_.size();  // the answer was cut in its end tag
  }
  return Found::yes;
}

OutputParser::Found OutputParser::find_xml(size_t at, bool last, size_t& end, std::vector<ToolCall>& calls) {
  const std::string_view text = std::string_view(held_);
  if (!text.substr(at).starts_with(kFunction)) return kFunction.starts_with(text.substr(at)) ? Found::more : Found::no;
  const size_t stop = text.find(kFunctionEnd, std::max(at, scan_));
  scan_ = std::min(stop, text.size() - std::min(text.size(), kFunctionEnd.size()));
  if (stop == text.npos) return Found::more;
  end = stop + kFunctionEnd.size();
  if (skip_closers(last, end) == Found::more) return Found::more;
  const auto parts = [](std::string_view from, std::string_view opener) {  // NAME>rest
    const size_t close = from.find('>');
    const size_t begin = opener.size();
    return close == from.npos ? std::pair(std::string(), std::string_view())
                              : std::pair(std::string(strip(from.substr(begin, close - begin), nullptr, true, true)),
                                          from.substr(close + 1));
  };
  auto [name, rest] = parts(text.substr(at, stop - at), kFunction);
  if (name.empty()) return Found::no;
  Json arguments = Json::object();
  for (size_t next = rest.find(kParameter); next != rest.npos; next = rest.find(kParameter)) {
    auto [key, value] = parts(rest.substr(next), kParameter);
    if (key.empty()) return Found::no;
    rest = value;
    value = value.substr(0, std::min(value.find("</parameter>"), value.find(kParameter)));
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    arguments[key] = typed(name, key, std::string(value));
  }
  calls.push_back({new_id(), name, arguments.dump(-1, ' ', false, Json::error_handler_t::replace)});
  return Found::yes;
}

/// A parameter's value in the type that the tool's schema asks for; a text where it asks for none or it does not fit.
Json OutputParser::typed(const std::string& function, const std::string& parameter, std::string value) const {
  for (const Json& tool : options_.tools) {
    if (!tool.is_object()) continue;
    const Json& described = tool.contains("function") ? tool["function"] : tool;
    if (!described.is_object() || described.value("name", Json()) != function) continue;
    const auto properties = "/parameters/properties"_json_pointer;
    const Json schema = described.contains(properties) ? described[properties] : Json();
    if (!schema.is_object() || !schema.contains(parameter) || !schema[parameter].is_object()) continue;
    if (schema[parameter].value("type", Json()) == "string") return value;
    if (value == "True" || value == "False") return value == "True";
    if (value == "None") return nullptr;
    const Json json = parse_call_json(value);
    return json.is_discarded() ? Json(value) : json;
  }
  return value;
}

/// The calls of a JSON object or array; false if one of them is none.
bool OutputParser::add_calls(const Json& json, std::vector<ToolCall>& calls) {
  if (json.is_array())
    return !json.empty() && std::all_of(json.begin(), json.end(),
                                        [&](const Json& one) { return !one.is_array() && add_calls(one, calls); });
  if (!json.is_object()) return false;
  const Json call = json.contains("function") && json["function"].is_object() ? json["function"] : json;
  Json arguments = call.value(call.contains("parameters") ? "parameters" : "arguments", Json::object());
  if (arguments.is_string()) arguments = parse_call_json(arguments.get<std::string>());
  const Json name = call.value("name", Json()), id = json.value("id", Json());
  if (!name.is_string() || name.get<std::string>().empty() || !arguments.is_object()) return false;
  if (options_.format == ToolFormat::json && !is_tool(name.get<std::string>())) return false;
  const bool has_id = id.is_string() && !id.get<std::string>().empty();
  calls.push_back({has_id ? id.get<std::string>() : new_id(), name.get<std::string>(), arguments.dump()});
  return true;
}

/// JSON that names no tool of the request is an answer in JSON.
bool OutputParser::is_tool(const std::string& name) const {
  return std::ranges::any_of(options_.tools, [&](const Json& tool) {
    const Json& described = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    return described.is_object() && described.value("name", Json()) == name;
  });
}

std::string OutputParser::new_id() {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string id;
  while (id.size() < 9) id += kLetters[rng_.next() % kLetters.size()];
  return id;
}

}  // namespace ridge::text
