// A server whose model has a row that is not a number: requests that need it are told so, others are answered as ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/damaged_model.h"
#include "engine/decode/text.h"
#include "http/client.h"
#include "serve/server.h"

namespace ridge::serve {
namespace {

using testing::HasSubstr;

class NotFinite : public testing::Test {
 protected:
  NotFinite() : model_(Model::load(damaged_model(directory_, "token_embd.weight", 64 * 30 + 1))) {}
  void open(bool speculates) {
    SchedulerOptions options{.pool = {.kv = parse_kv_choice("f16").or_throw(),
                                      .n_ctx = 256,
                                      .max_seqs = 4,
                                      .n_checkpoints = 4,
                                      .checkpoint_every = 64,
                                      .kv_bytes = int64_t(16) << 20,
                                      .batch_tokens = 128,
                                      .max_stall_seconds = 0.05},
                             .max_queue = 16};
    if (speculates) options.pool.proposers = make_lookup_proposer, options.pool.spec_depth = 4;
    server_ = Server::open({}).or_throw();
    server_->serve(model_.engine(), "damaged", {}, std::move(options));
  }
  http::Response post(Json body, bool damaged) {
    body["prompt"] = damaged ? Json{1, 40, 30} : Json{1, 40, 41};
    body["max_tokens"] = 8;
    return http::Client("127.0.0.1", server_->port()).post("/v1/completions", body.dump()).or_throw();
  }

  TempDir directory_;
  Model model_;
  std::unique_ptr<Server> server_;
};

TEST_F(NotFinite, ARequestSaysSoAndTheNextOneIsAnswered) {
  for (const bool speculates : {false, true}) {
    open(speculates);
    const Json ways[] = {{{"temperature", 0}},
                         {{"temperature", 0.8}, {"seed", 1}},
                         {{"temperature", 1}, {"top_k", 0}, {"top_p", 1}},
                         {{"grammar", "root ::= [a-z ]+"}},
                         {{"response_format", {{"type", "json_object"}}}},
                         {{"logprobs", 2}},
                         {{"frequency_penalty", 0.5}},
                         {{"repeat_penalty", 1.3}},
                         {{"n", 3}, {"temperature", 1}}};
    for (const Json& way : ways) {
      const http::Response response = post(way, true);
      EXPECT_EQ(response.status, 500) << way << response.body;
      const Json error = Json::parse(response.body)["error"];
      EXPECT_EQ(error["code"], "logits_not_finite") << way;
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("token_embd.weight has nan in row 30")) << way;
      const http::Response good = post(way, false);
      EXPECT_EQ(good.status, 200) << way << good.body;
      EXPECT_EQ(Json::parse(good.body)["choices"][0]["finish_reason"].is_string(), true);
    }
    server_->stop(1);
  }
}

TEST_F(NotFinite, AStreamEndsWithTheError) {
  open(false);
  std::string all;
  const Json body{{"prompt", Json{1, 40, 30}}, {"max_tokens", 8}, {"stream", true}};
  ASSERT_TRUE(http::Client("127.0.0.1", server_->port())
                  .events("POST", "/v1/completions", body.dump(), {}, [&](std::string_view data) {
                    all += data;
                    return true;
                  }));
  EXPECT_THAT(all, HasSubstr("logits_not_finite"));
}

}  // namespace
}  // namespace ridge::serve
