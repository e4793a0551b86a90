// ridge serve: OpenAI's API over a scheduler, and a page for people (docs/serving.md).
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <filesystem>

#include "http/auth.h"
#include "http/server.h"
#include "serve/chat.h"
#include "serve/scheduler.h"

namespace ridge::serve {

struct ServerOptions {
  http::Options http;  ///< `gate` is the server's own
  http::Keys keys;     ///< empty: everybody may ask
  int n_workers = 2;   ///< threads that read requests; views have one of their own
  /// Reading a request may take so long: its JSON, the template, tokens, the grammar of a schema.
  std::chrono::milliseconds read_time{20'000};
  std::filesystem::path state_dir;  ///< of prefixes that outlive the server; empty: none do
  bool log_prompts = false;
  std::function<void(const std::string& line)> log = [](const std::string&) {};
};

class Server {
 public:
  /// Listens. Until serve() /health says 503 and so does everything but the page.
  static Result<std::unique_ptr<Server>> open(ServerOptions options);
  ~Server();

  uint16_t port() const { return http_->port(); }
  /// Answers requests from now on. `engine` must outlive the server. Throws Error when the cache cannot be opened.
  void serve(Engine& engine, const std::string& name, ModelTemplate chat_template, SchedulerOptions options);
  /// Why the engine failed; empty while it has not.
  std::string failure() const { return scheduler_ ? scheduler_->failure() : ""; }
  /// Takes no more requests, gives those under way so long, saves prefixes, and ends.
  void stop(double patience_seconds);

 private:
  explicit Server(ServerOptions options);
  std::optional<http::Response> gate(const http::Request& head);
  void handle(http::Request request, const http::Reply& reply);
  void open_state(PoolRunner& runner);
  void close_state(PoolRunner& runner);

  const ServerOptions options_;
  std::unique_ptr<http::Server> http_;
  std::unique_ptr<ApiModel> model_;
  std::unique_ptr<class StateDir> state_;
  std::unique_ptr<Scheduler> scheduler_;
  boost::asio::thread_pool workers_, views_{1};
  std::atomic<bool> ready_ = false, stopping_ = false;
};

}  // namespace ridge::serve
