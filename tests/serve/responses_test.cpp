// OpenAI's /v1/responses: what requests become, every event of an answer, stored answers, and refusals.
#include "serve/api/responses.h"
#include "scripted_fixture.h"

namespace ridge::serve {
namespace {

using testing::ElementsAre;

constexpr const char* kResponsesPath = "/v1/responses";
constexpr std::string_view kResponsesCall = "{\"name\": \"f\", \"arguments\": {\"n\": 1}}";
const Json kResponseTools =
    Json::parse(R"([{"type": "function", "name": "f", "description": "d", "strict": true, "parameters":
    {"type": "object", "properties": {"n": {"const": 1}}, "required": ["n"], "additionalProperties": false}}])");

Json responses_request(Json more = Json::object()) {
  Json body = {{"model", "m"}, {"input", "hi"}, {"max_output_tokens", 60}, {"temperature", 0}, {"seed", 1}};
  body.update(more);
  return body;
}

// ---- Requests as chats

TEST(ResponsesRequest, ItemsBecomeMessagesOfAChat) {
  const Json messages = chat_of_input(Json::parse(R"([
    {"role": "developer", "content": "a"}, {"role": "system", "content": [{"type": "input_text", "text": "b"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
    {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [
      {"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{\"n\": 1}", "status": "completed"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
    {"type": "function_call_output", "call_id": "c1", "output": "7"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "8"}]},
    {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "?"},
    {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}])"));
  EXPECT_EQ(messages, Json::parse(R"([
      {"role": "system", "content": "a\n\nb"},
      {"role": "user", "content": "x\ny"},
      {"role": "assistant", "content": "I look.", "reasoning_content": "t", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"n\": 1}"}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "7"},
      {"role": "tool", "tool_call_id": "c2", "content": "8"},
      {"role": "assistant", "content": null, "reasoning_content": "s", "tool_calls": [
        {"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}])"))
      << messages.dump(1);
}

// ---- Answers

class ResponsesApi : public ScriptedServer {
 protected:
  Json refused(const Json& body, int status = 400) const {
    const http::Response response = post(kResponsesPath, body);
    EXPECT_EQ(response.status, status) << response.body;
    return Json::parse(response.body)["error"];
  }
  void open_thinker() {
    ChatMl model;
    for (const char* mark : {"<think>", "</think>", "<tool_call>", "</tool_call>"})
      model.add(mark, io::TokenType::control);
    model.say(kLineEnd, {"<think>", "I think", "</think>", "\n\n", "Yes", ", f.", "<tool_call>", kResponsesCall,
                         "</tool_call>", "<|im_end|>"});
    open(model, std::string("{% if tools %}<tool_call>{% endif %}") + kChatMl);
  }
  void open_speaker() {
    ChatMl model;
    model.say(kLineEnd, {"Hello", " you", "<|im_end|>"});
    open(model, kChatMl);
  }
};

TEST_F(ResponsesApi, EventsOfReasoningTextAndACall) {
  open_thinker();
  std::vector<std::string> lines = events(kResponsesPath, responses_request({{"tools", kResponseTools}}));
  ASSERT_EQ(lines.size(), 20u);
  // The whole response stands in the first two events and in the last one.
  std::vector<Json> responses;
  for (const size_t i : {size_t(0), size_t(1), size_t(19)}) {
    const size_t at = lines[i].find(' ');
    Json event = Json::parse(lines[i].substr(at + 1));
    responses.push_back(event["response"]);
    event["response"] = event["response"]["status"];
    lines[i].replace(at + 1, std::string::npos, event.dump());
  }
  for (std::string& line : lines)
    line = std::regex_replace(line, std::regex("\"call_id\":\"[A-Za-z0-9]{9}\""), "\"call_id\":\"CALL\"");
  EXPECT_THAT(
      lines,
      ElementsAre(
          R"(response.created {"type":"response.created","sequence_number":0,"response":"in_progress"})",
          R"(response.in_progress {"type":"response.in_progress","sequence_number":1,"response":"in_progress"})",
          R"(response.output_item.added {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"rs_ID","type":"reasoning","status":"in_progress","summary":[],"content":[]}})",
          R"(response.content_part.added {"type":"response.content_part.added","sequence_number":3,"item_id":"rs_ID","output_index":0,"part":{"type":"reasoning_text","text":""},"content_index":0})",
          R"(response.reasoning_text.delta {"type":"response.reasoning_text.delta","sequence_number":4,"item_id":"rs_ID","output_index":0,"delta":"I think","content_index":0})",
          R"(response.reasoning_text.done {"type":"response.reasoning_text.done","sequence_number":5,"item_id":"rs_ID","output_index":0,"text":"I think","content_index":0})",
          R"(response.content_part.done {"type":"response.content_part.done","sequence_number":6,"item_id":"rs_ID","output_index":0,"part":{"type":"reasoning_text","text":"I think"},"content_index":0})",
          R"(response.output_item.done {"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":{"id":"rs_ID","type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"I think"}]}})",
          R"(response.output_item.added {"type":"response.output_item.added","sequence_number":8,"output_index":1,"item":{"id":"msg_ID","type":"message","status":"in_progress","role":"assistant","content":[]}})",
          R"(response.content_part.added {"type":"response.content_part.added","sequence_number":9,"item_id":"msg_ID","output_index":1,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]},"content_index":0})",
          R"(response.output_text.delta {"type":"response.output_text.delta","sequence_number":10,"item_id":"msg_ID","output_index":1,"delta":"Yes","content_index":0,"logprobs":[]})",
          R"(response.output_text.delta {"type":"response.output_text.delta","sequence_number":11,"item_id":"msg_ID","output_index":1,"delta":", f.","content_index":0,"logprobs":[]})",
          R"(response.output_text.done {"type":"response.output_text.done","sequence_number":12,"item_id":"msg_ID","output_index":1,"text":"Yes, f.","content_index":0,"logprobs":[]})",
          R"(response.content_part.done {"type":"response.content_part.done","sequence_number":13,"item_id":"msg_ID","output_index":1,"part":{"type":"output_text","text":"Yes, f.","annotations":[],"logprobs":[]},"content_index":0})",
          R"(response.output_item.done {"type":"response.output_item.done","sequence_number":14,"output_index":1,"item":{"id":"msg_ID","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Yes, f.","annotations":[],"logprobs":[]}]}})",
          R"(response.output_item.added {"type":"response.output_item.added","sequence_number":15,"output_index":2,"item":{"id":"fc_ID","type":"function_call","status":"in_progress","call_id":"CALL","name":"f","arguments":""}})",
          R"(response.function_call_arguments.delta {"type":"response.function_call_arguments.delta","sequence_number":16,"item_id":"fc_ID","output_index":2,"delta":"{\"n\":1}"})",
          R"(response.function_call_arguments.done {"type":"response.function_call_arguments.done","sequence_number":17,"item_id":"fc_ID","output_index":2,"name":"f","arguments":"{\"n\":1}"})",
          R"(response.output_item.done {"type":"response.output_item.done","sequence_number":18,"output_index":2,"item":{"id":"fc_ID","type":"function_call","status":"completed","call_id":"CALL","name":"f","arguments":"{\"n\":1}"}})",
          R"(response.completed {"type":"response.completed","sequence_number":19,"response":"completed"})"));
  EXPECT_EQ(responses[0]["output"], Json::array());
  EXPECT_EQ(responses[0]["tools"], kResponseTools);
  EXPECT_EQ(responses[2]["output"].size(), 3u);
  EXPECT_EQ(responses[2]["usage"]["output_tokens"], 10);
  EXPECT_EQ(responses[2]["usage"]["output_tokens_details"]["reasoning_tokens"], 7) << "bytes of a text without merges";
  const Json whole = ok(kResponsesPath, responses_request({{"tools", kResponseTools}}));
  EXPECT_EQ(whole["object"], "response");
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "I think");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "Yes, f.");
  EXPECT_EQ(whole["output"][2]["arguments"], "{\"n\":1}");
  EXPECT_EQ(whole["max_output_tokens"], 60);
  EXPECT_EQ(whole["tool_choice"], "auto");
}

TEST_F(ResponsesApi, AnAnswerThatTheLimitCutsIsIncomplete) {
  open_speaker();
  const std::vector<std::string> lines = events(kResponsesPath, responses_request({{"max_output_tokens", 1}}));
  EXPECT_THAT(lines.back(), testing::StartsWith("response.incomplete "));
  const Json whole = ok(kResponsesPath, responses_request({{"max_output_tokens", 1}}));
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"][0]["status"], "incomplete");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Hello");
}

TEST_F(ResponsesApi, FormsAndForcedCalls) {
  open_speaker();
  const auto output = [&](const Json& more) { return ok(kResponsesPath, responses_request(more))["output"][0]; };
  const Json form = {{"type", "json_schema"}, {"name", "n"}, {"strict", true}, {"schema", {{"const", 5}}}};
  EXPECT_EQ(output({{"text", {{"format", form}}}})["content"][0]["text"], "5");
  EXPECT_EQ(output({{"text", {{"format", {{"type", "text"}}}}}})["content"][0]["text"], "Hello you");
  const Json f = {{"type", "function"}, {"name", "f"}};
  for (const Json& choice : {Json("required"), f})
    EXPECT_EQ(output({{"tools", kResponseTools}, {"tool_choice", choice}})["arguments"], "{\"n\":1}");
}

TEST_F(ResponsesApi, ConversationsGoOnFromStoredAnswers) {
  open_speaker();
  const Json first =
      ok(kResponsesPath, responses_request({{"instructions", "Be brief."}, {"input", std::string(300, 'x')}}));
  const std::string id = first["id"];
  EXPECT_EQ(Json::parse(client().get("/v1/responses/" + id)->body), first);
  const Json second =
      ok(kResponsesPath,
         responses_request({{"instructions", "Be brief."}, {"input", "more"}, {"previous_response_id", id}}));
  EXPECT_EQ(second["previous_response_id"], id);
  EXPECT_GT(second["usage"]["input_tokens_details"]["cached_tokens"].get<int>(), 300);
  // The whole conversation by hand gives the same prompt; instructions do not go on.
  const Json messages = {{{"role", "user"}, {"content", std::string(300, 'x')}},
                         {{"role", "assistant"}, {"content", "Hello you"}},
                         {{"role", "user"}, {"content", "more"}}};
  const Json by_hand =
      ok(kResponsesPath, responses_request({{"instructions", "Be brief."}, {"input", messages}, {"store", false}}));
  EXPECT_EQ(by_hand["usage"]["input_tokens"], second["usage"]["input_tokens"]);
  EXPECT_LT(
      ok(kResponsesPath, responses_request({{"input", "more"}, {"previous_response_id", id}}))["usage"]["input_tokens"],
      second["usage"]["input_tokens"]);
  EXPECT_EQ(client().get("/v1/responses/" + by_hand["id"].get<std::string>())->status, 404) << "store: false";
  const auto erase = [&] { return client().request("DELETE", "/v1/responses/" + id, "", {}).or_throw(); };
  EXPECT_EQ(Json::parse(erase().body), Json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(erase().status, 404);
  EXPECT_EQ(refused(responses_request({{"previous_response_id", id}}))["code"], "previous_response_not_found");
}

TEST_F(ResponsesApi, AStreamIsStoredToo) {
  open_speaker();
  std::string id;
  const auto heard = client().events("POST", kResponsesPath, responses_request({{"stream", true}}).dump(), {},
                                     [&](std::string_view data) {
                                       id = Json::parse(data).value("response", Json({{"id", id}}))["id"];
                                       return true;
                                     });
  ASSERT_TRUE(heard);
  EXPECT_EQ(Json::parse(client().get("/v1/responses/" + id)->body)["output"][0]["content"][0]["text"], "Hello you");
}

TEST_F(ResponsesApi, AnswersBelongToTheirKey) {
  ChatMl model;
  model.say(kLineEnd, {"Hello", "<|im_end|>"});
  open(model, kChatMl, {.keys = http::Keys::parse("sk-a\nsk-b\n", "keys").or_throw()});
  const http::Headers a = {{{"Authorization", "Bearer sk-a"}}}, b = {{{"Authorization", "Bearer sk-b"}}};
  const std::string id = Json::parse(post(kResponsesPath, responses_request(), a).body)["id"];
  EXPECT_EQ(client().get("/v1/responses/" + id, a)->status, 200);
  EXPECT_EQ(client().get("/v1/responses/" + id, b)->status, 404);
  EXPECT_EQ(client().request("DELETE", "/v1/responses/" + id, "", b)->status, 404);
  EXPECT_EQ(post(kResponsesPath, responses_request({{"previous_response_id", id}}), b).status, 400);
  EXPECT_EQ(post(kResponsesPath, responses_request({{"previous_response_id", id}}), a).status, 200);
}

TEST_F(ResponsesApi, FaultsAreNamed) {
  open_speaker();
  const auto fault = [&](const Json& more) { return refused(responses_request(more))["param"].dump(); };
  const auto of_item = [&](const Json& item) { return fault({{"input", Json::array({item})}}); };
  EXPECT_EQ(fault({{"input", 5}}), "\"input\"");
  EXPECT_EQ(fault({{"input", nullptr}}), "\"input\"");
  EXPECT_EQ(fault({{"input", Json::array()}}), "\"input\"");
  EXPECT_EQ(of_item(5), "\"input[0]\"");
  EXPECT_EQ(of_item({{"role", "tool"}, {"content", "x"}}), "\"input[0].role\"");
  EXPECT_EQ(of_item({{"role", "user"}}), "\"input[0].content\"");
  EXPECT_EQ(of_item({{"role", "user"}, {"content", {{{"type", "input_image"}}}}}), "\"input[0].content[0].type\"");
  EXPECT_EQ(of_item({{"type", "item_reference"}, {"id", "x"}}), "\"input[0].type\"");
  EXPECT_EQ(of_item({{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}}), "\"input[0].arguments\"");
  EXPECT_EQ(of_item({{"type", "function_call_output"}, {"call_id", "c"}}), "\"input[0].output\"");
  EXPECT_EQ(of_item({{"type", "function_call_output"}, {"output", "c"}}), "\"input[0].call_id\"");
  EXPECT_EQ(fault({{"tools", {{{"type", "web_search"}}}}}), "\"tools[0].type\"");
  Json tools = kResponseTools;
  tools[0]["parameters"] = 5;
  EXPECT_EQ(fault({{"tools", tools}}), "\"tools[0].parameters\"");
  EXPECT_EQ(fault({{"tool_choice", {{"type", "allowed_tools"}}}}), "\"tool_choice\"");
  EXPECT_EQ(fault({{"text", {{"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", {{"type", "cat"}}}}}}}}),
            "\"text.format\"");
  EXPECT_EQ(fault({{"text", {{"verbosity", "high"}}}}), "\"text.verbosity\"");
  EXPECT_EQ(fault({{"reasoning", 5}}), "\"reasoning\"");
  EXPECT_EQ(fault({{"max_output_tokens", 0}}), "\"max_output_tokens\"");
  EXPECT_EQ(fault({{"background", true}}), "\"background\"");
  EXPECT_EQ(fault({{"truncation", "auto"}}), "\"truncation\"");
  EXPECT_EQ(fault({{"include", {"message.output_text.logprobs"}}}), "\"include\"");
  for (const char* field : {"conversation", "prompt", "context_management"})
    EXPECT_EQ(fault({{field, "x"}}), Json(field).dump());
  EXPECT_EQ(refused(responses_request({{"input", std::string(5000, 'x')}}))["code"], "context_length_exceeded");
  EXPECT_EQ(ok(kResponsesPath,
               responses_request({{"include", {"reasoning.encrypted_content"}}, {"truncation", "disabled"}}))["status"],
            "completed");
}

TEST(ResponseStoreTest, TheAnswerUsedLongestAgoLeaves) {
  ResponseStore store;
  const size_t third = ResponseStore::kMaxBytes / 3;
  for (const char* id : {"a", "b", "c"}) store.put({.id = id, .bytes = third});
  EXPECT_NE(store.find("a", 0), nullptr);
  store.put({.id = "d", .bytes = third});
  EXPECT_EQ(store.find("b", 0), nullptr);
  EXPECT_NE(store.find("a", 0), nullptr);
  store.put({.id = "e", .bytes = ResponseStore::kMaxBytes + 1});
  EXPECT_EQ(store.find("e", 0), nullptr);
  EXPECT_NE(store.find("d", 0), nullptr);
  for (size_t i = 0; i <= ResponseStore::kMaxCount; ++i) store.put({.id = std::to_string(i)});
  EXPECT_EQ(store.find("0", 0), nullptr);
  EXPECT_NE(store.find("1", 0), nullptr);
}

}  // namespace
}  // namespace ridge::serve
