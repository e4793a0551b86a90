// Several models in one server: loaded by requests, unloaded for others.
#include <future>

#include "api_fixture.h"

namespace ridge::serve {
namespace {

class SeveralModels : public ApiTest {
 protected:
  /// Models a, b and c, of which n fit.
  void open_several(int n) {
    std::vector<ModelSource> sources;
    for (const char* name : {"a", "b", "c"})
      sources.push_back({.name = name, .bytes = 1, .open = [this] {
                           ++n_loads_;
                           const auto owner = std::make_shared<Model>(Model::load(kModel));
                           return ModelSource::Opened{owner, owner->engine(), {}, scheduler_options()};
                         }});
    server_ = Server::open({}).or_throw();
    server_->serve(std::move(sources), n);
  }
  /// Names of the models that are loaded.
  std::string loaded() {
    std::string names;
    const Json list = get("/v1/models");
    EXPECT_EQ(list["data"].size(), 3u);
    for (const Json& model : list["data"])
      if (model["status"]["value"] == "loaded") names += model["id"].get<std::string>();
    return names;
  }
  static Json story_of(const std::string& name, int n = 10) {
    Json body = story(n);
    if (!name.empty()) body["model"] = name;
    return body;
  }

  std::atomic<int> n_loads_ = 0;
};

TEST_F(SeveralModels, AreLoadedByRequestsAndTheOneUsedLongestAgoLeaves) {
  open_several(2);
  EXPECT_EQ(loaded(), "a") << "the first one at the start";
  const Json first = ok("/v1/completions", story_of("a"));
  EXPECT_EQ(first["model"], "a");
  const Json second = ok("/v1/completions", story_of("b"));
  EXPECT_EQ(second["model"], "b");
  EXPECT_EQ(second["choices"][0]["text"], first["choices"][0]["text"]) << "they are one file";
  EXPECT_EQ(loaded(), "ab");
  ok("/v1/completions", story_of("a"));
  ok("/v1/completions", story_of("c"));
  EXPECT_EQ(loaded(), "ac");
  EXPECT_EQ(ok("/v1/completions", story_of(""))["model"], "c") << "without a name the model used last answers";
  EXPECT_EQ(n_loads_, 3);
  EXPECT_EQ(ok("/v1/messages",
               {{"model", "b"}, {"max_tokens", 4}, {"messages", {{{"role", "user"}, {"content", "x"}}}}})["model"],
            "b");
  EXPECT_EQ(loaded(), "bc");
  EXPECT_EQ(ok("/v1/embeddings", {{"model", "a"}, {"input", "x"}})["model"], "a");
  EXPECT_EQ(n_loads_, 5);
}

TEST_F(SeveralModels, NamesAreChecked) {
  open_several(1);
  EXPECT_EQ(refused("/v1/completions", story_of("d").dump(), 404)["code"], "model_not_found");
  EXPECT_EQ(get("/v1/models/b")["status"]["value"], "unloaded");
  EXPECT_EQ(client().get("/v1/models/d")->status, 404);
  EXPECT_EQ(get("/props?model=a")["model"], "a");
  EXPECT_EQ(get("/props")["model"], "a");
  EXPECT_EQ(client().get("/props?model=b")->status, 503);
  EXPECT_EQ(client().get("/props?model=d")->status, 404);
  EXPECT_EQ(loaded(), "a");
}

TEST_F(SeveralModels, RequestsWaitUntilNobodyUsesTheMemory) {
  open_several(1);
  Json body = story_of("a", 400);
  body["stream"] = true;
  std::future<Json> other, again;
  std::string text;
  int n = 0;
  const auto heard = client().events("POST", "/v1/completions", body.dump(), {}, [&](std::string_view data) {
    if (data != "[DONE]") text += Json::parse(data)["choices"][0]["text"].get<std::string>();
    if (++n == 2) {
      other = std::async(std::launch::async, [&] { return ok("/v1/completions", story_of("b")); });
      again = std::async(std::launch::async, [&] { return ok("/v1/completions", story_of("a")); });
    }
    return true;
  });
  ASSERT_TRUE(heard);
  EXPECT_EQ(other.get()["model"], "b");
  EXPECT_EQ(again.get()["model"], "a");
  EXPECT_EQ(ok("/v1/completions", story_of("a", 400))["choices"][0]["text"], text) << "the stream came whole";
  EXPECT_LE(n_loads_, 4);
}

TEST_F(SeveralModels, AnswersOfAnUnloadedModelGoOn) {
  open_several(1);
  const Json first = ok("/v1/responses", {{"model", "a"}, {"input", "Once"}, {"max_output_tokens", 4}});
  ok("/v1/completions", story_of("b"));
  const Json next = {
      {"model", "a"}, {"input", "more"}, {"previous_response_id", first["id"]}, {"max_output_tokens", 4}};
  EXPECT_GT(ok("/v1/responses", next)["usage"]["input_tokens"], first["usage"]["input_tokens"]);
}

TEST_F(SeveralModels, AModelThatDoesNotFitAloneIsRefused) {
  EXPECT_THROW(open_several(0), Error);
  server_.reset();
}

}  // namespace
}  // namespace ridge::serve
