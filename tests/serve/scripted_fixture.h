// A server of a model that writes given tokens, spoken to over HTTP.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "cases/scripted_model.h"
#include "engine/kv_choice.h"
#include "http/client.h"
#include "serve/server.h"

namespace ridge::serve {

inline constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
inline constexpr int32_t kLineEnd = '\n';  // ids below 256 are bytes

struct ChatMl : ScriptedModel {
  explicit ChatMl(io::TokenType type = io::TokenType::control) {
    for (const char* piece : {"<|im_start|>", "<|im_end|>"}) add(piece, type);
    spec.eos = id("<|im_end|>");
  }
};

class ScriptedServer : public testing::Test {
 protected:
  void open(const ScriptedModel& scripted, const std::string& chat_template, ServerOptions options = {}) {
    server_.reset();
    scripted.write(folder_ / "model.gguf", {{"tokenizer.chat_template", chat_template}});
    const std::string path = (folder_ / "model.gguf").native();
    model_ = std::make_unique<Model>(Model::load(path, {.n_threads = 1}));
    server_ = Server::open(std::move(options)).or_throw();
    server_->serve(model_->engine(), "scripted", read_model_template(path),
                   {.pool = {.kv = parse_kv_choice("f16").or_throw(),
                             .n_ctx = 1024,
                             .max_seqs = 4,
                             .n_checkpoints = 8,
                             .checkpoint_every = 128,
                             .kv_bytes = int64_t(16) << 20,
                             .swap_bytes = int64_t(16) << 20,
                             .batch_tokens = 256},
                    .max_queue = 32,
                    .max_pools = 1});
  }
  http::Client client() const { return {"127.0.0.1", server_->port()}; }
  http::Response post(const std::string& path, const Json& body, const http::Headers& headers = {}) const {
    return client().post(path, body.dump(), headers).or_throw();
  }
  /// The JSON of an answer with status 200.
  Json ok(const std::string& path, const Json& body) const {
    const http::Response response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  /// The events of a stream, a line each: "NAME DATA", or "DATA" for events without a name. Random ids are "ID".
  std::vector<std::string> events(const std::string& path, Json body) const {
    body["stream"] = true;
    std::string wire;
    const auto response = client().pieces("POST", path, body.dump(), {}, [&](std::string_view bytes) {
      wire += bytes;
      return true;
    });
    EXPECT_TRUE(response) << response.error().message;
    EXPECT_EQ(response->status, 200) << response->body;
    wire = std::regex_replace(wire, std::regex("_[0-9a-f]{24}"), "_ID");
    wire = std::regex_replace(wire, std::regex("\"(created_at|completed_at)\":[0-9]+"), "\"$1\":0");
    std::vector<std::string> lines;
    for (size_t at = 0, end; (end = wire.find("\n\n", at)) != wire.npos; at = end + 2) {
      std::string line = wire.substr(at, end - at);
      const size_t data = line.find("data: ");
      const std::string name = data == 0 ? "" : line.substr(7, data - 8) + " ";
      lines.push_back(name + line.substr(data + 6));
    }
    return lines;
  }

  TempDir folder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Server> server_;
};

}  // namespace ridge::serve
