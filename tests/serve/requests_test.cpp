// What requests may say: wrong types at every place, depth, fields that ask for nothing, prompts that are scored.
#include <future>

#include "api_fixture.h"
#include "serve/api/anthropic.h"
#include "serve/api/embeddings.h"
#include "serve/api/llama.h"
#include "serve/api/responses.h"
#include "serve/messages.h"

namespace ridge::serve {
namespace {

constexpr const char* kToolTemplate =
    "{% if tools %}{% for tool in tools %}{{ tool.function.parameters | tojson }}\n{% endfor %}Write "
    "<tool_call>\\n{...}\\n</tool_call>.\n{% endif %}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}";

class RequestTest : public ApiTest {
 protected:
  ApiModel api_model(const char* source = kToolTemplate) const {
    return {
        .engine = model().engine(), .name = "stories", .chat_template = {.named = {{"default", source}}}, .n_ctx = 512};
  }
  /// 200, or the status of the refusal; anything else that is thrown is a fault of ours.
  static int status_of(const ApiModel& model, const std::string& path, const Json& body, std::string* why = nullptr) {
    try {
      if (path == "chat") (void)read_chat_request(model, body).choice(0, 0);
      else if (path == "messages") (void)read_anthropic_request(model, body).choice(0, 0);
      else if (path == "llama") (void)read_llama_request(model, body).choice(0, 0);
      else if (path == "embeddings") (void)read_embeddings_request(model, body);
      else if (path == "responses") (void)read_responses_request(model, body, 0).generation.choice(0, 0);
      else (void)read_completion_request(model, body).choice(0, 0);
      return 200;
    } catch (const ApiError& error) {
      if (why) *why = error.param + ": " + error.message;
      return error.status;
    }
  }
};

const Json kChat = Json::parse(R"({
  "model": "m", "messages": [
    {"role": "system", "content": "Be brief.", "name": "s"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "reasoning_content": "r",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, {\"b\": null}]}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "done"}],
  "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": true, "parameters":
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"type": "integer"}}}}}],
  "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
  "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "n": 2, "stop": ["x"], "max_tokens": 5,
  "max_completion_tokens": 4, "presence_penalty": 0.1, "frequency_penalty": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 5,
  "logit_bias": {"5": 1}, "logprobs": true, "top_logprobs": 2, "stream": true, "stream_options": {"include_usage": true},
  "chat_template_kwargs": {"x": [1]}, "reasoning_effort": "low", "continue_final_message": false,
  "add_generation_prompt": true, "service_tier": "auto", "store": false, "user": "u", "metadata": {"a": "b"},
  "modalities": ["text"], "kv_quant": "f16", "speculative": false, "ignore_eos": true})");
const Json kFormat = Json::parse(R"({
  "messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema", "json_schema": {"name": "s",
  "strict": true, "schema": {"type": "object", "title": "t", "properties": {"a": {"anyOf": [{"type": "string",
  "pattern": "^a+$"}, {"enum": ["x", 1]}, {"type": "array", "items": {"type": "number", "minimum": 1}, "minItems": 1,
  "prefixItems": [true]}, {"const": null}]}, "b": {"allOf": [{"type": "integer", "maximum": 5}, {"minimum": 2}], "nullable": true}},
  "required": ["a"], "additionalProperties": false}}}})");
const Json kMessages = Json::parse(R"({
  "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], "messages": [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "b"},
      {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1]}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "is_error": false, "content": [{"type": "text", "text": "r"}]}]}],
  "tools": [{"name": "f", "type": "custom", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "array"}}}}],
  "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true}, "stop_sequences": ["x"], "temperature": 0.5,
  "top_p": 0.9, "top_k": 5, "stream": true, "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
  "output_config": {"effort": "low"}, "service_tier": "auto", "chat_template_kwargs": {"x": 1}})");
const Json kResponses = Json::parse(R"({
  "model": "m", "instructions": "i", "input": [{"role": "developer", "content": "d"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r"}]}],
  "tools": [{"type": "function", "name": "f", "description": "d", "strict": true, "parameters": {"type": "object"}}],
  "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": true, "reasoning": {"effort": "low", "summary": "auto"},
  "text": {"format": {"type": "text"}, "verbosity": "medium"}, "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9, "store": false,
  "include": ["reasoning.encrypted_content"], "truncation": "disabled", "background": false, "metadata": {"a": "b"},
  "stream": true, "stream_options": {"include_obfuscation": false}, "max_tool_calls": 3, "top_logprobs": 0, "service_tier": "auto"})");
const Json kLlama =
    Json::parse(R"({"prompt": [1, 5, 6], "n_predict": 5, "temperature": 0.5, "seed": -1, "stop": ["x"], "stream": true,
  "logit_bias": [[5, 1.5], [6, false]], "json_schema": {"type": "object"}, "n_probs": 0, "mirostat": 0, "cache_prompt": true})");
const Json kEmbeddings =
    Json::parse(R"({"model": "m", "input": ["a", [1, 5]], "encoding_format": "base64", "dimensions": 8,
  "pooling": "last", "user": "u", "kv_quant": "f16"})");
const Json kCompletion = Json::parse(R"({
  "prompt": [[1, 5, 6], [1, 7]], "echo": true, "logprobs": 2, "max_tokens": 0, "n": 1, "best_of": 1, "suffix": "",
  "grammar": "root ::= \"a\"", "stop": "x", "logit_bias": {"5": 1}, "seed": 3, "stream": false})");

/// Every place of a document, the whole of it first.
void find_places(const Json& json, const Json::json_pointer& at, std::vector<Json::json_pointer>& places) {
  places.push_back(at);
  if (json.is_object())
    for (const auto& [key, value] : json.items()) find_places(value, at / key, places);
  if (json.is_array())
    for (size_t i = 0; i < json.size(); ++i) find_places(json[i], at / i, places);
}

TEST_F(RequestTest, AnyTypeAtAnyPlaceIsTakenOrRefused) {
  Json deep = 1;
  for (int i = 0; i < 50; ++i) deep = Json::array({std::move(deep)});
  const Json others[] = {nullptr,
                         true,
                         0,
                         -1,
                         1.5,
                         1e300,
                         UINT64_MAX,
                         INT64_MIN,
                         "",
                         "x",
                         "{}",
                         "null",
                         Json::array(),
                         Json::array({1}),
                         deep,
                         Json::object(),
                         {{"type", 5}},
                         {{"a", deep}},
                         std::string(5000, 'y')};
  const ApiModel model = api_model();
  int n_refused = 0, n_taken = 0;
  for (const auto& [path, valid] : {std::pair{"chat", &kChat},
                                    {"chat", &kFormat},
                                    {"completion", &kCompletion},
                                    {"llama", &kLlama},
                                    {"embeddings", &kEmbeddings},
                                    {"messages", &kMessages},
                                    {"responses", &kResponses}}) {
    std::string why;
    ASSERT_EQ(status_of(model, path, *valid, &why), 200) << why;
    std::vector<Json::json_pointer> places;
    find_places(*valid, Json::json_pointer(), places);
    for (size_t i = 1; i < places.size(); ++i)
      for (const Json& other : others) {
        Json body = *valid;
        body[places[i]] = other;
        try {
          const int status = status_of(model, path, body, &why);
          EXPECT_TRUE(status == 200 || status == 400) << places[i].to_string() << " " << shown(other) << " " << why;
          ++(status == 200 ? n_taken : n_refused);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::usage) << places[i].to_string() << " " << shown(other) << error.what();
        } catch (const std::exception& error) {
          ADD_FAILURE() << places[i].to_string() << " = " << shown(other) << ": " << error.what();
        }
      }
  }
  EXPECT_GT(n_refused, 500);
  EXPECT_GT(n_taken, 100);
}

TEST_F(RequestTest, TheOtherEndpointsTakeAnyTypeToo) {
  open({}, scheduler_options(), {.named = {{"default", kToolTemplate}}});
  const std::pair<const char*, Json> valid[] = {
      {"/tokenize", {{"content", "a"}, {"add_special", true}, {"parse_special", true}, {"with_pieces", true}}},
      {"/detokenize", {{"tokens", {5, 6}}}},
      {"/kv", {{"kv_quant", "f16"}}},
      {"/apply-template", {{"messages", kChat["messages"]}, {"tools", kChat["tools"]}}}};
  const Json others[] = {nullptr, true, -1, 1e300, "x", Json::array({Json()}), {{"type", 5}}};
  for (const auto& [path, body] : valid) {
    std::vector<Json::json_pointer> places;
    find_places(body, Json::json_pointer(), places);
    for (const auto& place : places)
      for (const Json& other : others) {
        Json changed = body;
        changed[place] = other;
        const int status = post(path, changed.dump()).status;
        EXPECT_TRUE(status == 200 || status == 400)
            << path << place.to_string() << " " << shown(other) << " " << status;
      }
  }
}

TEST_F(RequestTest, PlacesOfFaultsAreNamed) {
  const ApiModel model = api_model();
  const auto why = [&](const char* place, const Json& value) {
    Json body = kChat;
    body[Json::json_pointer(place)] = value;
    std::string said;
    EXPECT_EQ(status_of(model, "chat", body, &said), 400) << place;
    return said.substr(0, said.find(": "));
  };
  EXPECT_EQ(why("/messages/1/content/0/type", 5), "messages[1].content[0].type");
  EXPECT_EQ(why("/messages/1/content/1/text", nullptr), "messages[1].content[1].text");
  EXPECT_EQ(why("/messages/0/content", 5), "messages[0].content");
  EXPECT_EQ(why("/messages/0/role", 5), "messages[0]");
  EXPECT_EQ(why("/messages/2/tool_calls/0/function/name", 5), "messages[2].tool_calls[0].function.name");
  EXPECT_EQ(why("/messages/2/tool_calls/0/function/arguments", 5), "messages[2].tool_calls[0].function.arguments");
  EXPECT_EQ(why("/tools/0/type", 5), "tools[0].type");
  EXPECT_EQ(why("/tools/0/function/parameters", "x"), "tools[0].function.parameters");
  EXPECT_EQ(why("/tools/0/function/parameters/type", "string"), "tools[0].function.parameters.type");
  EXPECT_EQ(why("/tool_choice", 5), "tool_choice");
  // Fields that change nothing have types too.
  for (const char* name :
       {"model", "user", "metadata", "safety_identifier", "prompt_cache_key", "cache_prompt", "id_slot"})
    EXPECT_EQ(why(fmt::format("/{}", name).c_str(), Json::array({1})), name);
  EXPECT_EQ(why("/max_tokens", "many"), "max_tokens") << "beside max_completion_tokens, which counts";
  EXPECT_EQ(why("/messages/2/tool_calls/0/id", 5), "messages[2].tool_calls[0].id");
  EXPECT_EQ(why("/tools/0/function/strict", 5), "tools[0].function.strict");
  // Names that a form of calls would cut, or could not write.
  for (const char* name : {"get weather", "", "a\"b", "f<|call|>", "é"})
    EXPECT_EQ(why("/tools/0/function/name", name), "tools[0].function.name") << name;
  EXPECT_EQ(why("/tools/0/function/name", std::string(65, 'a')), "tools[0].function.name");
  // An endpoint ignores fields of another one.
  EXPECT_EQ(status_of(model, "completion", {{"prompt", "a"}, {"tools", 5}, {"messages", 5}}), 200);
}

TEST_F(RequestTest, TheLeastNumberOfTokensFitsTheOtherFields) {
  const ApiModel model = api_model();
  std::string why;
  EXPECT_EQ(status_of(model, "completion", {{"prompt", "a"}, {"max_tokens", 5}, {"min_tokens", 5}}), 200);
  EXPECT_EQ(status_of(model, "completion", {{"prompt", "a"}, {"max_tokens", 5}, {"min_tokens", 6}}, &why), 400);
  EXPECT_EQ(why, "min_tokens: min_tokens: 6 is more than the limit of 5 tokens");
  EXPECT_EQ(status_of(model, "completion", {{"prompt", "a"}, {"grammar", "root ::= \"a\""}, {"min_tokens", 1}}, &why),
            400);
  EXPECT_TRUE(why.starts_with("min_tokens: ")) << why;
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST_F(RequestTest, JsonInTextsHasADepth) {
  open({}, scheduler_options(), {.named = {{"default", kToolTemplate}}});
  Json body = {{"messages", kChat["messages"]}, {"max_tokens", 2}};
  const auto arguments = [&](const std::string& text) {
    body["messages"][2]["tool_calls"][0]["function"]["arguments"] = text;
    return body.dump();
  };
  for (const char* path : {"/v1/chat/completions", "/apply-template"}) {
    for (const std::string& text : {"{\"a\":" + nested(75500) + "}", "{\"a\":" + std::string(75500, '[')}) {
      const Json error = refused(path, arguments(text), 400);
      EXPECT_EQ(error["param"], "messages[2].tool_calls[0].function.arguments");
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("nested deeper than 64 levels"));
    }
    EXPECT_EQ(post(path, arguments("{\"a\":" + nested(63) + "}")).status, 200);
    EXPECT_EQ(post(path, arguments("no JSON [[[")).status, 200);
  }
  // The result of a tool is text, whatever it looks like.
  body["messages"][3]["content"] = nested(75500);
  EXPECT_EQ(post("/apply-template", arguments("{}")).status, 200);
}

TEST_F(RequestTest, SchemasAndGrammarsHaveADepth) {
  const ApiModel model = api_model();
  const auto status = [&](const char* place, const Json& value) {
    Json body = place[1] == 'r' ? kFormat : kCompletion;
    body[Json::json_pointer(place)] = value;
    return status_of(model, place[1] == 'r' ? "chat" : "completion", body);
  };
  const char* const schema = "/response_format/json_schema/schema";
  // Groups in groups, in GBNF and in patterns.
  const auto groups = [](size_t n) { return std::string(n, '(') + "\"a\"" + std::string(n, ')'); };
  EXPECT_EQ(status("/grammar", "root ::= " + groups(100)), 200);
  EXPECT_EQ(status("/grammar", "root ::= " + groups(200000)), 400);
  EXPECT_EQ(status(schema, {{"type", "string"}, {"pattern", std::string(2000, '(') + "a" + std::string(2000, ')')}}),
            400);
  // References that lead to references, joined and not.
  Json chain = {{"$ref", "#/$defs/0"}}, joined = chain;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = std::to_string(i), next = "#/$defs/" + std::to_string(i + 1);
    chain["$defs"][name] = {{"type", "array"}, {"items", {{"$ref", next}}}};
    joined["$defs"][name] = {{"$ref", next}, {"minimum", i}};
  }
  chain["$defs"]["5000"] = joined["$defs"]["5000"] = {{"type", "integer"}};
  EXPECT_EQ(status(schema, chain), 200);  // each is a rule: nothing nests
  EXPECT_EQ(status(schema, joined), 400);
  // Words that begin with one another.
  Json words = Json::array();
  std::string word;
  for (int i = 0; i < 1000; ++i) words.push_back(word += 'a');
  EXPECT_EQ(status(schema, {{"enum", words}}), 200);
}

TEST_F(RequestTest, ValuesThatAskForNothingPass) {
  const ApiModel model = api_model();
  const std::pair<const char*, Json> both[] = {{"n", 1},
                                               {"service_tier", "auto"},
                                               {"service_tier", "default"},
                                               {"store", false},
                                               {"user", "u"},
                                               {"metadata", {{"a", "b"}}},
                                               {"logit_bias", Json::object()},
                                               {"stop", Json::array()},
                                               {"stop", ""},
                                               {"prediction", nullptr},
                                               {"stream_options", {{"include_usage", true}}},
                                               {"seed", 5},
                                               {"typical_p", 1.0},
                                               {"mirostat", 0},
                                               {"dry_multiplier", 0.0},
                                               {"xtc_probability", 0},
                                               {"top_n_sigma", -1},
                                               {"cache_prompt", true},
                                               {"id_slot", -1},
                                               {"max_tokens", -1},
                                               {"n_predict", 4},
                                               {"prompt_cache_key", "k"},
                                               {"safety_identifier", "s"},
                                               {"model", "gpt-4"}};
  const std::pair<const char*, Json> chat[] = {{"parallel_tool_calls", true},
                                               {"parallel_tool_calls", false},
                                               {"modalities", {"text"}},
                                               {"reasoning_effort", "medium"},
                                               {"tools", Json::array()},
                                               {"tool_choice", "auto"},
                                               {"tool_choice", "none"},
                                               {"functions", Json::array()},
                                               {"function_call", "auto"},
                                               {"verbosity", "medium"},
                                               {"top_logprobs", 0},
                                               {"logprobs", false},
                                               {"response_format", {{"type", "text"}}},
                                               {"max_completion_tokens", 3}};
  const std::pair<const char*, Json> completion[] = {{"best_of", 1},        {"suffix", ""},      {"echo", false},
                                                     {"logprobs", nullptr}, {"logprobs", false}, {"max_tokens", 0}};
  const Json say = {{"messages", {{{"role", "user"}, {"content", "a"}}}}}, go_on = {{"prompt", "a"}};
  const auto check = [&](const char* path, Json body, const auto& fields) {
    std::string why;
    for (const auto& [name, value] : fields) {
      Json with = body;
      with[name] = value;
      EXPECT_EQ(status_of(model, path, with, &why), 200) << name << " " << shown(value) << " " << why;
      with[name] = nullptr;
      EXPECT_EQ(status_of(model, path, with, &why), 200) << name << " null: " << why;
    }
  };
  check("chat", say, both);
  check("chat", say, chat);
  check("completion", go_on, both);
  check("completion", go_on, completion);
  // What asks for something else is refused by name.
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, Json>>{
           {"mirostat", 2}, {"xtc_probability", 0.5}, {"typical_p", 0.9}, {"service_tier", "flex"}, {"store", true}}) {
    Json with = go_on;
    with[name] = value;
    std::string why;
    EXPECT_EQ(status_of(model, "completion", with, &why), 400) << name;
    EXPECT_TRUE(why.starts_with(name)) << why;
  }
}

TEST_F(RequestTest, AFunctionWithoutParametersIsCalledWithAnEmptyObject) {
  open({}, scheduler_options(), {.named = {{"default", kToolTemplate}}});
  for (const char* parameters : {R"(, "parameters": {})", R"(, "parameters": null)", ""}) {
    Json body = Json::parse(fmt::format(
        R"({{"messages": [{{"role": "user", "content": "a"}}], "tool_choice": "required", "max_tokens": 100, "tools":
            [{{"type": "function", "function": {{"name": "noop"{}}}}}]}})",
        parameters));
    EXPECT_THAT(ok("/apply-template", body)["prompt"].get<std::string>(),
                HasSubstr("{\"type\": \"object\", \"properties\": {}}"));
    for (int seed = 0; seed < 4; ++seed) {
      body["seed"] = seed;
      const Json choice = ok("/v1/chat/completions", body)["choices"][0];
      ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
      EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "noop");
      EXPECT_EQ(Json::parse(choice["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>()),
                Json::object());
    }
  }
  // Definitions of one name count where they are the same.
  Json body = {{"messages", kChat["messages"]}, {"tools", kChat["tools"]}, {"tool_choice", "required"}};
  body["tools"].push_back(body["tools"][0]);
  body["tools"][1]["function"]["name"] = "g";
  const ApiModel model = api_model();
  EXPECT_EQ(status_of(model, "chat", body), 200);
  body["tools"][1]["function"]["parameters"]["$defs"]["n"] = {{"type", "string"}};
  EXPECT_EQ(status_of(model, "chat", body), 400);
}

TEST_F(RequestTest, AJsonObjectMayHaveASchema) {
  open({}, scheduler_options(), {.named = {{"default", kToolTemplate}}});
  const Json schema = Json::parse(
      R"({"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"], "additionalProperties": false})");
  Json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 40}, {"seed", 3}};
  for (const char* type : {"json_object", "json_schema"}) {
    body["response_format"] = {{"type", type}, {"schema", schema}};
    const Json content = ok("/v1/chat/completions", body)["choices"][0]["message"]["content"];
    EXPECT_EQ(Json::parse(content.get<std::string>()), (Json{{"k", 1}})) << content;
  }
  body["response_format"]["schema"] = {{"type", "wrong"}};
  EXPECT_EQ(refused("/v1/chat/completions", body.dump(), 400)["param"], "response_format");
}

TEST_F(RequestTest, GemmasFormHasTheSystemsWordsInTheUsersMessage) {
  open({}, scheduler_options(), read_model_template(kModel, "gemma"));
  const Json body =
      Json::parse(R"({"messages": [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "And?"}]})");
  EXPECT_EQ(ok("/apply-template", body)["prompt"],
            "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes<end_of_turn>\n"
            "<start_of_turn>user\nAnd?<end_of_turn>\n<start_of_turn>model\n");
}

TEST_F(RequestTest, TheLastMessageGoesOn) {
  open({}, scheduler_options(), {.named = {{"default", kToolTemplate}}});
  Json body = {
      {"messages", {{{"role", "user"}, {"content", "Tell."}}, {{"role", "assistant"}, {"content", " Once upon a "}}}},
      {"continue_final_message", true}};
  EXPECT_EQ(ok("/apply-template", body)["prompt"], "[user] Tell.\n[assistant]  Once upon a ");
  body["add_generation_prompt"] = true;
  EXPECT_EQ(refused("/apply-template", body.dump(), 400)["param"], "continue_final_message");
  body["continue_final_message"] = false;
  body["add_generation_prompt"] = false;
  EXPECT_EQ(ok("/apply-template", body)["prompt"], "[user] Tell.\n[assistant]  Once upon a \n");
  body["continue_final_message"] = true;
  body["messages"].erase(1);
  EXPECT_EQ(refused("/apply-template", body.dump(), 400)["param"], "continue_final_message");
  open();  // plain text where there is no template
  body["messages"].push_back({{"role", "assistant"}, {"content", "Once"}});
  EXPECT_EQ(ok("/apply-template", body)["prompt"], "User: Tell.\nAssistant: Once");
}

TEST_F(RequestTest, PromptsAreScored) {
  open();
  std::vector<int32_t> prompt = model().tokenize("Once upon a time there was a little dog who lived in a big house.");
  const size_t n_first = prompt.size();
  Session session(model(), session_options(parse_kv_choice("rotor-3").or_throw(), 512, 0));
  const GenerateOptions options{.max_tokens = 150, .ignore_eos = true, .sampler = {.temperature = 0}};
  const GenerateResult text = generate(session, model(), prompt, options, [](std::string_view) { return true; });
  const Json generated = ok("/v1/completions", {{"prompt", prompt},
                                                {"max_tokens", 150},
                                                {"ignore_eos", true},
                                                {"temperature", 0},
                                                {"logprobs", 2}})["choices"][0]["logprobs"];
  prompt.insert(prompt.end(), text.tokens.begin(), text.tokens.end());
  Json body = {{"prompt", {prompt, {5, 6, 7}}}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}};
  for (int round = 0; round < 2; ++round) {  // the second one would find the prompt in the cache
    const Json json = ok("/v1/completions", body);
    ASSERT_EQ(json["choices"].size(), 2u);
    EXPECT_EQ(json["choices"][1]["logprobs"]["tokens"].size(), 3u);
    EXPECT_EQ(json["usage"]["completion_tokens"], 0);
    EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
    const Json& logprobs = json["choices"][0]["logprobs"];
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      ASSERT_EQ(logprobs[list].size(), prompt.size()) << list;
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
    // A token that was sampled has the same probability when it is scored.
    for (size_t i = 0; i < text.tokens.size(); ++i) {
      EXPECT_EQ(logprobs["tokens"][n_first + i], generated["tokens"][i]) << i;
      EXPECT_FLOAT_EQ(logprobs["token_logprobs"][n_first + i].get<float>(), generated["token_logprobs"][i].get<float>())
          << i;
      EXPECT_EQ(logprobs["top_logprobs"][n_first + i].size(), 2u);
    }
    const std::string shown = json["choices"][0]["text"];
    EXPECT_EQ(shown, model().detokenize(prompt));
    const auto offset = logprobs["text_offset"].back().get<size_t>();
    EXPECT_EQ(shown.substr(offset), logprobs["tokens"].back().get<std::string>());
  }
  // As the harness of a known benchmark asks: a token more, which counts in every list.
  body["max_tokens"] = 1;
  body["prompt"] = prompt;
  const Json one = ok("/v1/completions", body)["choices"][0]["logprobs"];
  EXPECT_EQ(one["token_logprobs"].size(), prompt.size() + 1);
  body["stream"] = true;
  size_t n = 0;
  for (const Json& chunk : stream("/v1/completions", body).chunks)
    for (const Json& choice : chunk["choices"]) n += choice["logprobs"]["tokens"].size();
  EXPECT_EQ(n, prompt.size() + 1);
}

TEST_F(RequestTest, OffsetsCountTheTextsCharacters) {
  open();
  Json body = story(30);
  body["logprobs"] = 0;
  for (const bool echo : {false, true}) {
    body["echo"] = echo;
    const Json choice = ok("/v1/completions", body)["choices"][0];
    const std::string text = choice["text"];
    const Json &offsets = choice["logprobs"]["text_offset"], &tokens = choice["logprobs"]["tokens"];
    for (size_t i = echo ? 2 : 0; i < tokens.size(); ++i)  // BOS and the first token with its blank in front
      EXPECT_EQ(text.substr(offsets[i].get<size_t>(), tokens[i].get<std::string>().size()), tokens[i]) << i;
  }
}

TEST_F(RequestTest, NoTokensAreAskedFor) {
  open();
  const Json json = ok("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 0}});
  EXPECT_EQ(json["choices"][0]["text"], "");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(ok("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 0}, {"echo", true}})["choices"][0]["text"],
            "Once");
}

// Requests that take long to read.

/// Runs until the limits of templates stop it, some seconds.
constexpr const char* kSlow =
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}{{ messages[0].content }}";

TEST_F(RequestTest, ReadingHasATime) {
  open({.read_time = 0ms});
  Json body = {{"prompt", "a"}, {"max_tokens", 1}};
  EXPECT_EQ(post("/v1/completions", body.dump()).status, 200);  // small ones are done before the clock is read
  body["more"] = std::vector<int>(1000, 5);
  EXPECT_EQ(refused("/v1/completions", body.dump(), 400)["code"], "request_too_slow");
}

class SlowTest : public RequestTest {
 protected:
  /// So many requests, all of them read or waiting for it.
  void ask(int n) {
    for (int i = 0; i < n; ++i)
      slow_.push_back(std::async(std::launch::async, [this] {
        const auto answer = client().post("/apply-template", R"({"messages": [{"role": "user", "content": "a"}]})");
        return answer ? answer->status : 0;
      }));
    const std::string all = fmt::format("ridge_connections {}\n", n + 1);
    while (client().get("/metrics").or_throw().body.find(all) == std::string::npos)
      if (slow_.front().wait_for(1ms) == std::future_status::ready) break;
  }
  int count(int status) {
    int n = 0;
    for (auto& answer : slow_) n += answer.get() == status;
    return n;
  }
  std::vector<std::future<int>> slow_;
};

TEST_F(SlowTest, ViewsNeedNoWorker) {
  open({}, scheduler_options(), {.named = {{"default", kSlow}}});
  ask(4);
  for (const char* view : {"/health", "/metrics", "/status", "/kv", "/props", "/v1/models"})
    EXPECT_EQ(client().get(view)->status, 200) << view;
  server_->stop(0);
  EXPECT_GE(count(503), 2);  // two may have come to the template's own limit
}

TEST_F(SlowTest, TheEndWaitsForNoReader) {
  open({.n_workers = 1}, scheduler_options(), {.named = {{"default", kSlow}}});
  ask(6);
  server_->stop(0);
  EXPECT_GE(count(503), 4);
}

}  // namespace
}  // namespace ridge::serve
