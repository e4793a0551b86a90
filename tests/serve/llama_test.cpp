// Endpoints that tools of other servers read: llama.cpp's /completion and /props, and the list of models.
#include "scripted_fixture.h"

namespace ridge::serve {
namespace {

class LlamaApi : public ScriptedServer {
 protected:
  void SetUp() override {
    ChatMl model;
    model.say('x', {"One", " two", " three", "<|im_end|>"});
    open(model, kChatMl);
  }
  static Json request(Json more = Json::object()) {
    Json body = {{"prompt", "x"}, {"temperature", 0}};
    body.update(more);
    return body;
  }
  /// "content|stop_type|stopping_word|tokens_predicted"
  static std::string shown(const Json& json) {
    return fmt::format("{}|{}|{}|{}", json["content"].get<std::string>(), json["stop_type"].get<std::string>(),
                       json["stopping_word"].get<std::string>(), json["tokens_predicted"].get<int>());
  }
  std::string completed(const Json& more = Json::object()) const { return shown(ok("/completion", request(more))); }
  Json refused(const Json& more) const {
    const http::Response response = post("/completion", request(more));
    EXPECT_EQ(response.status, 400) << response.body;
    return Json::parse(response.body)["error"]["param"];
  }
};

TEST_F(LlamaApi, CompletionsSayWhyTheyEnd) {
  EXPECT_EQ(completed(), "One two three|eos||4");
  EXPECT_EQ(completed({{"n_predict", 2}}), "One two|limit||2");
  EXPECT_EQ(completed({{"stop", {"wo"}}}), "One t|word|wo|2");
  EXPECT_EQ(completed({{"prompt", {'x'}}, {"seed", -1}}), "One two three|eos||4") << "token ids, a random seed";
  EXPECT_EQ(completed({{"logit_bias", {{'x', false}, {'y', 1}}}}), "One two three|eos||4");
  EXPECT_EQ(completed({{"json_schema", {{"const", 5}}}}), "5|eos||1");
  const Json json = ok("/completion", request());
  EXPECT_EQ(json["stop"], true);
  EXPECT_EQ(json["tokens_evaluated"], 1);
  EXPECT_EQ(json["timings"]["predicted_n"], 4);
}

TEST_F(LlamaApi, AStreamOfCompletions) {
  const std::vector<std::string> lines = events("/completion", request());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], R"({"index":0,"content":"One","tokens":[],"id_slot":-1,"stop":false})");
  EXPECT_EQ(lines[1], R"({"index":0,"content":" two","tokens":[],"id_slot":-1,"stop":false})");
  EXPECT_EQ(shown(Json::parse(lines[3])), "|eos||4");
}

TEST_F(LlamaApi, FaultsOfCompletionsAreNamed) {
  EXPECT_EQ(refused({{"prompt", nullptr}}), "prompt");
  EXPECT_EQ(refused({{"prompt", {1, "x"}}}), "prompt");
  EXPECT_EQ(refused({{"logit_bias", {{"x", 1}}}}), "logit_bias");
  EXPECT_EQ(refused({{"json_schema", {{"type", "cat"}}}}), "json_schema");
  EXPECT_EQ(refused({{"n_probs", 3}}), "n_probs");
  EXPECT_EQ(refused({{"mirostat", 2}}), "mirostat");
}

TEST_F(LlamaApi, ModelsAndPropertiesHaveTheFieldsOfOtherServers) {
  const Json list = Json::parse(client().get("/v1/models")->body);
  const Json& one = list["data"][0];
  for (const char* field : {"id", "name", "display_name"}) EXPECT_EQ(one[field], "scripted") << field;
  EXPECT_EQ(one["object"], "model");
  EXPECT_EQ(one["type"], "model");
  EXPECT_TRUE(std::regex_match(one["created_at"].get<std::string>(),
                               std::regex("20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")));
  EXPECT_EQ(list["has_more"], false);
  const Json props = Json::parse(client().get("/props")->body);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 1024);
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["chat_template"], kChatMl);
  EXPECT_EQ(props["modalities"]["vision"], false);
}

}  // namespace
}  // namespace ridge::serve
