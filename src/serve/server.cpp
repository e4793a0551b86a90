#include "serve/server.h"

#include <boost/asio/post.hpp>
#include <random>

#include "base/work_limit.h"
#include "serve/page.h"
#include "serve/routes.h"
#include "serve/state_dir.h"

namespace ridge::serve {
namespace {

const PageFile* page_file(std::string_view path) {
  for (const PageFile& file : page_files())
    if (file.path == path) return &file;
  return nullptr;
}

http::Response page_response(const PageFile& file) {
  http::Response response{.content_type = std::string(file.type), .body = std::string(file.body)};
  response.headers.add("Content-Security-Policy", kPagePolicy);
  response.headers.add("Referrer-Policy", "no-referrer");
  response.headers.add("Cache-Control", "no-cache");
  return response;
}

ApiError loading() {
  return {.status = 503, .message = "the model is being loaded", .type = "unavailable_error", .code = "loading_model"};
}

/// Calls `work`; what it throws becomes the answer, in the route's form.
template <class Work>
void answering(const Route& route, const http::Reply& reply, const Work& work) {
  const auto send = [&](int status, const char* message, std::string code = {}) {
    const char* type = status == 503 ? "unavailable_error" : status == 500 ? "server_error" : "invalid_request_error";
    reply.send(route.refusal({.status = status, .message = message, .type = type, .code = std::move(code)}));
  };
  try {
    work();
  } catch (const ApiError& error) {
    reply.send(route.refusal(error));
  } catch (const WorkEnded& error) {
    send(error.stopping ? 503 : 400, error.what(), error.stopping ? "" : "request_too_slow");
  } catch (const Error& error) {
    send(error.kind() == ErrorKind::usage ? 400 : 500, error.what());
  } catch (const std::exception& error) {
    send(500, error.what());
  }
}

}  // namespace

Server::Server(ServerOptions options) : options_(std::move(options)), workers_(size_t(options_.n_workers)) {}

Result<std::unique_ptr<Server>> Server::open(ServerOptions options) {
  std::unique_ptr<Server> server(new Server(std::move(options)));
  http::Options http = server->options_.http;
  http.gate = [self = server.get()](const http::Request& head) { return self->gate(head); };
  RIDGE_TRY(server->http_, http::Server::open(http, [self = server.get()](http::Request request, http::Reply reply) {
              self->handle(std::move(request), reply);
            }));
  return server;
}

Server::~Server() { stop(0); }

void Server::serve(Engine& engine, const std::string& name, ModelTemplate chat_template, SchedulerOptions options) {
  if (const auto end = find_turn_end(engine, chat_template)) engine.add_end(*end);
  model_ = std::make_unique<ApiModel>(ApiModel{.engine = engine,
                                               .name = name,
                                               .chat_template = std::move(chat_template),
                                               .n_ctx = options.pool.n_ctx,
                                               .loaded = std::time(nullptr),
                                               .log = options_.log,
                                               .log_prompts = options_.log_prompts});
  if (options_.state_dir.empty()) {
    std::random_device random;
    options.pool.prefix_secret = uint64_t(random()) << 32 | random();
  } else {
    state_ = std::make_unique<StateDir>(options_.state_dir);
    options.pool.prefix_secret = state_->secret();
    options.on_open = [this](PoolRunner& runner) { open_state(runner); };
    options.on_close = [this](PoolRunner& runner) { close_state(runner); };
  }
  scheduler_ = std::make_unique<Scheduler>(engine, options);
  ready_ = true;
}

void Server::open_state(PoolRunner& runner) {
  try {
    options_.log(state_->load(model_->engine, runner));
  } catch (const std::exception& error) {
    options_.log(fmt::format("prefixes not read: {}", error.what()));
  }
}

void Server::close_state(PoolRunner& runner) {
  try {
    options_.log(state_->save(model_->engine, runner));
  } catch (const std::exception& error) {
    options_.log(fmt::format("prefixes not saved: {}", error.what()));
  }
}

void Server::stop(double patience_seconds) {
  stopping_ = true;  // requests that are being read end now: nothing of theirs would start any more
  ready_ = false;
  if (scheduler_) scheduler_->stop(patience_seconds);
  if (http_) http_->stop(std::chrono::milliseconds(scheduler_ ? 2000 : 0));
  workers_.join();
  views_.join();
  scheduler_.reset();
}

/// On an I/O thread, before the body is read.
std::optional<http::Response> Server::gate(const http::Request& head) {
  if (page_file(head.path)) {
    if (head.method == "GET" || head.method == "HEAD") return {};
    return ApiError{.status = 405, .message = fmt::format("{} takes GET only", head.path)}.response();
  }
  const Route* route = nullptr;
  try {
    route = &route_of(head);
  } catch (const ApiError& error) {
    return error.response();
  }
  if (!route->open && !options_.keys.empty() && !options_.keys.find(head.headers))
    return route->refusal(
        {.status = 401,
         .message = "this server wants an API key: \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"",
         .type = "authentication_error",
         .code = "invalid_api_key"});
  if (stopping_)
    return route->refusal({.status = 503, .message = "the server is stopping", .type = "unavailable_error"});
  if (!ready_) return route->refusal(loading());
  return {};
}

/// On an I/O thread.
void Server::handle(http::Request request, const http::Reply& reply) {
  if (const PageFile* file = page_file(request.path)) return reply.send(page_response(*file));
  const Route& route = route_of(request);
  auto answer = [this, &route, request = std::move(request), reply] {
    answering(route, reply, [&] {
      if (stopping_) throw WorkEnded(true);
      route.answer({*scheduler_, *model_, *http_, options_.keys, request, reply});
    });
  };
  switch (route.by) {
    case Answerer::io: return answer();
    case Answerer::view: boost::asio::post(views_, std::move(answer)); return;
    case Answerer::worker:
      boost::asio::post(workers_, [this, answer = std::move(answer)] {
        const WorkLimit limit(options_.read_time, stopping_);
        answer();
      });
  }
}

}  // namespace ridge::serve
