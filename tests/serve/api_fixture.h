// A server of the test's own on a free port, spoken to over HTTP.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cases/paths.h"
#include "engine/kv_choice.h"
#include "http/client.h"
#include "serve/server.h"

namespace ridge::serve {

using namespace std::chrono_literals;
using testing::HasSubstr;

inline constexpr const char* kModel = RIDGE_SOURCE_DIR "/models/stories260K.gguf";

struct Events {
  std::vector<Json> chunks;
  bool done = false;
  /// Text of all chunks of a choice.
  std::string text(int index = 0) const {
    std::string text;
    for (const Json& chunk : chunks)
      for (const Json& choice : chunk["choices"]) {
        if (choice["index"] != index) continue;
        if (choice.contains("text")) text += choice["text"].get<std::string>();
        else text += choice["delta"].value("content", "");
      }
    return text;
  }
};

class ApiTest : public testing::Test {
 protected:
  static Model& model() {
    static Model* const kModelOnce = new Model(Model::load(kModel));
    return *kModelOnce;
  }
  static SchedulerOptions scheduler_options() {
    return {.pool = {.kv = parse_kv_choice("rotor-3").or_throw(),
                     .n_ctx = 512,
                     .max_seqs = 8,
                     .n_checkpoints = 24,
                     .checkpoint_every = 128,
                     .kv_bytes = int64_t(64) << 20,
                     .swap_bytes = int64_t(64) << 20,
                     .batch_tokens = 256,
                     .max_stall_seconds = 0.05},
            .max_queue = 32,
            .max_pools = 2};
  }
  void open(ServerOptions options = {}, SchedulerOptions scheduler = scheduler_options(),
            ModelTemplate chat_template = {}) {
    server_ = Server::open(std::move(options)).or_throw();
    server_->serve(model().engine(), "stories", std::move(chat_template), std::move(scheduler));
  }
  http::Client client() const { return {"127.0.0.1", server_->port()}; }
  http::Response post(const std::string& path, const std::string& body) { return client().post(path, body).or_throw(); }
  Json ok(const std::string& path, const Json& body) {
    const http::Response response = post(path, body.dump());
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  Json get(const std::string& path) {
    const http::Response response = client().get(path).or_throw();
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  Events stream(const std::string& path, Json body) {
    body["stream"] = true;
    Events events;
    const auto response = client().events("POST", path, body.dump(), {}, [&](std::string_view data) {
      if (data == "[DONE]") events.done = true;
      else events.chunks.push_back(Json::parse(data));
      return true;
    });
    EXPECT_TRUE(response) << response.error().message;
    EXPECT_EQ(response->status, 200) << response->body;
    return events;
  }
  /// A request that must be refused: the error object.
  Json refused(const std::string& path, const std::string& body, int status) {
    const http::Response response = post(path, body);
    EXPECT_EQ(response.status, status) << body << "\n" << response.body;
    const Json json = Json::parse(response.body, nullptr, false);
    if (!json.is_object() || !json.contains("error")) {
      ADD_FAILURE() << "not OpenAI's form: " << response.body;
      return {{"message", ""}, {"type", ""}, {"param", ""}, {"code", ""}};
    }
    for (const char* field : {"message", "type", "param", "code"}) EXPECT_TRUE(json["error"].contains(field));
    return json["error"];
  }
  bool wait_idle() {
    for (int i = 0; i < 500; ++i) {
      const Json kv = get("/kv");
      if (kv["sequences"] == 0 && get("/status")["queue"] == 0) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }

  std::unique_ptr<Server> server_;
};

inline Json story(int max_tokens, uint64_t seed = 7) {
  return {{"prompt", "Once upon a time"}, {"max_tokens", max_tokens}, {"seed", seed}, {"ignore_eos", true}};
}

}  // namespace ridge::serve
