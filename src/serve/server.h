// ridge serve: APIs over the schedulers of models, and a page for people (docs/serving.md).
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <filesystem>

#include "http/auth.h"
#include "http/server.h"
#include "serve/models.h"

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
  /// Answers with models that are loaded when a request names them, and take max_bytes together; the first one is
  /// loaded now. Throws Error where one alone takes more, or the first one cannot be loaded.
  void serve(std::vector<ModelSource> sources, int64_t max_bytes);
  /// The models, from serve() on.
  Models& models() { return *models_; }
  /// Why an engine failed; empty while none has.
  std::string failure() const;
  /// Takes no more requests, gives those under way so long, saves prefixes, and ends.
  void stop(double patience_seconds);

 private:
  explicit Server(ServerOptions options);
  struct Asked;
  std::optional<http::Response> gate(const http::Request& head);
  void handle(http::Request request, const http::Reply& reply);
  void answer(const Asked& asked, const Models::Pointer& served, const Json& body);
  void answer_by_worker(const std::shared_ptr<Asked>& asked);
  void load_and_answer(const std::shared_ptr<Asked>& asked, const std::string& name);
  Models::Pointer make_served(const std::string& name, ModelSource::Opened opened);

  const ServerOptions options_;
  std::unique_ptr<http::Server> http_;
  const std::shared_ptr<ResponseStore> responses_ = std::make_shared<ResponseStore>();
  std::unique_ptr<Models> models_;
  boost::asio::thread_pool workers_, views_{1}, loader_{1};
  std::atomic<bool> ready_ = false, stopping_ = false;
};

}  // namespace ridge::serve
