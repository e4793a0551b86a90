#include "serve/server.h"

#include <boost/asio/post.hpp>
#include <charconv>
#include <random>

#include "base/work_limit.h"
#include "serve/answer.h"
#include "serve/page.h"
#include "serve/state_dir.h"
#include "serve/views.h"

namespace ridge::serve {
namespace {

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
http::Response json_response(const Json& json) { return {.body = dump(json)}; }

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

Json tokenize(const ApiModel& model, const Json& body) {
  const Fields f(body);
  const auto content = f.text("content");
  if (!content) refuse("content", "missing");
  if (!model.engine.has_tokenizer()) refuse("content", "this model has no tokenizer");
  const bool add_special = f.flag("add_special").value_or(false);
  const bool parse_special = f.flag("parse_special").value_or(true);
  const std::vector<int32_t> tokens = model.engine.tokenizer().encode(*content, add_special, parse_special);
  if (!f.flag("with_pieces").value_or(false)) return {{"tokens", tokens}};
  constexpr size_t kMostPieces = size_t(1) << 18;  // an object each
  if (tokens.size() > kMostPieces)
    refuse("with_pieces",
           fmt::format("the text has {} tokens, pieces are told of {} at most", tokens.size(), kMostPieces));
  Json list = Json::array();
  for (const int32_t token : tokens)
    list.push_back({{"id", token}, {"piece", model.engine.tokenizer().piece(token, true)}});
  return {{"tokens", std::move(list)}};
}

Json detokenize(const ApiModel& model, const Json& body) {
  const Json* tokens = Fields(body).find("tokens");
  if (!tokens || !tokens->is_array()) refuse("tokens", "not a list of token ids");
  if (!model.engine.has_tokenizer()) refuse("tokens", "this model has no tokenizer");
  std::vector<int32_t> ids;
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= model.engine.plan().vocab_size)
      refuse("tokens", fmt::format("a token id is a whole number below {}", model.engine.plan().vocab_size));
    ids.push_back(id.get<int32_t>());
  }
  return {{"content", model.engine.tokenizer().decode(ids)}};
}

Json set_kv(Scheduler& scheduler, const Json& body) {
  const auto kv = Fields(body).text("kv_quant");
  if (!kv) refuse("kv_quant", "missing: the formats of requests that name none");
  if (*kv == "auto") refuse("kv_quant", "auto is not supported yet (name a format)");
  if (const Status status = scheduler.set_default_kv(*kv); !status) refuse("kv_quant", status.error().message);
  return {{"kv_quant", scheduler.default_kv()}};
}

/// ?steps=N: how many of the newest steps are looked at; all that are remembered without.
int64_t newest_steps(const http::Request& request) {
  const std::string* text = request.param("steps");
  if (!text) return INT64_MAX;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), n);
  if (error != std::errc() || end != text->data() + text->size() || n < 1)
    refuse("steps", fmt::format("'{}' is not a number of steps", *text));
  return n;
}

struct Route {
  std::string_view method, path;
  bool open = false;  ///< without a key
};
constexpr Route kRoutes[] = {
    {"GET", "/health", true},
    {"GET", "/v1/models"},
    {"GET", "/v1/models/"},  // and a name behind it
    {"POST", "/v1/chat/completions"},
    {"POST", "/v1/completions"},
    {"POST", "/v1/embeddings"},
    {"GET", "/metrics"},
    {"GET", "/props"},
    {"GET", "/slots"},
    {"GET", "/kv"},
    {"POST", "/kv"},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
    {"POST", "/apply-template"},
};

std::string_view method_of(const http::Request& request) {
  // The common type of "GET" and a string is a string, which would not live on.
  const std::string_view method = request.method;
  return method == "HEAD" ? "GET" : method;
}

/// Calls `work`; what it throws becomes the answer.
template <class Work>
void answering(const http::Reply& reply, const Work& work) {
  const auto send = [&](int status, const char* message, std::string code = {}) {
    const char* type = status == 503 ? "unavailable_error" : status == 500 ? "server_error" : "invalid_request_error";
    reply.send(ApiError{.status = status, .message = message, .type = type, .code = std::move(code)}.response());
  };
  try {
    work();
  } catch (const ApiError& error) {
    reply.send(error.response());
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
                                               .n_ctx = options.lane.n_ctx,
                                               .loaded = std::time(nullptr),
                                               .log = options_.log,
                                               .log_prompts = options_.log_prompts});
  if (options_.state_dir.empty()) {
    std::random_device random;
    options.lane.prefix_secret = uint64_t(random()) << 32 | random();
  } else {
    state_ = std::make_unique<StateDir>(options_.state_dir);
    options.lane.prefix_secret = state_->secret();
    options.on_open = [this](Lane& lane) { open_state(lane); };
    options.on_close = [this](Lane& lane) { close_state(lane); };
  }
  scheduler_ = std::make_unique<Scheduler>(engine, options);
  ready_ = true;
}

void Server::open_state(Lane& lane) {
  try {
    options_.log(state_->load(model_->engine, lane));
  } catch (const std::exception& error) {
    options_.log(fmt::format("prefixes not read: {}", error.what()));
  }
}

void Server::close_state(Lane& lane) {
  try {
    options_.log(state_->save(model_->engine, lane));
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
  const std::string_view method = method_of(head);
  if (page_file(head.path)) {
    if (method == "GET") return {};
    return ApiError{.status = 405, .message = fmt::format("{} takes GET only", head.path)}.response();
  }
  const Route* route = nullptr;
  bool known = false;
  for (const Route& r : kRoutes) {
    if (r.path != head.path && !(r.path.ends_with('/') && head.path.starts_with(r.path))) continue;
    known = true;
    if (r.method == method) route = &r;
  }
  if (!known)
    return ApiError{.status = 404, .message = fmt::format("nothing is at {}", head.path), .code = "not_found"}
        .response();
  if (!route)
    return ApiError{.status = 405, .message = fmt::format("{} does not take {}", head.path, method)}.response();
  if (!route->open && !options_.keys.empty() && !options_.keys.find(head.headers))
    return ApiError{.status = 401,
                    .message = "this server wants an API key: \"Authorization: Bearer KEY\"",
                    .type = "authentication_error",
                    .code = "invalid_api_key"}
        .response();
  if (stopping_)
    return ApiError{.status = 503, .message = "the server is stopping", .type = "unavailable_error"}.response();
  if (!ready_) return loading().response();
  return {};
}

/// On an I/O thread, which answers what must be heard whatever else runs. Other views wait for a step, and prompts are
/// long to read: they have threads of their own.
void Server::handle(http::Request request, const http::Reply& reply) {
  if (const PageFile* file = page_file(request.path)) return reply.send(page_response(*file));
  if (request.path == "/health") return answering(reply, [&] { answer_health(reply); });
  if (request.path == "/metrics")
    return reply.send(
        {.content_type = "text/plain; version=0.0.4", .body = metrics_text(scheduler_->board(), http_->counts())});
  const bool is_view = method_of(request) == "GET";
  boost::asio::post(is_view ? views_ : workers_, [this, request = std::move(request), reply, is_view] {
    answering(reply, [&] {
      if (stopping_) throw WorkEnded(true);
      if (is_view) return view(request, reply);
      const WorkLimit limit(options_.read_time, stopping_);
      answer(request, reply);
    });
  });
}

void Server::answer_health(const http::Reply& reply) const {
  const std::string failure = scheduler_->failure();
  if (!failure.empty())
    throw ApiError{.status = 500, .message = "the engine failed: " + failure, .type = "server_error"};
  reply.send(json_response({{"status", "ok"}}));
}

void Server::view(const http::Request& request, const http::Reply& reply) {
  const std::string& path = request.path;
  if (path == "/v1/models") return reply.send(json_response(models_json(*model_)));
  if (constexpr std::string_view kOne = "/v1/models/"; path.starts_with(kOne)) {
    if (path.substr(kOne.size()) != model_->name)
      throw ApiError{
          .status = 404,
          .message = fmt::format("there is no model '{}' here, only '{}'", path.substr(kOne.size()), model_->name),
          .param = "model",
          .code = "model_not_found"};
    return reply.send(json_response(models_json(*model_)["data"][0]));
  }
  if (path == "/props") return reply.send(json_response(props_json(*scheduler_, *model_)));
  if (path == "/slots") return reply.send(json_response(slots_json(*scheduler_, newest_steps(request))));
  const std::string* by = request.param("by");
  const KvDetail detail = by && *by == "page"    ? KvDetail::pages
                          : by && *by == "layer" ? KvDetail::layers
                                                 : KvDetail::none;
  reply.send(json_response(kv_json(*scheduler_, detail)));
}

void Server::answer(const http::Request& request, const http::Reply& reply) {
  const std::string& path = request.path;
  if (path == "/v1/embeddings")
    throw ApiError{
        .status = 404, .message = "this model generates text, it has no embeddings", .code = "not_supported"};
  const Json body = parse_body(request.body);
  if (path == "/kv") return reply.send(json_response(set_kv(*scheduler_, body)));
  if (path == "/tokenize") return reply.send(json_response(tokenize(*model_, body)));
  if (path == "/detokenize") return reply.send(json_response(detokenize(*model_, body)));
  if (path == "/apply-template") return reply.send(json_response({{"prompt", render_chat(*model_, body)}}));
  ApiRequest what =
      path == "/v1/chat/completions" ? read_chat_request(*model_, body) : read_completion_request(*model_, body);
  what.key = int(options_.keys.find(request.headers).value_or(0));
  answer_request(*scheduler_, *model_, std::move(what), reply);
}

}  // namespace ridge::serve
