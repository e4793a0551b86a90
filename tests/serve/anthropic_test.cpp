// Anthropic's /v1/messages: what requests become, every event of an answer, and refusals.
#include "serve/api/anthropic.h"
#include "scripted_fixture.h"

namespace ridge::serve {
namespace {

using testing::ElementsAre;

constexpr const char* kPath = "/v1/messages";
constexpr std::string_view kCall = "{\"name\": \"f\", \"arguments\": {\"n\": 1}}";
const Json kTools = Json::parse(R"([{"name": "f", "description": "d", "input_schema": {"type": "object",
    "properties": {"n": {"const": 1}}, "required": ["n"], "additionalProperties": false}}])");

Json request(Json more = Json::object()) {
  Json body = {{"model", "claude"},
               {"messages", {{{"role", "user"}, {"content", "hi"}}}},
               {"max_tokens", 60},
               {"temperature", 0},
               {"seed", 1}};
  body.update(more);
  return body;
}

// ---- Requests as chats

TEST(AnthropicRequest, BlocksBecomeMessagesOfAChat) {
  const Json chat = anthropic_chat(Json::parse(R"({
    "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                              {"type": "text", "text": "b"}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"n": 1}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "7"}, {"type": "text", "text": "8"}]},
        {"type": "tool_result", "tool_use_id": "c2", "is_error": true}, {"type": "text", "text": "and?"}]}],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
    "stop_sequences": ["z"], "top_k": 4, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "max"}, "metadata": {"user_id": "u"}, "unknown": 1})"));
  EXPECT_EQ(chat, Json::parse(R"({
    "model": "m", "max_tokens": 5, "top_k": 4, "metadata": {"user_id": "u"},
    "messages": [
      {"role": "system", "content": "a\nb"},
      {"role": "user", "content": "x\ny"},
      {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"n": 1}}}],
       "content": "I look.", "reasoning_content": "t"},
      {"role": "tool", "tool_call_id": "c1", "content": "7\n8"},
      {"role": "tool", "tool_call_id": "c2", "content": ""},
      {"role": "user", "content": "and?"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "stop": ["z"], "chat_template_kwargs": {"enable_thinking": true},
    "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
    "thinking_budget_tokens": 1024, "reasoning_effort": "high"})"))
      << chat.dump(1);
}

TEST(AnthropicRequest, FaultsAreNamed) {
  const auto fault = [](const char* place, const Json& value) -> std::string {
    Json body = request({{"tools", kTools}, {"system", "s"}});
    body["messages"].push_back(
        {{"role", "assistant"}, {"content", {{{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", {}}}}}});
    body["messages"].push_back(
        {{"role", "user"}, {"content", {{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", "x"}}}}});
    body[Json::json_pointer(place)] = value;
    try {
      anthropic_chat(body);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      return error.param;
    }
    return "taken";
  };
  EXPECT_EQ(fault("/system", 5), "system");
  EXPECT_EQ(fault("/system", {{{"type", "image"}}}), "system[0].type");
  EXPECT_EQ(fault("/messages", Json::array()), "messages");
  EXPECT_EQ(fault("/messages/0", 5), "messages[0]");
  EXPECT_EQ(fault("/messages/0/role", "tool"), "messages[0].role");
  EXPECT_EQ(fault("/messages/0/content", 5), "messages[0].content");
  EXPECT_EQ(fault("/messages/0/content", nullptr), "messages[0].content");
  EXPECT_EQ(fault("/messages/0/content", {5}), "messages[0].content[0]");
  for (const char* type : {"image", "document", "search_result", "container_upload", "tool_use", ""})
    EXPECT_EQ(fault("/messages/0/content", {{{"type", type}}}), "messages[0].content[0].type") << type;
  EXPECT_EQ(fault("/messages/1/content/0/type", "redacted_thinking"), "messages[1].content[0].type");
  EXPECT_EQ(fault("/messages/1/content/0/input", "x"), "messages[1].content[0].input");
  EXPECT_EQ(fault("/messages/1/content/0/id", 5), "messages[1].content[0].id");
  EXPECT_EQ(fault("/messages/2/content/0/tool_use_id", nullptr), "messages[2].content[0].tool_use_id");
  EXPECT_EQ(fault("/messages/2/content/0/is_error", 1), "messages[2].content[0].is_error");
  EXPECT_EQ(fault("/messages/2/content/0/content", {{{"type", "image"}}}), "messages[2].content[0].content[0].type");
  EXPECT_EQ(fault("/tools", 5), "tools");
  EXPECT_EQ(fault("/tools/0", 5), "tools[0]");
  EXPECT_EQ(fault("/tools/0/type", "web_search_20250305"), "tools[0].type");
  EXPECT_EQ(fault("/tools/0/input_schema", nullptr), "tools[0].input_schema");
  EXPECT_EQ(fault("/tool_choice", "auto"), "tool_choice");
  EXPECT_EQ(fault("/tool_choice", {{"type", "some"}}), "tool_choice.type");
  EXPECT_EQ(fault("/tool_choice", {{"type", "tool"}}), "tool_choice.name");
  EXPECT_EQ(fault("/tool_choice", {{"type", "any"}, {"disable_parallel_tool_use", 1}}),
            "tool_choice.disable_parallel_tool_use");
  EXPECT_EQ(fault("/thinking", 5), "thinking");
  EXPECT_EQ(fault("/thinking", {{"type", "deep"}}), "thinking.type");
  EXPECT_EQ(fault("/thinking", {{"type", "enabled"}}), "thinking.budget_tokens");
  EXPECT_EQ(fault("/output_config", {{"format", {{"type", "xml"}}}}), "output_config.format");
  EXPECT_EQ(fault("/container", "c"), "container");
  EXPECT_EQ(fault("/mcp_servers", {1}), "mcp_servers");
  EXPECT_EQ(fault("/service_tier", "priority"), "service_tier");
  EXPECT_EQ(fault("/service_tier", "standard_only"), "taken");
}

// ---- Answers

class AnthropicApi : public ScriptedServer {
 protected:
  /// "type: message" of a refusal.
  std::string refused(const Json& body, int status = 400, const std::string& path = kPath) const {
    const http::Response response = post(path, body);
    EXPECT_EQ(response.status, status) << response.body;
    const Json json = Json::parse(response.body);
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["request_id"], response.headers.get("request-id"));
    return json["error"]["type"].get<std::string>() + ": " + json["error"]["message"].get<std::string>();
  }
  void open_thinker() {
    ChatMl model;
    for (const char* mark : {"<think>", "</think>", "<tool_call>", "</tool_call>"})
      model.add(mark, io::TokenType::control);
    model.say(kLineEnd, {"<think>", "I think", "</think>", "\n\n", "Yes", ", f.", "<tool_call>", kCall, "</tool_call>",
                         "<|im_end|>"});
    open(model, std::string("{% if tools %}<tool_call>{% endif %}") + kChatMl);
  }
};

TEST_F(AnthropicApi, EventsOfThinkingTextAndACall) {
  open_thinker();
  const auto call_id = [](const std::string& line) {
    return std::regex_replace(line, std::regex("\"id\":\"[A-Za-z0-9]{9}\""), "\"id\":\"CALL\"");
  };
  std::vector<std::string> lines = events(kPath, request({{"tools", kTools}}));
  for (std::string& line : lines) line = call_id(line);
  EXPECT_THAT(
      lines,
      ElementsAre(
          R"(message_start {"type":"message_start","message":{"id":"msg_ID","type":"message","role":"assistant","model":"scripted","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":22,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}})",
          R"(ping {"type":"ping"})",
          R"(content_block_start {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}})",
          R"(content_block_delta {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"I think"}})",
          R"(content_block_delta {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"msg_ID"}})",
          R"(content_block_stop {"type":"content_block_stop","index":0})",
          R"(content_block_start {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}})",
          R"(content_block_delta {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Yes"}})",
          R"(content_block_delta {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":", f."}})",
          R"(content_block_stop {"type":"content_block_stop","index":1})",
          R"(content_block_start {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"CALL","name":"f","input":{}}})",
          R"(content_block_delta {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"n\":1}"}})",
          R"(content_block_stop {"type":"content_block_stop","index":2})",
          R"(message_delta {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":22,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":10}})",
          R"(message_stop {"type":"message_stop"})"));
  const Json whole = ok(kPath, request({{"tools", kTools}}));
  EXPECT_EQ(whole["content"].size(), 3u);
  EXPECT_EQ(whole["content"][0]["thinking"], "I think");
  EXPECT_EQ(whole["content"][0]["signature"], whole["id"]);
  EXPECT_EQ(whole["content"][1], Json({{"type", "text"}, {"text", "Yes, f."}}));
  EXPECT_EQ(whole["content"][2]["input"], Json({{"n", 1}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["role"], "assistant");
}

TEST_F(AnthropicApi, ABudgetEndsTheThinking) {
  ChatMl model;
  for (const char* mark : {"<think>", "</think>"}) model.add(mark, io::TokenType::control);
  model.say(kLineEnd, {"<think>", "I", " think", " so", "</think>", "Yes", "<|im_end|>"});
  open(model, kChatMl);
  const Json answer = ok(kPath, request({{"thinking", {{"type", "enabled"}, {"budget_tokens", 2}}}}));
  EXPECT_EQ(answer["content"][0]["thinking"], "I think");
  EXPECT_EQ(answer["content"][1]["text"], "Yes");
  EXPECT_EQ(answer["stop_reason"], "end_turn");
}

TEST_F(AnthropicApi, ReasonsOfTheEnd) {
  open_thinker();
  const auto end = [&](const Json& more) {
    const Json json = ok(kPath, request(more));
    std::string text;
    for (const Json& block : json["content"]) text += block.value("text", "");
    return text + "|" + json["stop_reason"].get<std::string>() + "|" + json["stop_sequence"].dump();
  };
  EXPECT_EQ(end({{"stop_sequences", {", f"}}}), "Yes|stop_sequence|\", f\"");
  EXPECT_EQ(end({{"max_tokens", 5}}), "Yes|max_tokens|null");
  ChatMl model;
  model.say(kLineEnd, {"Hello", "<|im_end|>"});
  open(model, kChatMl);
  EXPECT_EQ(end(Json::object()), "Hello|end_turn|null");
  EXPECT_EQ(end({{"tools", kTools}, {"tool_choice", {{"type", "any"}}}}), "|tool_use|null");
  EXPECT_EQ(end({{"output_config", {{"format", {{"type", "json_schema"}, {"schema", {{"const", 5}}}}}}}}),
            "5|end_turn|null");
}

TEST_F(AnthropicApi, TheLastMessageOfTheAssistantGoesOn) {
  ChatMl model;
  model.say('A', {" dog", "<|im_end|>"});
  open(model, kChatMl);
  const Json begun = {{{"role", "user"}, {"content", "?"}}, {{"role", "assistant"}, {"content", "A"}}};
  EXPECT_EQ(ok(kPath, request({{"messages", begun}}))["content"][0]["text"], " dog");
}

TEST_F(AnthropicApi, PrefixesAreCounted) {
  ChatMl model;
  model.say(kLineEnd, {"Hello", "<|im_end|>"});
  open(model, kChatMl);
  Json body = request();
  body["messages"][0]["content"] = std::string(300, 'x');
  const Json first = ok(kPath, body)["usage"];
  EXPECT_EQ(first["cache_read_input_tokens"], 0);
  const int64_t n = ok("/v1/messages/count_tokens", body)["input_tokens"];
  EXPECT_EQ(first["input_tokens"], n);
  body["messages"].push_back({{"role", "assistant"}, {"content", "Hello"}});
  body["messages"].push_back({{"role", "user"}, {"content", "more"}});
  const Json second = ok(kPath, body)["usage"];
  EXPECT_GT(second["cache_read_input_tokens"].get<int>(), 250);
  EXPECT_EQ(second["cache_read_input_tokens"].get<int64_t>() + second["input_tokens"].get<int64_t>(),
            ok("/v1/messages/count_tokens", body)["input_tokens"].get<int64_t>());
  body["messages"][0]["content"] = std::string(5000, 'x');
  EXPECT_GT(ok("/v1/messages/count_tokens", body)["input_tokens"], 5000) << "longer than the context";
}

TEST_F(AnthropicApi, RefusalsHaveTheirForm) {
  ChatMl model;
  model.say(kLineEnd, {"Hello", "<|im_end|>"});
  open(model, kChatMl, {.keys = http::Keys::parse("sk-test\n", "keys").or_throw()});
  EXPECT_THAT(refused(request(), 401), testing::StartsWith("authentication_error: "));
  EXPECT_THAT(refused(request(), 401, "/v1/messages/count_tokens"), testing::StartsWith("authentication_error: "));
  const http::Response answer =
      post(kPath, request(), {{{"x-api-key", "sk-test"}, {"anthropic-version", "2023-06-01"}}});
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(std::string(answer.headers.get("request-id")), testing::StartsWith("req_"));
  open(model, kChatMl);
  Json body = request();
  body.erase("max_tokens");
  EXPECT_EQ(refused(body), "invalid_request_error: max_tokens: missing");
  EXPECT_EQ(refused(request({{"max_tokens", 0}})),
            "invalid_request_error: max_tokens: 0 is out of range (1 to 67108864)");
  EXPECT_EQ(refused(request({{"stop_sequences", {""}}})),
            "invalid_request_error: stop_sequences: \"\" is not a text of one character or more");
  Json tool = kTools;
  tool[0]["input_schema"]["type"] = "array";
  EXPECT_EQ(refused(request({{"tools", tool}})),
            "invalid_request_error: tools[0].input_schema.type: \"array\" is not \"object\"");
  tool[0]["name"] = "a b";
  EXPECT_EQ(refused(request({{"tools", tool}})),
            "invalid_request_error: tools[0].name: missing, or not 1 to 64 letters, digits, and characters of _ . : -");
  const Json image = {{{"role", "user"}, {"content", {{{"type", "image"}, {"source", {{"type", "url"}}}}}}}};
  EXPECT_EQ(refused(request({{"messages", image}})),
            "invalid_request_error: messages[0].content[0].type: \"image\" is not supported: this server reads blocks "
            "of type text and tool_result");
  body = request();
  body["messages"][0]["content"] = std::string(5000, 'x');
  EXPECT_THAT(refused(body), testing::StartsWith("invalid_request_error: prompt is too long: "));
}

}  // namespace
}  // namespace ridge::serve
