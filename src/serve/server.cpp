#include "serve/server.h"

#include <boost/asio/post.hpp>
#include <random>

#include "base/work_limit.h"
#include "serve/page.h"
#include "serve/routes.h"

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

Models::Pointer Server::make_served(const std::string& name, ModelSource::Opened opened) {
  auto& [owner, engine, chat_template, options] = opened;
  if (const auto end = find_turn_end(engine, chat_template)) engine.add_end(*end);
  const auto served = std::make_shared<Served>(Served{.owner = std::move(owner),
                                                      .model = {.engine = engine,
                                                                .name = name,
                                                                .chat_template = std::move(chat_template),
                                                                .n_ctx = options.pool.n_ctx,
                                                                .loaded = std::time(nullptr),
                                                                .log = options_.log,
                                                                .log_prompts = options_.log_prompts,
                                                                .responses = responses_}});
  if (options_.state_dir.empty()) {
    std::random_device random;
    options.pool.prefix_secret = uint64_t(random()) << 32 | random();
  } else {
    served->state = std::make_unique<StateDir>(options_.state_dir);
    options.pool.prefix_secret = served->state->secret();
    const auto trying = [this, &of = *served](const char* what, auto act) {
      return [this, &of, what, act](PoolRunner& runner) {
        try {
          options_.log((*of.state.*act)(of.model.engine, runner));
        } catch (const std::exception& error) {
          options_.log(fmt::format("prefixes not {}: {}", what, error.what()));
        }
      };
    };
    options.on_open = trying("read", &StateDir::load);
    options.on_close = trying("saved", &StateDir::save);
  }
  served->scheduler = std::make_unique<Scheduler>(engine, options);
  return served;
}

void Server::serve(Engine& engine, const std::string& name, ModelTemplate chat_template, SchedulerOptions options) {
  models_ =
      std::make_unique<Models>(make_served(name, {nullptr, engine, std::move(chat_template), std::move(options)}));
  ready_ = true;
}

void Server::serve(std::vector<ModelSource> sources, int64_t max_bytes) {
  models_ = std::make_unique<Models>(std::move(sources), max_bytes,
                                     [this](const std::string& name, ModelSource::Opened opened) {
                                       Models::Pointer served = make_served(name, std::move(opened));
                                       options_.log(fmt::format("loaded {}", name));
                                       return served;
                                     });
  models_->load(models_->names().front(), [] { return false; });
  ready_ = true;
}

std::string Server::failure() const {
  if (!models_) return "";
  for (const Models::Pointer& served : models_->loaded())
    if (std::string failure = served->scheduler->failure(); !failure.empty()) return failure;
  return "";
}

void Server::stop(double patience_seconds) {
  stopping_ = true;  // requests that are being read end now: nothing of theirs would start any more
  ready_ = false;
  if (models_) {
    models_->stop();
    for (const Models::Pointer& served : models_->loaded()) served->scheduler->stop(patience_seconds);
  }
  if (http_) http_->stop(std::chrono::milliseconds(models_ ? 2000 : 0));
  workers_.join();
  views_.join();
  loader_.join();
  if (models_)  // one that was loaded meanwhile
    for (const Models::Pointer& served : models_->loaded()) served->scheduler->stop(0);
  models_.reset();
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

/// A request under way.
struct Server::Asked {
  const http::Request request;
  const Route& route;
  const http::Reply reply;
};

/// On an I/O thread.
void Server::handle(http::Request request, const http::Reply& reply) {
  if (const PageFile* file = page_file(request.path)) return reply.send(page_response(*file));
  const Route& route = route_of(request);
  const std::shared_ptr<Asked> asked(new Asked{std::move(request), route, reply});
  const auto look = [this, asked] {
    answering(asked->route, asked->reply, [&] {
      if (stopping_) throw WorkEnded(true);
      const std::string* name = asked->request.param("model");
      const Models::Pointer served = models_->look(name ? *name : "");
      if (name && !models_->knows(*name)) throw no_model(*name, *models_);
      if (!served && asked->route.by != Answerer::io)
        throw ApiError{.status = 503,
                       .message = "the model is not loaded: a request to it loads it",
                       .type = "unavailable_error",
                       .code = "model_not_loaded"};
      answer(*asked, served, nullptr);
    });
  };
  switch (route.by) {
    case Answerer::io: return look();
    case Answerer::view: boost::asio::post(views_, look); return;
    case Answerer::worker: boost::asio::post(workers_, [this, asked] { answer_by_worker(asked); });
  }
}

void Server::answer(const Asked& asked, const Models::Pointer& served, const Json& body) {
  asked.route.answer({*models_, served, *http_, options_.keys, asked.request, body, asked.reply});
}

/// On a worker. A model that is not loaded is waited for elsewhere.
void Server::answer_by_worker(const std::shared_ptr<Asked>& asked) {
  const WorkLimit limit(options_.read_time, stopping_);
  answering(asked->route, asked->reply, [&] {
    if (stopping_) throw WorkEnded(true);
    const Json body = parse_body(asked->request.body);
    const std::string name = models_->one() ? "" : Fields(body).text("model").value_or("");
    if (!name.empty() && !models_->knows(name)) throw no_model(name, *models_);
    if (const Models::Pointer served = models_->find(name)) return answer(*asked, served, body);
    boost::asio::post(loader_, [this, asked, to_load = name.empty() ? models_->names().front() : name] {
      load_and_answer(asked, to_load);
    });
  });
}

/// On the loader's thread: requests for models that are not loaded wait here in turn.
void Server::load_and_answer(const std::shared_ptr<Asked>& asked, const std::string& name) {
  answering(asked->route, asked->reply, [&] {
    const Models::Pointer served = models_->load(name, [&] { return asked->reply.gone(); });
    if (!served && stopping_) throw WorkEnded(true);
    if (!served) return;
    const WorkLimit limit(options_.read_time, stopping_);
    answer(*asked, served, parse_body(asked->request.body));
  });
}

}  // namespace ridge::serve
