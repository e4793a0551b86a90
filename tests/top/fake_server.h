// A server for tests of ridge top.
#pragma once

#include <atomic>
#include <memory>

#include "http/wire.h"
#include "top/client.h"

namespace ridge::top {

/// Answers like ridge serve; counts the rounds that ask for the counts of pages, and those that do not.
class FakeServer {
 public:
  int plain() const { return plain_; }
  int by_page() const { return by_page_; }
  Target target(int interval_ms) const {
    return {.url = http::parse_url(url()).or_throw(), .interval_ms = interval_ms};
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", server_->port()); }

 private:
  std::string answer(const http::Request& request) {
    if (request.path == "/props") return R"({"model":"fake"})";
    if (request.path == "/status") return R"({"queue":0})";
    if (request.path != "/kv") return "no JSON";
    const std::string* by = request.param("by");
    ++(by ? by_page_ : plain_);
    if (by && *by != "page") return "no JSON";
    return fmt::format(R"({{"kv_quant":"f16","pools":{{"f16":{{"pages":{{"total":4}}{}}}}}}})",
                       by ? R"(,"layers":[{"layer":0,"k":{"norm":8},"v":{}}])" : "");
  }
  std::atomic<int> plain_ = 0, by_page_ = 0;
  std::unique_ptr<http::Server> server_ = http::serve([this](const http::Request& request, const http::Reply& reply) {
    reply.send({200, "application/json", answer(request)});
  });
};

}  // namespace ridge::top
