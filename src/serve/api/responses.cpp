#include "serve/api/responses.h"

#include <array>

#include "serve/api/chat_body.h"

namespace ridge::serve {
namespace {

constexpr const char* kChatFields[] = {"user",         "safety_identifier",   "prompt_cache_key",
                                       "service_tier", "parallel_tool_calls", "chat_template_kwargs"};
constexpr std::pair<std::string_view, std::string_view> kFieldNames[] = {{"response_format.json_schema", "text.format"},
                                                                         {"response_format", "text.format"},
                                                                         {"function.", ""},
                                                                         {"max_tokens", "max_output_tokens"},
                                                                         {"messages", "input"},
                                                                         {"reasoning_effort", "reasoning.effort"}};
constexpr std::string_view kTextParts[] = {"input_text", "output_text", "text"};
constexpr std::string_view kReasoningParts[] = {"reasoning_text", "summary_text", "text"};

// ---- Requests

/// Adds a message; system messages in a row become one, for many templates show one only.
void add_message_of(Json message, Json& to) {
  if (!to.empty() && message["role"] == "system" && to.back()["role"] == "system")
    to.back()["content"].get_ref<std::string&>().append("\n\n").append(message["content"].get<std::string>());
  else to.push_back(std::move(message));
}

/// Reads items of an input one after another.
class ItemReader {
 public:
  Json messages = Json::array();

  void add(const Json& item, const std::string& place) {
    if (!item.is_object()) refuse(place, "an item is an object");
    const Fields f(item, place + ".");
    const std::string type = f.text("type").value_or("message");
    if (type == "message") return add_text(item, place);
    if (type == "function_call") return add_call(item, place);
    if (type == "function_call_output") return add_result(item, place);
    if (type == "reasoning") return add_reasoning(item, place);
    refuse(place + ".type", fmt::format("{} is not supported, only message, function_call, function_call_output and "
                                        "reasoning",
                                        shown(type)));
  }

 private:
  void add_text(const Json& item, const std::string& place) {
    std::string role = need_text(item, "role", place);
    if (role == "developer") role = "system";
    if (role != "user" && role != "assistant" && role != "system")
      refuse(place + ".role", fmt::format("{} is not user, assistant, system or developer", shown(item["role"])));
    const Json* content = Fields(item).find("content");
    if (!content) refuse(place + ".content", "missing");
    Json message = {{"role", role}, {"content", text_of_blocks(*content, kTextParts, place + ".content")}};
    if (role == "assistant") add_held_reasoning(message);
    add_message_of(std::move(message), messages);
  }

  void add_call(const Json& item, const std::string& place) {
    if (messages.empty() || messages.back()["role"] != "assistant" || !reasoning_.empty()) {
      Json message = {{"role", "assistant"}, {"content", nullptr}};
      add_held_reasoning(message);
      messages.push_back(std::move(message));
    }
    messages.back()["tool_calls"].push_back(chat_call(need_text(item, "call_id", place), need_text(item, "name", place),
                                                      need_text(item, "arguments", place)));
  }

  void add_result(const Json& item, const std::string& place) {
    const Json* output = Fields(item).find("output");
    if (!output) refuse(place + ".output", "missing");
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", need_text(item, "call_id", place)},
                        {"content", text_of_blocks(*output, kTextParts, place + ".output")}});
  }

  /// Held for the assistant's message that follows.
  void add_reasoning(const Json& item, const std::string& place) {
    for (const char* name : {"content", "summary"})
      if (const Json* parts = Fields(item).find(name); parts && !parts->empty())
        return void(reasoning_ += text_of_blocks(*parts, kReasoningParts, place + "." + name));
  }

  void add_held_reasoning(Json& message) {
    if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
  }

  std::string reasoning_;
};

Json tool_of(const Json& tool, const std::string& place) {
  if (!tool.is_object()) refuse(place, "a tool is {\"type\": \"function\", \"name\": ..., \"parameters\": {...}}");
  if (const std::string& type = need_text(tool, "type", place); type != "function")
    refuse(place + ".type", fmt::format("{} is not supported, only function", shown(type)));
  Json function = {{"name", need_text(tool, "name", place)}};
  copy_fields(tool, std::array{"description", "parameters", "strict"}, function);
  return {{"type", "function"}, {"function", std::move(function)}};
}

Json tool_choice_of(const Json& choice) {
  if (choice.is_string()) return choice;
  if (!member_is(choice, "type", "function"))
    refuse("tool_choice", "none, auto, required, or {\"type\": \"function\", \"name\": ...}");
  return {{"type", "function"}, {"function", {{"name", need_text(choice, "name", "tool_choice")}}}};
}

/// `text`: the form of the answer.
void read_text(const Json& body, Json& chat) {
  const Json* text = Fields(body).find("text");
  if (!text) return;
  if (!text->is_object()) refuse("text", fmt::format("{} is not an object", shown(*text)));
  if (const auto verbosity = Fields(*text, "text.").text("verbosity"); verbosity && *verbosity != "medium")
    refuse("text.verbosity", fmt::format("{} is not supported (leave the field out)", shown(*verbosity)));
  const Json* format = Fields(*text).find("format");
  if (!format) return;
  if (!format->is_object()) refuse("text.format", fmt::format("{} is not an object", shown(*format)));
  const std::string& type = need_text(*format, "type", "text.format");
  chat["response_format"] = {{"type", type}};
  if (type == "json_schema")
    copy_fields(*format, std::array{"name", "description", "schema", "strict"}, chat["response_format"][type]);
}

void refuse_unserved(const Json& body) {
  const Fields f(body);
  for (const char* name : {"conversation", "prompt", "context_management"})
    if (f.find(name)) refuse(name, "not supported (leave the field out)");
  if (f.flag("background").value_or(false)) refuse("background", "true is not supported (leave the field out)");
  if (const auto truncation = f.text("truncation"); truncation && *truncation != "disabled")
    refuse("truncation", fmt::format("{} is not supported (leave the field out)", shown(*truncation)));
  if (f.whole("top_logprobs", 0, 20).value_or(0) > 0) refuse("top_logprobs", "not supported (leave the field out)");
  for (const std::string& what : f.texts("include", 16))
    if (what != "reasoning.encrypted_content") refuse("include", fmt::format("{} is not supported", shown(what)));
  f.whole("max_tool_calls", 0, INT32_MAX);
  if (const Json* options = f.find("stream_options"); options && !options->is_object())
    refuse("stream_options", "not an object");
}

/// Fields that an answer repeats, and their values where the request has none.
Json echo_of(const Json& body, bool store) {
  Json echo = {{"background", false},
               {"instructions", nullptr},
               {"max_output_tokens", nullptr},
               {"metadata", Json::object()},
               {"parallel_tool_calls", true},
               {"previous_response_id", nullptr},
               {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
               {"temperature", nullptr},
               {"text", {{"format", {{"type", "text"}}}}},
               {"tool_choice", "auto"},
               {"tools", Json::array()},
               {"top_p", nullptr},
               {"truncation", "disabled"},
               {"user", nullptr}};
  for (auto& [name, value] : echo.items())
    if (const Json* given = Fields(body).find(name)) value = *given;
  echo["store"] = store;
  return echo;
}

/// The body of the chat, without messages.
Json chat_fields(const Json& body) {
  Json chat = Json::object();
  copy_shared_fields(body, chat);
  copy_fields(body, kChatFields, chat);
  if (const Json* most = Fields(body).find("max_output_tokens")) chat["max_tokens"] = *most;
  add_tools(body, tool_of, chat);
  if (const Json* choice = Fields(body).find("tool_choice")) chat["tool_choice"] = tool_choice_of(*choice);
  if (const Json* reasoning = Fields(body).find("reasoning")) {
    if (!reasoning->is_object()) refuse("reasoning", fmt::format("{} is not an object", shown(*reasoning)));
    if (const auto effort = Fields(*reasoning, "reasoning.").text("effort")) chat["reasoning_effort"] = *effort;
  }
  read_text(body, chat);
  return chat;
}

// ---- Answers

/// A kind of item that holds one part of text.
struct TextKind {
  std::string_view item, id_prefix, part;
};
constexpr TextKind kMessage = {"message", "msg_", "output_text"}, kReasoning = {"reasoning", "rs_", "reasoning_text"};

class ResponsesForm final : public ApiForm {
 public:
  ResponsesForm(const AnswerData& answer, ResponsesRequest asked)
      : ApiForm(answer, new_id("resp_")), asked_(std::move(asked)) {}

  void begin() override {
    push_event("response.created", {{"response", response("in_progress")}});
    push_event("response.in_progress", {{"response", response("in_progress")}});
  }

  void add(size_t, const text::OutputDelta& delta) override {
    if (!delta.reasoning.empty()) add_text(kReasoning, delta.reasoning);
    if (!delta.content.empty()) add_text(kMessage, delta.content);
    for (const text::ToolCall& call : delta.calls) add_call(call);
  }

  void end(size_t) override { close_item(cut() ? "incomplete" : "completed"); }

  void finish() override {
    whole_ = response(cut() ? "incomplete" : "completed");
    if (cut()) whole_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    else whole_["completed_at"] = std::time(nullptr);
    whole_["usage"] = usage();
    if (asked_.store && answer_.choices[0].reason != FinishReason::cancelled) store();
    if (streams()) push_event(cut() ? "response.incomplete" : "response.completed", {{"response", whole_}});
  }

  Json whole() override { return whole_; }

  void fail(const ApiError& error) override {
    Json failed = response("failed");
    failed["error"] = {{"code", "server_error"}, {"message", error.message}};
    push_event("response.failed", {{"response", std::move(failed)}});
  }

 private:
  bool cut() const { return answer_.choices[0].reason == FinishReason::length; }

  Json response(std::string_view status) const {
    Json json = {{"id", id_},
                 {"object", "response"},
                 {"created_at", answer_.created},
                 {"status", status},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"output", items_},
                 {"model", answer_.model.name},
                 {"usage", nullptr}};
    json.update(asked_.echo);
    return json;
  }

  Json usage() const {
    const Usage u = answer_.usage();
    const std::string& reasoning = answer_.choices[0].reasoning;
    const size_t n_reasoning =
        reasoning.empty() ? 0 : answer_.model.engine.tokenizer().encode(reasoning, false, false).size();
    return {{"input_tokens", u.n_prompt},
            {"input_tokens_details", {{"cached_tokens", u.n_cached}}},
            {"output_tokens", u.n_generated},
            {"output_tokens_details", {{"reasoning_tokens", n_reasoning}}},
            {"total_tokens", u.n_prompt + u.n_generated}};
  }

  void store() {
    const ChoiceText& choice = answer_.choices[0];
    Json message = {{"role", "assistant"}, {"content", choice.content}};
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    for (const text::ToolCall& call : choice.calls)
      message["tool_calls"].push_back(chat_call(call.id, call.name, call.arguments));
    asked_.messages.push_back(std::move(message));
    answer_.model.responses->put({.id = id_,
                                  .key = asked_.key,
                                  .response = whole_,
                                  .messages = std::move(asked_.messages),
                                  .bytes = asked_.bytes + dump(whole_).size()});
  }

  void push_event(std::string_view type, Json fields) {
    if (!streams()) return;
    Json event = {{"type", type}, {"sequence_number", n_events_++}};
    event.update(fields);
    push(event, type);
  }
  /// An event of the newest item.
  void push_item_event(std::string_view type, Json fields) {
    Json event = {{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
    event.update(fields);
    push_event(type, std::move(event));
  }
  void push_part_event(const std::string& type, Json fields) {
    fields["content_index"] = 0;
    if (open_ == &kMessage && type.starts_with("response.output_text")) fields["logprobs"] = Json::array();
    push_item_event(type, std::move(fields));
  }

  void open_item(Json item) {
    close_item("completed");
    push_event("response.output_item.added", {{"output_index", items_.size()}, {"item", item}});
    items_.push_back(std::move(item));
  }

  Json part_of(std::string_view text) const {
    Json part = {{"type", open_->part}, {"text", text}};
    if (open_ == &kMessage) part["annotations"] = Json::array(), part["logprobs"] = Json::array();
    return part;
  }

  void add_text(const TextKind& kind, const std::string& text) {
    if (open_ != &kind) {
      Json item = {{"id", new_id(kind.id_prefix)}, {"type", kind.item}, {"status", "in_progress"}};
      if (&kind == &kMessage) item["role"] = "assistant";
      else item["summary"] = Json::array();
      item["content"] = Json::array();
      open_item(std::move(item));
      open_ = &kind;
      push_part_event("response.content_part.added", {{"part", part_of("")}});
    }
    text_ += text;
    push_part_event(fmt::format("response.{}.delta", kind.part), {{"delta", text}});
  }

  void close_item(std::string_view status) {
    if (!open_) return;
    items_.back()["content"].push_back(part_of(text_));
    items_.back()["status"] = status;
    push_part_event(fmt::format("response.{}.done", open_->part), {{"text", text_}});
    push_part_event("response.content_part.done", {{"part", part_of(text_)}});
    open_ = nullptr;
    text_.clear();
    push_event("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", items_.back()}});
  }

  void add_call(const text::ToolCall& call) {
    open_item({{"id", new_id("fc_")},
               {"type", "function_call"},
               {"status", "in_progress"},
               {"call_id", call.id},
               {"name", call.name},
               {"arguments", ""}});
    push_item_event("response.function_call_arguments.delta", {{"delta", call.arguments}});
    push_item_event("response.function_call_arguments.done", {{"name", call.name}, {"arguments", call.arguments}});
    items_.back()["arguments"] = call.arguments;
    items_.back()["status"] = "completed";
    push_event("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", items_.back()}});
  }

  ResponsesRequest asked_;
  int64_t n_events_ = 0;
  Json items_ = Json::array(), whole_;
  const TextKind* open_ = nullptr;  ///< of the newest item while its text grows
  std::string text_;                ///< of that item
};

}  // namespace

Json chat_of_input(const Json& input) {
  if (input.is_string()) return Json::array({{{"role", "user"}, {"content", input}}});
  if (!input.is_array()) refuse("input", fmt::format("{} is neither a text nor a list of items", shown(input)));
  ItemReader reader;
  for (size_t i = 0; i < input.size(); ++i) reader.add(input[i], fmt::format("input[{}]", i));
  return std::move(reader.messages);
}

ResponsesRequest read_responses_request(const ApiModel& model, const Json& body, int key) {
  refuse_unserved(body);
  const Fields f(body);
  ResponsesRequest asked;
  asked.store = f.flag("store").value_or(true);
  asked.key = key;
  asked.messages = Json::array();
  if (const auto id = f.text("previous_response_id")) {
    const ResponseStore::Stored previous = model.responses->find(*id, key);
    if (!previous)
      throw ApiError{.message = fmt::format("previous_response_id: there is no response '{}' here", *id),
                     .param = "previous_response_id",
                     .code = "previous_response_not_found"};
    asked.messages = previous->messages;
    asked.bytes = previous->bytes;
  }
  const Json* input = f.find("input");
  if (!input) refuse("input", "missing");
  for (const Json& message : chat_of_input(*input)) add_message_of(message, asked.messages);
  asked.bytes += dump(*input).size();
  if (asked.messages.empty()) refuse("input", "empty");
  Json chat = chat_fields(body);
  chat["messages"] = Json::array();
  if (const auto instructions = f.text("instructions"))
    chat["messages"].push_back({{"role", "system"}, {"content", *instructions}});
  for (const Json& message : asked.messages) add_message_of(message, chat["messages"]);
  asked.echo = echo_of(body, asked.store);
  asked.generation = reading_chat(kFieldNames, [&] { return read_chat_request(model, chat); });
  return asked;
}

MakeForm responses_form(ResponsesRequest request) {
  return [request = std::move(request)](const AnswerData& answer) {
    return std::make_unique<ResponsesForm>(answer, request);
  };
}

}  // namespace ridge::serve
