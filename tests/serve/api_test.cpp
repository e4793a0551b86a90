// The API as clients see it: a server on a free port, spoken to over HTTP.
#include <future>
#include <thread>

#include "api_fixture.h"
#include "serve/metrics.h"

namespace ridge::serve {
namespace {

TEST_F(ApiTest, ACompletionIsTheModelsText) {
  open();
  Session session(model(), session_options(parse_kv_choice("rotor-3").or_throw(), 512, 0));
  const GenerateOptions options{.max_tokens = 60, .ignore_eos = true, .sampler = {.seed = 7}};
  const GenerateResult expected =
      generate(session, model(), model().tokenize("Once upon a time"), options, [](std::string_view) { return true; });
  const Json json = ok("/v1/completions", story(60));
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "stories");
  EXPECT_EQ(json["choices"][0]["text"], expected.text);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], expected.n_prompt);
  EXPECT_EQ(json["usage"]["completion_tokens"], 60);
  EXPECT_EQ(json["usage"]["total_tokens"], expected.n_prompt + 60);
  EXPECT_GT(json["latency_ms"].get<double>(), 0);
  EXPECT_EQ(json["timings"]["predicted_n"], 60);
}

TEST_F(ApiTest, AStreamIsTheSameTextInPieces) {
  open();
  const std::string whole = ok("/v1/completions", story(60))["choices"][0]["text"];
  Json body = story(60);
  body["stream_options"] = {{"include_usage", true}};
  const Events events = stream("/v1/completions", body);
  EXPECT_TRUE(events.done);
  EXPECT_EQ(events.text(), whole);
  EXPECT_GT(events.chunks.size(), 20u) << "pieces come as they are sampled";
  EXPECT_EQ(events.chunks.back()["usage"]["completion_tokens"], 60);
  EXPECT_EQ(events.chunks[events.chunks.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(events.chunks[0]["usage"].is_null());
}

TEST_F(ApiTest, ChatOfABaseModelIsAPlainTranscript) {
  open();
  const Json messages = {{{"role", "system"}, {"content", "Tell stories."}}, {{"role", "user"}, {"content", "Go on."}}};
  const Json body = {{"messages", messages}, {"max_completion_tokens", 20}, {"temperature", 0}};
  const Json json = ok("/v1/chat/completions", body);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  const Events events = stream("/v1/chat/completions", body);
  EXPECT_EQ(events.chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.text(), json["choices"][0]["message"]["content"]);
  EXPECT_EQ(ok("/apply-template", {{"messages", messages}})["prompt"],
            "System: Tell stories.\nUser: Go on.\nAssistant:");
}

TEST_F(ApiTest, ChoicesStopsListsAndLogprobs) {
  open();
  Json body = story(24);
  body["n"] = 3;
  body["prompt"] = {"Once upon a time", "The dog"};
  body["logprobs"] = 2;
  const Json many = ok("/v1/completions", body);
  ASSERT_EQ(many["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    const Json& choice = many["choices"][size_t(i)];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 24u);
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), 2u);
    for (const Json& value : choice["logprobs"]["token_logprobs"]) EXPECT_LE(value.get<double>(), 0);
  }
  EXPECT_EQ(many["choices"][0]["text"], ok("/v1/completions", story(24))["choices"][0]["text"])
      << "the first choice is what one choice is";
  EXPECT_NE(many["choices"][0]["text"], many["choices"][1]["text"]);
  EXPECT_EQ(many["usage"]["completion_tokens"], 6 * 24);

  Json stopped = story(200);
  stopped["stop"] = {"zebra", "."};
  const Json one = ok("/v1/completions", stopped);
  EXPECT_EQ(one["choices"][0]["finish_reason"], "stop");
  EXPECT_THAT(one["choices"][0]["text"].get<std::string>(), testing::Not(HasSubstr(".")));

  const Json ids = ok("/tokenize", {{"content", "Once upon a time"}, {"add_special", true}})["tokens"];
  Json by_ids = story(24);
  by_ids["prompt"] = ids;
  EXPECT_EQ(ok("/v1/completions", by_ids)["choices"][0]["text"], many["choices"][0]["text"]);
  by_ids["echo"] = true;
  EXPECT_THAT(ok("/v1/completions", by_ids)["choices"][0]["text"].get<std::string>(), HasSubstr("Once upon a time"));
  EXPECT_THAT(ok("/detokenize", {{"tokens", ids}})["content"].get<std::string>(), HasSubstr("Once upon a time"));

  const Json chat = ok("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                                {"max_tokens", 5},
                                                {"logprobs", true},
                                                {"top_logprobs", 3}});
  ASSERT_EQ(chat["choices"][0]["logprobs"]["content"].size(), 5u);
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"].size(), 3u);
}

TEST_F(ApiTest, BiasAndPenaltiesDecide) {
  open();
  Json body = story(10);
  body["logit_bias"] = {{"300", 100}};
  const Json piece = ok("/detokenize", {{"tokens", {300}}})["content"];
  const std::string text = ok("/v1/completions", body)["choices"][0]["text"];
  EXPECT_LE(text.find(piece.get<std::string>()), 1u) << text;
  // The penalty grows with every use until something else is likelier.
  body["max_tokens"] = 100;
  body["logit_bias"] = {{"300", 20}};
  body["frequency_penalty"] = 2;
  body["temperature"] = 0;
  const Json repeated = ok("/v1/completions", body);
  const Json ids = ok("/tokenize", {{"content", repeated["choices"][0]["text"]}})["tokens"];
  EXPECT_GT(std::ranges::count_if(ids, [](const Json& id) { return id != 300; }), 20);
}

TEST_F(ApiTest, WhatIsWrongIsNamed) {
  open();
  struct Case {
    const char *path, *body, *param;
  };
  const std::string deep(200, '[');
  const Case cases[] = {
      {"/v1/completions", "", nullptr},
      {"/v1/completions", "[1]", nullptr},
      {"/v1/completions", "{\"prompt\": \"\xff\"}", nullptr},
      {"/v1/completions", "{\"prompt\": 1e999}", nullptr},
      {"/v1/completions", "{}", "prompt"},
      {"/v1/completions", R"({"prompt": []})", "prompt"},
      {"/v1/completions", R"({"prompt": [1, 99999999]})", "prompt"},
      {"/v1/completions", R"({"prompt": [1, -1]})", "prompt"},
      {"/v1/completions", R"({"prompt": "a", "temperature": "hot"})", "temperature"},
      {"/v1/completions", R"({"prompt": "a", "temperature": -1})", "temperature"},
      {"/v1/completions", R"({"prompt": "a", "max_tokens": -2})", "max_tokens"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 0})", "max_tokens"},
      {"/v1/completions", R"({"prompt": "a", "max_tokens": 1e300})", "max_tokens"},
      {"/v1/completions", R"({"prompt": "a", "n": 99})", "n"},
      {"/v1/completions", R"({"prompt": "a", "stop": ["", "b"]})", "stop"},
      {"/v1/completions", R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias"},
      {"/v1/completions", R"({"prompt": "a", "logprobs": 21})", "logprobs"},
      {"/v1/completions", R"({"prompt": "a", "best_of": 3})", "best_of"},
      {"/v1/completions", R"({"prompt": "a", "kv_quant": "auto"})", "kv_quant"},
      {"/v1/completions", R"({"prompt": "a", "kv_quant": "q99"})", "kv_quant"},
      {"/v1/chat/completions", "{}", "messages"},
      {"/v1/chat/completions", R"({"messages": []})", "messages"},
      {"/v1/chat/completions", R"({"messages": [{"content": "a"}]})", "messages[0]"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[0].content[0].type"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "functions": [{"name": "f"}]})",
       "functions"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "tools": 5})", "tools"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})",
       "top_logprobs"},
      {"/tokenize", "{}", "content"},
      {"/detokenize", R"({"tokens": "a"})", "tokens"},
      {"/kv", "{}", "kv_quant"},
  };
  for (const Case& c : cases) {
    const Json error = refused(c.path, c.body, 400);
    EXPECT_EQ(error["type"], "invalid_request_error") << c.body;
    if (c.param) {
      EXPECT_EQ(error["param"], c.param) << c.body << error;
    }
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  EXPECT_THAT(refused("/v1/completions", "{\"prompt\": " + deep + "1", 400)["message"].get<std::string>(),
              HasSubstr("deeper"));
  EXPECT_EQ(refused("/v1/files", "{}", 404)["code"], "not_found");
  EXPECT_EQ(refused("/v1/completions", std::string(17 << 20, ' '), 413)["code"], nullptr);  // by the transport
  EXPECT_EQ(client().get("/v1/completions")->status, 405);
  // What is unknown is ignored, and nulls are absent fields.
  Json body = story(3);
  body["user"] = "somebody";
  body["something_new"] = {1, 2, 3};
  body["temperature"] = nullptr;
  EXPECT_EQ(ok("/v1/completions", body)["choices"][0]["finish_reason"], "length");
}

TEST_F(ApiTest, LengthsAreChecked) {
  open();
  Json ids = Json::array();
  for (int i = 0; i < 512; ++i) ids.push_back(5 + i % 400);
  EXPECT_EQ(refused("/v1/completions", Json{{"prompt", ids}}.dump(), 400)["code"], "context_length_exceeded");
  ids.erase(ids.begin() + 500, ids.end());
  const Json json = ok("/v1/completions", {{"prompt", ids}, {"max_tokens", 100}, {"ignore_eos", true}});
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
  EXPECT_EQ(json["usage"]["max_tokens_clamped"], true);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
}

TEST_F(ApiTest, RequestsNameTheirCache) {
  open();
  EXPECT_EQ(get("/props")["kv_quant"], "rotor-3");
  Json body = story(40);
  body["kv_quant"] = "f16";
  const std::string f16 = ok("/v1/completions", body)["choices"][0]["text"];
  EXPECT_EQ(ok("/kv", {{"kv_quant", "f16"}})["kv_quant"], "f16");
  EXPECT_EQ(ok("/v1/completions", story(40))["choices"][0]["text"], f16);
  const Json kv = get("/kv?by=page");
  EXPECT_EQ(kv["pools"].size(), 2u);
  EXPECT_EQ(kv["kv_quant"], "f16");
  EXPECT_GT(kv["pools"]["rotor-3"]["kv_ratio"].get<double>(), 3);
  body["kv_quant"] = "rotor-4";
  EXPECT_THAT(refused("/v1/completions", body.dump(), 400)["message"].get<std::string>(), HasSubstr("--kv-pools"));
}

constexpr const char* kTemplate =
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}Write <tool_call>\\n{...}\\n</tool_call>.\n"
    "{% endif %}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] ";

TEST_F(ApiTest, SpeculationIsCountedAndMayBeLeftOut) {
  const Json body = {{"prompt", "Once upon a time there was a girl, a girl, a girl, a girl"},
                     {"max_tokens", 150},
                     {"temperature", 0},
                     {"ignore_eos", true}};
  open();
  const Json plain = ok("/v1/completions", body);
  EXPECT_FALSE(plain["usage"].contains("completion_tokens_details"));
  Json asks = body;
  asks["speculative"] = true;
  const Json error = refused("/v1/completions", asks.dump(), 400);
  EXPECT_EQ(error["param"], "speculative");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("--spec-type"));
  asks["speculative"] = "yes";
  EXPECT_EQ(refused("/v1/completions", asks.dump(), 400)["param"], "speculative");

  SchedulerOptions options = scheduler_options();
  options.pool.proposers = make_lookup_proposer;
  options.pool.spec_depth = 8;
  options.pool.spec_adaptive = false;
  open({}, options);
  const Json with = ok("/v1/completions", body);
  EXPECT_EQ(with["choices"][0]["text"], plain["choices"][0]["text"]);
  const Json details = with["usage"]["completion_tokens_details"];
  EXPECT_GT(details["accepted_prediction_tokens"], 0);
  asks["speculative"] = false;
  const Json without = ok("/v1/completions", asks);
  EXPECT_EQ(without["choices"][0]["text"], plain["choices"][0]["text"]);
  EXPECT_FALSE(without["usage"].contains("completion_tokens_details"));
  EXPECT_TRUE(wait_idle());  // the last step is counted behind its events
  const std::string metrics = client().get("/metrics").or_throw().body;
  const int accepted = details["accepted_prediction_tokens"], rejected = details["rejected_prediction_tokens"];
  EXPECT_THAT(metrics, HasSubstr(fmt::format("\nridge_accepted_tokens_total {}\n", accepted)));
  EXPECT_THAT(metrics, HasSubstr(fmt::format("\nridge_proposed_tokens_total {}\n", accepted + rejected)));
  EXPECT_EQ(get("/status")["totals"]["accepted_tokens"], accepted);
}

TEST_F(ApiTest, StructuredAnswersAreValidAtAnyTemperature) {
  open();
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"name", {{"type", "string"}, {"maxLength", 12}}},
                         {"kind", {{"enum", {"cat", "dog"}}}},
                         {"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 30}}},
                         {"friends", {{"type", "array"}, {"items", {{"type", "string"}}}, {"maxItems", 3}}}}},
                       {"required", {"name", "kind", "age", "friends"}},
                       {"additionalProperties", false}};
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Json body = {
        {"messages", {{{"role", "user"}, {"content", "A pet."}}}},
        {"max_tokens", 120},
        {"temperature", seed % 3},
        {"top_k", 0},
        {"min_p", 0},
        {"top_p", 1},
        {"seed", seed},
        {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "pet"}, {"schema", schema}}}}}};
    const Json json = ok("/v1/chat/completions", body);
    const std::string text = json["choices"][0]["message"]["content"];
    const Json pet = Json::parse(text, nullptr, false);
    ASSERT_TRUE(pet.is_object()) << text;
    EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
    EXPECT_TRUE(pet["kind"] == "cat" || pet["kind"] == "dog") << text;
    EXPECT_TRUE(pet["age"].is_number_integer() && pet["age"] >= 0 && pet["age"] <= 30) << text;
    EXPECT_LE(pet["friends"].size(), 3u);
    EXPECT_EQ(pet.size(), 4u);
    EXPECT_EQ(stream("/v1/chat/completions", body).text(), text);
  }
  Json any = story(60);
  any["temperature"] = 2;
  any["response_format"] = {{"type", "json_object"}};
  EXPECT_TRUE(
      Json::parse(ok("/v1/completions", any)["choices"][0]["text"].get<std::string>(), nullptr, false).is_object());
  any.erase("response_format");
  any["grammar"] = "root ::= (\"yes\" | \"no\") \"!\"";
  const std::string answer = ok("/v1/completions", any)["choices"][0]["text"];
  EXPECT_TRUE(answer == "yes!" || answer == "no!") << answer;
  any["grammar"] = "root ::= nothing";
  EXPECT_EQ(refused("/v1/completions", any.dump(), 400)["param"], "grammar");
  any.erase("grammar");
  any["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "strange"}}}}}};
  EXPECT_EQ(refused("/v1/completions", any.dump(), 400)["param"], "response_format");
}

TEST_F(ApiTest, AToolThatMustBeCalledIsCalled) {
  open({}, scheduler_options(), {{{"default", kTemplate}}});
  EXPECT_EQ(get("/props")["template"], "model");
  const auto tool = [](const char* name) {
    return Json{{"type", "function"},
                {"function",
                 {{"name", name},
                  {"parameters",
                   {{"type", "object"},
                    {"properties", {{"city", {{"type", "string"}, {"maxLength", 10}}}}},
                    {"required", {"city"}},
                    {"additionalProperties", false}}}}}};
  };
  Json body = {{"messages", {{{"role", "user"}, {"content", "Weather?"}}}},
               {"max_tokens", 150},
               {"seed", 3},
               {"tools", {tool("weather"), tool("news")}},
               {"tool_choice", "required"}};
  for (const char* only : {"", "news"}) {
    if (*only) body["tool_choice"] = {{"type", "function"}, {"function", {{"name", only}}}};
    const Json choice = ok("/v1/chat/completions", body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    const Json function = choice["message"]["tool_calls"][0]["function"];
    EXPECT_TRUE(*only ? function["name"] == only : function["name"] == "weather" || function["name"] == "news");
    EXPECT_TRUE(Json::parse(function["arguments"].get<std::string>())["city"].is_string());
    const Events events = stream("/v1/chat/completions", body);
    Json calls = Json::array();
    for (const Json& chunk : events.chunks)
      for (const Json& c : chunk["choices"])
        if (c["delta"].contains("tool_calls")) calls.push_back(c["delta"]["tool_calls"][0]["function"]);
    EXPECT_EQ(calls, Json::array({function}));
  }
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "absent"}}}};
  EXPECT_EQ(refused("/v1/chat/completions", body.dump(), 400)["param"], "tool_choice");
  EXPECT_EQ(ok("/apply-template", {{"messages", body["messages"]}})["prompt"], "[user] Weather?\n[assistant] ");
}

// A template of every way in which models write calls, and of those that write none.
constexpr const char* kNoTools =
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] + '<|im_end|>' }}\n{% endfor %}";

TEST_F(ApiTest, ACallCanBeForcedFromAnyModel) {
  const std::string shows =
      "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
  const Json body = {{"messages", {{{"role", "user"}, {"content", "Weather?"}}}},
                     {"max_tokens", 200},
                     {"seed", 3},
                     {"tools",
                      {{{"type", "function"},
                        {"function",
                         {{"name", "weather"},
                          {"description", "Looks out."},
                          {"parameters",
                           {{"type", "object"},
                            {"properties", {{"city", {{"type", "string"}, {"maxLength", 10}}}}},
                            {"required", {"city"}},
                            {"additionalProperties", false}}}}}}}},
                     {"tool_choice", "required"}};
  for (const std::string& source : {std::string(), std::string(kNoTools), shows, shows + "<tool_call>",
                                    shows + "<function=", shows + "[TOOL_CALLS]", shows + "<|tool_call|>",
                                    shows + "<|python_tag|>", shows + "<｜tool▁call▁begin｜>"}) {
    SCOPED_TRACE(source);
    open({}, scheduler_options(), source.empty() ? ModelTemplate{} : ModelTemplate{{{"default", source}}});
    EXPECT_THAT(ok("/apply-template", body)["prompt"].get<std::string>(), HasSubstr("Looks out."));
    const Json choice = ok("/v1/chat/completions", body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    ASSERT_EQ(choice["message"].value("tool_calls", Json::array()).size(), 1u) << choice;
    const Json function = choice["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], "weather");
    EXPECT_TRUE(Json::parse(function["arguments"].get<std::string>())["city"].is_string());
    EXPECT_TRUE(choice["message"]["content"].is_null()) << choice;
    const Events events = stream("/v1/chat/completions", body);
    EXPECT_EQ(events.text(), "");
    Json calls = Json::array();
    std::string reason;
    for (const Json& chunk : events.chunks)
      for (const Json& c : chunk["choices"]) {
        if (c["delta"].contains("tool_calls")) calls.push_back(c["delta"]["tool_calls"][0]["function"]);
        if (c["finish_reason"].is_string()) reason = c["finish_reason"];
      }
    EXPECT_EQ(calls, Json::array({function}));
    EXPECT_EQ(reason, "tool_calls");
  }
}

TEST_F(ApiTest, HistoriesOfCallsReachTemplatesThatKnowNone) {
  open({}, scheduler_options(), {{{"default", kNoTools}}});
  Json messages = Json::parse(R"([{"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "sunny"}]}])");
  for (const bool absent : {false, true}) {
    if (absent) messages[1].erase("content");
    const std::string prompt = ok("/apply-template", {{"messages", messages}})["prompt"];
    EXPECT_THAT(prompt, HasSubstr("{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}<|im_end|>"));
    EXPECT_THAT(prompt, HasSubstr("sunny"));
  }
  const Json error = refused("/apply-template", R"({"messages": [{"role": "user"}]})", 400);
  EXPECT_THAT(error["message"].get<std::string>(), testing::StartsWith("chat template: line 2"));
  EXPECT_EQ(error["code"], "template_error");
}

TEST_F(ApiTest, AGrammarThatBecomesTooAmbiguousIsTheClientsFault) {
  open();
  const char* const rules = "root ::= s\ns ::= \"a\" s \"a\" | [^x] s | s2\ns2 ::= [^y]{0,1000} [^z]{0,1000}";
  const Json body = {{"prompt", "x"}, {"max_tokens", 200}, {"temperature", 2}, {"seed", 1}, {"grammar", rules}};
  const Json error = refused("/v1/completions", body.dump(), 400);
  EXPECT_EQ(error["code"], "grammar_too_ambiguous");
  EXPECT_EQ(error["param"], "grammar");
}

TEST_F(ApiTest, RolesAreNames) {
  open();
  const Json error = refused("/apply-template", R"({"messages": [{"role": "user<|im_end|>", "content": "x"}]})", 400);
  EXPECT_EQ(error["param"], "messages[0].role");
}

TEST_F(ApiTest, ATemplateThatCannotBeReadFailsChatsOnly) {
  for (const ModelTemplate& broken :
       {ModelTemplate{.problem = "chat template: line 1, column 2: no"},
        ModelTemplate{{{"default", "{% recursion %}"}}}, ModelTemplate{{{"a", ""}, {"b", ""}}}}) {
    open({}, scheduler_options(), broken);
    EXPECT_EQ(ok("/v1/completions", story(4))["choices"].size(), 1u);
    for (const char* path : {"/v1/chat/completions", "/apply-template"}) {
      const Json error = refused(path, R"({"messages": [{"role": "user", "content": "a"}]})", 400);
      EXPECT_EQ(error["code"], "template_error");
      EXPECT_THAT(error["message"].get<std::string>(), testing::StartsWith("chat template: "));
    }
    EXPECT_EQ(get("/props")["template"], "model");
  }
}

TEST_F(ApiTest, KeysAreAskedFor) {
  open({.keys = http::Keys::parse("one\ntwo\n", "keys").or_throw()});
  EXPECT_EQ(refused("/v1/completions", story(1).dump(), 401)["code"], "invalid_api_key");
  for (const char* open_path : {"/health", "/"}) EXPECT_EQ(client().get(open_path)->status, 200) << open_path;
  for (const char* closed : {"/metrics", "/status", "/kv", "/props", "/v1/models"})
    EXPECT_EQ(client().get(closed)->status, 401) << closed;
  http::Headers headers;
  headers.add("Authorization", "Bearer two");
  EXPECT_EQ(client().post("/v1/completions", story(1).dump(), headers)->status, 200);
}

TEST_F(ApiTest, SaysThatItIsLoading) {
  server_ = Server::open({}).or_throw();
  EXPECT_EQ(client().get("/health")->status, 503);
  EXPECT_EQ(refused("/v1/completions", story(1).dump(), 503)["code"], "loading_model");
  EXPECT_EQ(client().get("/")->status, 200);
  server_->serve(model().engine(), "stories", {}, scheduler_options());
  EXPECT_EQ(get("/health")["status"], "ok");
}

TEST_F(ApiTest, AFullQueueSaysSo) {
  SchedulerOptions small = scheduler_options();
  small.pool.max_seqs = 1;
  small.max_queue = 1;
  open({}, small);
  std::vector<std::future<int>> answers;
  for (int i = 0; i < 6; ++i)
    answers.push_back(std::async(std::launch::async, [&] {
      const http::Response response = post("/v1/completions", story(300).dump());
      if (response.status == 429) {
        EXPECT_FALSE(response.headers.get("Retry-After").empty());
        EXPECT_EQ(Json::parse(response.body)["error"]["code"], "queue_full");
      }
      return response.status;
    }));
  std::map<int, int> statuses;
  for (auto& answer : answers) ++statuses[answer.get()];
  EXPECT_EQ(statuses[200] + statuses[429], 6);
  EXPECT_GE(statuses[200], 1);
  EXPECT_GE(statuses[429], 1);
  // Choices of one request are queued whole or not at all.
  Json many = story(5);
  many["n"] = 4;
  refused("/v1/completions", many.dump(), 429);
}

TEST_F(ApiTest, ClientsThatLeaveChangeNothingForOthers) {
  open();
  const std::string alone = ok("/v1/completions", story(200))["choices"][0]["text"];
  std::atomic<bool> stop = false;
  std::vector<std::thread> leavers;
  std::atomic<int> left = 0;
  for (int t = 0; t < 4; ++t)
    leavers.emplace_back([&, t] {
      for (uint64_t i = 0; !stop; ++i) {
        Json body = story(400, i * 7 + uint64_t(t));
        body["stream"] = true;
        int n = 0;
        const auto ignored = client().events("POST", "/v1/completions", body.dump(), {},
                                             [&](std::string_view) { return ++n < int(i % 5) + 1; });
        ++left;
      }
    });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ok("/v1/completions", story(200))["choices"][0]["text"], alone);
  stop = true;
  for (std::thread& thread : leavers) thread.join();
  EXPECT_GT(left, 8);
  EXPECT_TRUE(wait_idle()) << "sequences of clients that left end";
  const Json kv = get("/kv");
  EXPECT_EQ(kv["pages"]["used"], 0);
  EXPECT_GT(get("/status")["totals"]["cancelled"].get<int>(), 4);
  EXPECT_THAT(client().get("/metrics")->body, HasSubstr("ridge_requests_cancelled_total"));
}

TEST_F(ApiTest, StoppingEndsAnswersWhole) {
  open();
  std::vector<std::future<Events>> streams;
  for (uint64_t i = 0; i < 3; ++i)
    streams.push_back(std::async(std::launch::async, [&, i] { return stream("/v1/completions", story(60, i)); }));
  for (int i = 0; i < 500 && get("/status")["running"].size() < 3; ++i) std::this_thread::sleep_for(2ms);
  server_->stop(60);
  for (auto& s : streams) {
    const Events events = s.get();
    EXPECT_TRUE(events.done);
    EXPECT_EQ(events.chunks.back()["choices"][0]["finish_reason"], "length");
  }
}

TEST_F(ApiTest, ViewsSayWhatRuns) {
  open();
  const Json props = get("/props");
  EXPECT_EQ(props["template"], "plain");
  EXPECT_EQ(props["n_ctx"], 512);
  EXPECT_GT(props["kv_ratio"].get<double>(), 3);
  EXPECT_EQ(get("/v1/models")["data"][0]["id"], "stories");
  EXPECT_EQ(get("/v1/models/stories"), get("/v1/models")["data"][0]);
  EXPECT_EQ(Json::parse(client().get("/v1/models/other").or_throw().body)["error"]["code"], "model_not_found");
  std::promise<void> begun;
  bool first = true;
  auto running = std::async(std::launch::async, [&] {
    Json body = story(400);
    body["stream"] = true;
    return client().events("POST", "/v1/completions", body.dump(), {}, [&](std::string_view) {
      if (std::exchange(first, false)) begun.set_value();
      return true;
    });
  });
  begun.get_future().wait();
  const Json slots = get("/status");
  const Json kv = get("/kv?by=page");
  if (!slots["running"].empty()) {
    EXPECT_EQ(slots["running"][0]["state"], "decode");
    EXPECT_GT(slots["running"][0]["n_generated"].get<int>(), 0);
  }
  EXPECT_EQ(kv["pages"]["total"], kv["pages"]["free"].get<int>() + kv["pages"]["used"].get<int>() +
                                      kv["pages"]["shared"].get<int>() + kv["pages"]["cached"].get<int>());
  EXPECT_EQ(kv["layers"].size(), size_t(model().info().n_layers));
  const Json list = get("/slots");
  ASSERT_EQ(list.size(), size_t(get("/props")["total_slots"]));
  if (list[0]["is_processing"] == true) {
    EXPECT_GT(list[0]["next_token"][0]["n_decoded"].get<int>(), 0);
    EXPECT_EQ(list[0]["params"]["n_predict"], 400);
  }
  EXPECT_EQ(list.back()["is_processing"], false);
  EXPECT_EQ(client().get("/slots?fail_on_no_slot=1")->status, 200);
  EXPECT_TRUE(running.get());
  const Json step = get("/status?steps=1")["step"];
  EXPECT_GT(step["ms_p50"].get<double>(), 0);
  ASSERT_EQ(step["parts_ms_p50"].size(), kStepParts.size());
  for (const char* wrong : {"0", "x", "-1", ""})
    EXPECT_EQ(client().get(std::string("/status?steps=") + wrong)->status, 400);
  const std::string metrics = client().get("/metrics")->body;
  EXPECT_THAT(metrics, HasSubstr("ridge_requests_finished_total 1\n"));
  EXPECT_THAT(metrics, HasSubstr("ridge_first_token_seconds_count 1\n"));
  EXPECT_THAT(metrics, HasSubstr("ridge_between_tokens_seconds_bucket{le=\"+Inf\"} 399\n"));
  // Parts make up the steps: nothing that takes time is left out.
  double seconds = 0;
  for (const std::string_view part : kStepParts) {
    EXPECT_GT(step["parts_ms_p50"][std::string(part)].get<double>(), 0) << part;
    const std::string name = fmt::format("ridge_step_part_seconds_total{{part=\"{}\"}} ", part);
    ASSERT_THAT(metrics, HasSubstr(name));
    seconds += std::stod(metrics.substr(metrics.find(name) + name.size()));
  }
  EXPECT_GT(seconds, 0.9 * get("/status")["totals"]["step_seconds"].get<double>());
}

TEST_F(ApiTest, OpsAreTimedByLayerWhereTheServerWasAskedTo) {
  open();
  ok("/v1/completions", story(5));
  EXPECT_FALSE(get("/status").contains("ops"));
  EXPECT_THAT(client().get("/metrics")->body, Not(HasSubstr("ridge_op_seconds_total")));
  server_.reset();

  SchedulerOptions options = scheduler_options();
  options.trace_ops = true;
  open({}, options);
  EXPECT_EQ(get("/status")["ops"]["passes"], 0);
  const Json answer = ok("/v1/completions", story(20));
  const Json slots = get("/status"), ops = slots["ops"];
  EXPECT_EQ(ops["passes"], slots["totals"]["steps"]);
  EXPECT_EQ(ops["seconds"], slots["totals"]["step_seconds"]);
  ASSERT_EQ(ops["layers"].size(), size_t(model().info().n_layers) + 1) << "embedding and output are in no layer";
  double sum = 0;
  int layer = -1;
  for (const Json& of : ops["layers"]) {
    EXPECT_EQ(of["layer"], layer);
    for (const char* op : {"gemv", "attention", "norm"})
      EXPECT_TRUE(layer < 0 || of["seconds"][op].get<double>() > 0) << op << " of layer " << layer;
    for (const auto& [op, seconds] : of["seconds"].items()) sum += seconds.get<double>();
    ++layer;
  }
  EXPECT_GT(ops["layers"][0]["seconds"]["embed"].get<double>(), 0);
  EXPECT_LE(sum, ops["seconds"].get<double>());
  EXPECT_GT(sum, 0.2 * ops["seconds"].get<double>());
  EXPECT_THAT(client().get("/metrics")->body, HasSubstr("ridge_op_seconds_total{op=\"attention\",layer=\"4\"} "));
  server_.reset();
  EXPECT_EQ(model().engine().context().trace, nullptr) << "the next server times nothing";

  open();
  EXPECT_EQ(ok("/v1/completions", story(20))["choices"], answer["choices"]) << "times change no text";
}

}  // namespace
}  // namespace ridge::serve
