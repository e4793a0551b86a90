#include "serve/routes.h"

#include <charconv>

#include "serve/answer.h"
#include "serve/api/anthropic.h"
#include "serve/api/embeddings.h"
#include "serve/api/llama.h"
#include "serve/api/openai.h"
#include "serve/api/responses.h"
#include "serve/views.h"

namespace ridge::serve {
namespace {

void send(const Call& call, const Json& json) {
  call.reply.send({.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)});
}

void health(const Call& call) {
  for (const Models::Pointer& served : call.models.loaded())
    if (const std::string failure = served->scheduler->failure(); !failure.empty())
      throw ApiError{.status = 500, .message = "the engine failed: " + failure, .type = "server_error"};
  send(call, {{"status", "ok"}});
}

void metrics(const Call& call) {
  if (!call.served) throw ApiError{.status = 503, .message = "no model is loaded", .type = "unavailable_error"};
  call.reply.send({.content_type = "text/plain; version=0.0.4",
                   .body = metrics_text(call.scheduler().board(), call.http.counts())});
}

void models(const Call& call) { send(call, models_json(call.models)); }

void one_model(const Call& call) {
  const std::string name = call.request.path.substr(std::string_view("/v1/models/").size());
  const Json list = models_json(call.models);
  for (const Json& one : list["data"])
    if (one["id"] == name) return send(call, one);
  throw no_model(name, call.models);
}

int key_of(const Call& call) { return int(call.keys.find(call.request.headers).value_or(0)); }
void generate(const Call& call, ApiRequest what, const MakeForm& make = openai_form) {
  what.key = key_of(call);
  answer_request(call.served, std::move(what), call.reply, make);
}
void chat(const Call& call) { generate(call, read_chat_request(call.model(), call.body)); }
void completion(const Call& call) { generate(call, read_completion_request(call.model(), call.body)); }
void llama_completion(const Call& call) { generate(call, read_llama_request(call.model(), call.body), llama_form); }
void messages(const Call& call) { generate(call, read_anthropic_request(call.model(), call.body), anthropic_form); }
void count_tokens(const Call& call) { send(call, {{"input_tokens", count_anthropic_tokens(call.model(), call.body)}}); }

void responses(const Call& call) {
  ResponsesRequest asked = read_responses_request(call.model(), call.body, key_of(call));
  ApiRequest generation = std::move(asked.generation);
  generate(call, std::move(generation), responses_form(std::move(asked)));
}
std::string response_id(const Call& call) {
  return call.request.path.substr(std::string_view("/v1/responses/").size());
}
[[noreturn]] void no_response(const std::string& id) {
  throw ApiError{.status = 404, .message = fmt::format("there is no response '{}' here", id), .code = "not_found"};
}
void get_response(const Call& call) {
  const ResponseStore::Stored found = call.model().responses->find(response_id(call), key_of(call));
  if (!found) no_response(response_id(call));
  send(call, found->response);
}
void delete_response(const Call& call) {
  const std::string id = response_id(call);
  if (!call.model().responses->erase(id, key_of(call))) no_response(id);
  send(call, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

void apply_template(const Call& call) { send(call, {{"prompt", render_chat(call.model(), call.body)}}); }

void embeddings(const Call& call) {
  EmbeddingsRequest request = read_embeddings_request(call.model(), call.body);
  request.key = key_of(call);
  answer_embeddings(call.served, std::move(request), call.reply);
}

void tokenize(const Call& call) {
  const ApiModel& model = call.model();
  const Fields f(call.body);
  const auto content = f.text("content");
  if (!content) refuse("content", "missing");
  if (!model.engine.has_tokenizer()) refuse("content", "this model has no tokenizer");
  const bool add_special = f.flag("add_special").value_or(false);
  const bool parse_special = f.flag("parse_special").value_or(true);
  const std::vector<int32_t> tokens = model.engine.tokenizer().encode(*content, add_special, parse_special);
  if (!f.flag("with_pieces").value_or(false)) return send(call, {{"tokens", tokens}});
  constexpr size_t kMostPieces = size_t(1) << 18;  // an object each
  if (tokens.size() > kMostPieces)
    refuse("with_pieces",
           fmt::format("the text has {} tokens, pieces are told of {} at most", tokens.size(), kMostPieces));
  Json list = Json::array();
  for (const int32_t token : tokens)
    list.push_back({{"id", token}, {"piece", model.engine.tokenizer().piece(token, true)}});
  send(call, {{"tokens", std::move(list)}});
}

void detokenize(const Call& call) {
  const ApiModel& model = call.model();
  const Json* tokens = Fields(call.body).find("tokens");
  if (!tokens || !tokens->is_array()) refuse("tokens", "not a list of token ids");
  if (!model.engine.has_tokenizer()) refuse("tokens", "this model has no tokenizer");
  std::vector<int32_t> ids;
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= model.engine.plan().vocab_size)
      refuse("tokens", fmt::format("a token id is a whole number below {}", model.engine.plan().vocab_size));
    ids.push_back(id.get<int32_t>());
  }
  send(call, {{"content", model.engine.tokenizer().decode(ids)}});
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

void props(const Call& call) { send(call, props_json(call.scheduler(), call.model())); }
void status(const Call& call) { send(call, status_json(call.scheduler(), newest_steps(call.request))); }

/// ?fail_on_no_slot=1: 503 where all slots are busy.
void slots(const Call& call) {
  Json list = slots_json(call.scheduler());
  const std::string* fails = call.request.param("fail_on_no_slot");
  if (fails && *fails == "1" &&
      std::ranges::all_of(list, [](const Json& slot) { return slot["is_processing"] == true; }))
    throw ApiError{.status = 503, .message = "all slots are busy", .type = "unavailable_error"};
  send(call, std::move(list));
}

void kv(const Call& call) {
  const std::string* by = call.request.param("by");
  const KvDetail detail = by && *by == "page"    ? KvDetail::pages
                          : by && *by == "layer" ? KvDetail::layers
                                                 : KvDetail::none;
  send(call, kv_json(call.scheduler(), detail));
}

void set_kv(const Call& call) {
  const auto kv = Fields(call.body).text("kv_quant");
  if (!kv) refuse("kv_quant", "missing: the formats of requests that name none");
  if (*kv == "auto") refuse("kv_quant", "auto is not supported yet (name a format)");
  if (const Status status = call.scheduler().set_default_kv(*kv); !status) refuse("kv_quant", status.error().message);
  send(call, {{"kv_quant", call.scheduler().default_kv()}});
}

constexpr Route kRoutes[] = {
    {"GET", "/health", Answerer::io, health, true},
    {"GET", "/metrics", Answerer::io, metrics},
    {"GET", "/v1/models", Answerer::view, models},
    {"GET", "/v1/models/", Answerer::view, one_model},
    {"GET", "/props", Answerer::view, props},
    {"GET", "/status", Answerer::view, status},
    {"GET", "/slots", Answerer::view, slots},
    {"GET", "/kv", Answerer::view, kv},
    {"POST", "/kv", Answerer::worker, set_kv},
    {"POST", "/v1/chat/completions", Answerer::worker, chat},
    {"POST", "/v1/completions", Answerer::worker, completion},
    {"POST", "/completion", Answerer::worker, llama_completion},
    {"POST", "/v1/messages", Answerer::worker, messages, false, anthropic_refusal},
    {"POST", "/v1/messages/count_tokens", Answerer::worker, count_tokens, false, anthropic_refusal},
    {"POST", "/v1/responses", Answerer::worker, responses},
    {"GET", "/v1/responses/", Answerer::view, get_response},
    {"DELETE", "/v1/responses/", Answerer::view, delete_response},
    {"POST", "/v1/embeddings", Answerer::worker, embeddings},
    {"POST", "/tokenize", Answerer::worker, tokenize},
    {"POST", "/detokenize", Answerer::worker, detokenize},
    {"POST", "/apply-template", Answerer::worker, apply_template},
};

}  // namespace

ApiError no_model(const std::string& name, const Models& models) {
  return {.status = 404,
          .message = fmt::format("there is no model '{}' here, only '{}'", name, fmt::join(models.names(), "', '")),
          .param = "model",
          .code = "model_not_found"};
}

const Route& route_of(const http::Request& request) {
  const std::string_view method = request.method == "HEAD" ? std::string_view("GET") : request.method;
  bool known = false;
  for (const Route& route : kRoutes) {
    if (route.path != request.path && !(route.path.ends_with('/') && request.path.starts_with(route.path))) continue;
    if (route.method == method) return route;
    known = true;
  }
  if (known) throw ApiError{.status = 405, .message = fmt::format("{} does not take {}", request.path, method)};
  throw ApiError{.status = 404, .message = fmt::format("nothing is at {}", request.path), .code = "not_found"};
}

}  // namespace ridge::serve
