#include "serve/api/anthropic.h"

#include <array>

#include "serve/api/chat_body.h"

namespace ridge::serve {
namespace {

constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"function.parameters", "input_schema"},
                                                                    {"function.", ""},
                                                                    {"stop", "stop_sequences"},
                                                                    {"continue_final_message", "messages"},
                                                                    {"response_format", "output_config.format"},
                                                                    {"reasoning_effort", "output_config.effort"},
                                                                    {"parallel_tool_calls", "tool_choice"}};
constexpr std::string_view kText[] = {"text"};

// ---- Requests

/// An assistant's blocks as one message.
Json assistant_message(const Json& blocks, const std::string& place) {
  Json message = {{"role", "assistant"}};
  std::string text, reasoning;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", place, i);
    if (!blocks[i].is_object()) refuse(at, "a block is an object");
    const std::string& type = need_text(blocks[i], "type", at);
    if (type == "text") {
      text += need_text(blocks[i], "text", at);
    } else if (type == "thinking") {
      reasoning += need_text(blocks[i], "thinking", at);
    } else if (type == "tool_use") {
      const Json* input = Fields(blocks[i]).find("input");
      if (input && !input->is_object()) refuse(at + ".input", fmt::format("{} is not an object", shown(*input)));
      message["tool_calls"].push_back(
          chat_call(need_text(blocks[i], "id", at), need_text(blocks[i], "name", at), input ? *input : Json::object()));
    } else {
      refuse(at + ".type",
             fmt::format("{} is not supported here, only text, thinking and tool_use", shown(blocks[i]["type"])));
    }
  }
  message["content"] = text.empty() && message.contains("tool_calls") ? Json() : Json(text);
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  return message;
}

/// A user's blocks: results of tools are messages of their own, texts between them are the user's.
void add_user_blocks(const Json& blocks, const std::string& place, Json& to) {
  bool goes_on = false;  // with the text of the newest message
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", place, i);
    if (!blocks[i].is_object()) refuse(at, "a block is an object");
    const std::string& type = need_text(blocks[i], "type", at);
    if (type == "text") {
      const std::string& text = need_text(blocks[i], "text", at);
      if (goes_on) to.back()["content"].get_ref<std::string&>().append("\n").append(text);
      else to.push_back({{"role", "user"}, {"content", text}});
    } else if (type == "tool_result") {
      Fields(blocks[i], at + ".").flag("is_error");
      const Json* content = Fields(blocks[i]).find("content");
      to.push_back({{"role", "tool"},
                    {"tool_call_id", need_text(blocks[i], "tool_use_id", at)},
                    {"content", content ? text_of_blocks(*content, kText, at + ".content") : ""}});
    } else {
      refuse(at + ".type", fmt::format("{} is not supported: this server reads blocks of type text and tool_result",
                                       shown(blocks[i]["type"])));
    }
    goes_on = type == "text";
  }
}

void add_message(const Json& message, const std::string& place, Json& to) {
  if (!message.is_object()) refuse(place, "every message is an object with a role");
  const std::string& role = need_text(message, "role", place);
  if (role != "user" && role != "assistant" && role != "system")
    refuse(place + ".role", fmt::format("{} is not user, assistant or system", shown(message["role"])));
  const Json* content = Fields(message).find("content");
  const std::string at = place + ".content";
  if (!content) refuse(at, "missing");
  if (!content->is_array() || role == "system")
    to.push_back({{"role", role}, {"content", text_of_blocks(*content, kText, at)}});
  else if (role == "assistant") to.push_back(assistant_message(*content, at));
  else add_user_blocks(*content, at, to);
}

Json chat_messages(const Json& body) {
  Json messages = Json::array();
  if (const Json* system = Fields(body).find("system"))
    messages.push_back({{"role", "system"}, {"content", text_of_blocks(*system, kText, "system")}});
  const Json* found = Fields(body).find("messages");
  if (!found || !found->is_array() || found->empty()) refuse("messages", "not a list of one message or more");
  for (size_t i = 0; i < found->size(); ++i) add_message((*found)[i], fmt::format("messages[{}]", i), messages);
  return messages;
}

Json chat_tool(const Json& tool, const std::string& place) {
  if (!tool.is_object()) refuse(place, "a tool is an object with a name and an input_schema");
  const Json* type = Fields(tool).find("type");
  if (type && *type != "custom")
    refuse(place + ".type",
           fmt::format("{} is not supported, only tools of the client with an input_schema", shown(*type)));
  Json function = {{"name", need_text(tool, "name", place)}};
  copy_fields(tool, std::array{"description", "strict"}, function);
  if (const Json* schema = Fields(tool).find("input_schema")) function["parameters"] = *schema;
  else refuse(place + ".input_schema", "missing");
  return {{"type", "function"}, {"function", std::move(function)}};
}

void read_tool_choice_of(const Json& body, Json& chat) {
  const Json* choice = Fields(body).find("tool_choice");
  if (!choice) return;
  const std::string* type = member_text(*choice, "type");
  if (!type) refuse("tool_choice", "an object with a type: auto, any, tool or none");
  if (*type == "auto" || *type == "none") chat["tool_choice"] = *type;
  else if (*type == "any") chat["tool_choice"] = "required";
  else if (*type == "tool")
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", need_text(*choice, "name", "tool_choice")}}}};
  else refuse("tool_choice.type", fmt::format("{} is not auto, any, tool or none", shown(*type)));
  if (const auto alone = Fields(*choice, "tool_choice.").flag("disable_parallel_tool_use"))
    chat["parallel_tool_calls"] = !*alone;
}

/// Thinking is a variable of the template, and a limit of the reasoning's tokens.
void read_thinking(const Json& body, Json& chat) {
  const Json* thinking = Fields(body).find("thinking");
  if (!thinking) return;
  if (!thinking->is_object()) refuse("thinking", fmt::format("{} is not an object", shown(*thinking)));
  const std::string& type = need_text(*thinking, "type", "thinking");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    refuse("thinking.type", fmt::format("{} is not enabled, adaptive or disabled", shown(type)));
  if (type == "enabled") {
    const auto budget = Fields(*thinking, "thinking.").whole("budget_tokens", 1, 1 << 26);
    if (!budget) refuse("thinking.budget_tokens", "missing");
    chat["thinking_budget_tokens"] = *budget;
  }
  chat["chat_template_kwargs"].emplace("enable_thinking", type != "disabled");
}

void read_output_config(const Json& body, Json& chat) {
  const Json* config = Fields(body).find("output_config");
  if (!config) return;
  if (!config->is_object()) refuse("output_config", fmt::format("{} is not an object", shown(*config)));
  if (const auto effort = Fields(*config, "output_config.").text("effort"))
    chat["reasoning_effort"] = *effort == "xhigh" || *effort == "max" ? "high" : *effort;
  const Json* format = Fields(*config).find("format");
  if (!format) return;
  const Json* schema = member_is(*format, "type", "json_schema") ? member(*format, "schema") : nullptr;
  if (!schema) refuse("output_config.format", "{\"type\": \"json_schema\", \"schema\": {...}}");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", *schema}}}};
}

// ---- Errors

std::string_view error_type(const ApiError& error) {
  switch (error.status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return error.status >= 500 ? "api_error" : "invalid_request_error";
  }
}

Json error_json(const ApiError& error, const std::string& request_id) {
  // Clients look for these words to learn that they must shorten the conversation.
  const bool too_long = error.code == "context_length_exceeded";
  return {
      {"type", "error"},
      {"error", {{"type", error_type(error)}, {"message", (too_long ? "prompt is too long: " : "") + error.message}}},
      {"request_id", request_id}};
}

http::Response error_response(const ApiError& error, const std::string& request_id) {
  http::Response response = error.response();  // status and Retry-After
  response.body = dump(error_json(error, request_id));
  response.headers.add("request-id", request_id);
  return response;
}

// ---- Answers

class AnthropicForm final : public ApiForm {
 public:
  explicit AnthropicForm(const AnswerData& answer) : ApiForm(answer, new_id("msg_")) {}

  void begin() override {
    Json start = message();
    start["usage"] = usage({.n_prompt = int(answer_.request.prompts[0].size())});
    push({{"type", "message_start"}, {"message", std::move(start)}}, "message_start");
    push({{"type", "ping"}}, "ping");
  }

  void add(size_t, const text::OutputDelta& delta) override {
    if (!delta.reasoning.empty()) add_text("thinking", delta.reasoning);
    if (!delta.content.empty()) add_text("text", delta.content);
    for (const text::ToolCall& call : delta.calls) add_call(call);
  }

  void end(size_t) override { close_block(); }

  void finish() override {
    push({{"type", "message_delta"},
          {"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
          {"usage", usage(answer_.usage())}},
         "message_delta");
    push({{"type", "message_stop"}}, "message_stop");
  }

  Json whole() override {
    Json json = message();
    json["content"] = std::move(blocks_);
    json["stop_reason"] = stop_reason();
    json["stop_sequence"] = stop_sequence();
    json["usage"] = usage(answer_.usage());
    return json;
  }

  void fail(const ApiError& error) override { push(error_json(error, request_id_), "error"); }
  http::Response refusal(const ApiError& error) const override { return error_response(error, request_id_); }
  http::Headers headers() const override { return {{{"request-id", request_id_}}}; }

 private:
  Json message() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", answer_.model.name},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  static Json usage(const Usage& u) {
    return {{"input_tokens", u.n_prompt - u.n_cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", u.n_cached},
            {"output_tokens", u.n_generated}};
  }

  std::string_view stop_reason() const {
    const ChoiceText& choice = answer_.choices[0];
    if (choice.reason == FinishReason::length) return "max_tokens";
    if (!choice.calls.empty()) return "tool_use";
    return choice.stop.empty() ? "end_turn" : "stop_sequence";
  }
  Json stop_sequence() const { return stop_reason() == "stop_sequence" ? Json(answer_.choices[0].stop) : Json(); }

  void open_block(Json block) {
    close_block();
    push({{"type", "content_block_start"}, {"index", blocks_.size()}, {"content_block", block}}, "content_block_start");
    blocks_.push_back(std::move(block));
    open_ = true;
  }

  void push_delta(Json delta) {
    push({{"type", "content_block_delta"}, {"index", blocks_.size() - 1}, {"delta", std::move(delta)}},
         "content_block_delta");
  }

  void close_block() {
    if (!open_) return;
    open_ = false;
    if (blocks_.back()["type"] == "thinking") {
      blocks_.back()["signature"] = id_;
      push_delta({{"type", "signature_delta"}, {"signature", id_}});
    }
    push({{"type", "content_block_stop"}, {"index", blocks_.size() - 1}}, "content_block_stop");
  }

  /// `type`: of the block, and the name of the member that holds its text.
  void add_text(const std::string& type, const std::string& text) {
    if (!open_ || blocks_.back()["type"] != type) {
      Json block = {{"type", type}, {type, ""}};
      if (type == "thinking") block["signature"] = "";
      open_block(std::move(block));
    }
    blocks_.back()[type].get_ref<std::string&>() += text;
    push_delta({{"type", type + "_delta"}, {type, text}});
  }

  void add_call(const text::ToolCall& call) {
    open_block({{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}});
    push_delta({{"type", "input_json_delta"}, {"partial_json", call.arguments}});
    blocks_.back()["input"] = parse_within<Json>(call.arguments).or_throw();
    close_block();
  }

  const std::string request_id_ = new_id("req_");
  Json blocks_ = Json::array();
  bool open_ = false;  ///< the newest block grows
};

}  // namespace

Json anthropic_chat(const Json& body) {
  for (const char* name : {"container", "mcp_servers"})
    if (Fields(body).find(name)) refuse(name, "not supported (leave the field out)");
  if (const auto tier = Fields(body).text("service_tier"); tier && *tier != "auto" && *tier != "standard_only")
    refuse("service_tier", fmt::format("{} is not supported (leave the field out)", shown(*tier)));
  Json chat = Json::object();
  copy_fields(body, std::array{"model", "max_tokens"}, chat);
  copy_shared_fields(body, chat);
  chat["messages"] = chat_messages(body);
  // A last message of the assistant is the beginning of the answer.
  if (const Json& last = chat["messages"].back(); last["role"] == "assistant" && !last.contains("tool_calls"))
    chat["continue_final_message"] = true;
  add_tools(body, chat_tool, chat);
  if (const Json* stops = Fields(body).find("stop_sequences")) chat["stop"] = *stops;
  chat["chat_template_kwargs"] = Json::object();
  if (const Json* variables = Fields(body).find("chat_template_kwargs"); variables && variables->is_object())
    chat["chat_template_kwargs"] = *variables;
  read_tool_choice_of(body, chat);
  read_thinking(body, chat);
  read_output_config(body, chat);
  return chat;
}

ApiRequest read_anthropic_request(const ApiModel& model, const Json& body) {
  if (!Fields(body).whole("max_tokens", 1, 1 << 26)) refuse("max_tokens", "missing");
  const Json chat = anthropic_chat(body);
  return reading_chat(kNames, [&] { return read_chat_request(model, chat); });
}

int64_t count_anthropic_tokens(const ApiModel& model, const Json& body) {
  const Json chat = anthropic_chat(body);
  return reading_chat(kNames, [&] { return ssize(read_chat_prompt(model, chat).tokens); });
}

std::unique_ptr<ApiForm> anthropic_form(const AnswerData& answer) { return std::make_unique<AnthropicForm>(answer); }

http::Response anthropic_refusal(const ApiError& error) { return error_response(error, new_id("req_")); }

}  // namespace ridge::serve
