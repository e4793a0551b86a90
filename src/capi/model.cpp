// Models, tokens and chat templates of the C API.
#include "base/json.h"
#include "capi/handles.h"
#include "engine/engine.h"
#include "serve/answer_form.h"

namespace ridge::capi {
namespace {

using serve::Json;

LoadOptions load_options(const ridge_load_options* options) {
  const ridge_load_options read = read_struct(options, {});
  return {.device = text_or(read.device, "cpu"),
          .n_threads = read.n_threads,
          .isa = text_or(read.isa, ""),
          .n_cpu_moe = read.n_cpu_moe,
          .moe_device_gib = read.moe_device_gib > 0 ? read.moe_device_gib : -1,
          .moe_cache_gib = read.moe_cache_gib};
}

const SharedModel& shared(const ridge_model* model) { return *given(model, "model").shared; }

ridge_model_info model_info(SharedModel& shared) {
  const ModelInfo& info = shared.info;
  ridge_model_info out{};
  out.name = info.name.c_str();
  out.arch = info.arch.c_str();
  out.weight_format = info.weight_format.c_str();
  out.device = info.device.c_str();
  out.n_layers = info.n_layers;
  out.n_heads = info.n_heads;
  out.n_kv_heads = info.n_kv_heads;
  out.head_dim = info.head_dim;
  out.d_model = info.d_model;
  out.vocab_size = info.vocab_size;
  out.n_ctx_train = info.n_ctx_train;
  out.n_threads = info.n_threads;
  out.has_tokenizer = info.has_tokenizer;
  out.has_chat_template = info.has_tokenizer && !shared.chat_template("").plain();
  out.bos = shared.model.bos().value_or(-1);
  out.n_params = info.n_params;
  out.weight_bytes = info.weight_bytes;
  out.load_seconds = info.load_seconds;
  return out;
}

/// JSON of the caller; what is missing is null.
Json parse_json(const char* text, std::string_view name) {
  if (!text) return nullptr;
  Result<Json> parsed = parse_within<Json>(text);
  if (!parsed) throw_error(ErrorKind::usage, "{}: {}", name, parsed.error().message);
  return std::move(*parsed);
}

void check_messages(const Json& messages) {
  if (!messages.is_array() || messages.empty())
    throw Error(ErrorKind::usage, "messages: expected a JSON array of messages, at least one");
  for (const Json& message : messages)
    if (!member_text(message, "role") || !member_text(message, "content"))
      throw Error(ErrorKind::usage, "messages: each needs the texts \"role\" and \"content\"");
}

serve::Conversation conversation(const char* messages, const ridge_chat_options& options) {
  serve::Conversation c{.messages = parse_json(&given(messages, "messages"), "messages"),
                        .tools = parse_json(options.tools, "tools"),
                        .extra = options.variables ? parse_json(options.variables, "variables") : Json::object()};
  check_messages(c.messages);
  if (!c.tools.is_null() && !c.tools.is_array()) throw Error(ErrorKind::usage, "tools: expected a JSON array");
  if (!c.extra.is_object()) throw Error(ErrorKind::usage, "variables: expected a JSON object");
  return c;
}

void chat_prompt(SharedModel& shared, serve::Conversation c, const std::string& choice, ridge_text* text,
                 ridge_tokens* tokens) {
  Engine& engine = shared.model.engine();
  const serve::ModelTemplate& chat_template = shared.chat_template(choice);
  const serve::UserText user_text(engine);
  c.messages = user_text.guarded(std::move(c.messages));
  if (!c.tools.is_null()) c.tools = user_text.guarded_texts(std::move(c.tools));
  const std::string prompt = serve::render_conversation(engine, chat_template, c).or_throw();
  // A template writes the special tokens itself.
  const bool plain = chat_template.plain();
  if (text) write_result(*text, std::span<const char>(user_text.released(prompt)), "text");
  if (tokens) write_result(*tokens, std::span<const int32_t>(user_text.tokens(prompt, plain, !plain)), "tokens");
}

}  // namespace

SharedModel::SharedModel(Model loaded) : model(std::move(loaded)), info(model.info()) {
  if (!info.has_tokenizer) return;
  if (const auto end = serve::find_turn_end(model.engine(), chat_template(""))) model.engine().add_end(*end);
}

const serve::ModelTemplate& SharedModel::chat_template(const std::string& choice) {
  const std::lock_guard lock(mutex_);
  const auto known = templates_.find(choice);
  if (known != templates_.end()) return known->second;
  return templates_.emplace(choice, serve::read_model_template(info.path, choice)).first->second;
}

}  // namespace ridge::capi

using namespace ridge::capi;

void ridge_load_options_init(ridge_load_options* options, size_t size) { init_struct(options, size, {}); }
void ridge_chat_options_init(ridge_chat_options* options, size_t size) { init_struct(options, size, {}); }

ridge_status ridge_model_load(const char* path, const ridge_load_options* options, ridge_model** model) {
  return guarded([&] {
    given(model, "model") = nullptr;
    ridge::Model loaded = ridge::Model::load(&given(path, "path"), load_options(options));
    *model = new ridge_model{std::make_shared<SharedModel>(std::move(loaded))};
  });
}

void ridge_model_free(ridge_model* model) { delete model; }

ridge_status ridge_model_get_info(const ridge_model* model, ridge_model_info* info) {
  return guarded([&] { write_struct(info, model_info(*given(model, "model").shared), "info"); });
}

ridge_status ridge_tokenize(const ridge_model* model, const char* text, size_t n_bytes, int flags, ridge_tokens* out) {
  return guarded([&] {
    const std::span<const char> bytes = values(text, n_bytes, "text");
    const std::vector<int32_t> tokens = shared(model).model.tokenize(
        {bytes.data(), bytes.size()}, (flags & RIDGE_ADD_SPECIAL) != 0, (flags & RIDGE_PARSE_SPECIAL) != 0);
    write_result(given(out, "out"), std::span<const int32_t>(tokens), "tokens");
  });
}

ridge_status ridge_detokenize(const ridge_model* model, const int32_t* tokens, size_t n, int flags, ridge_text* out) {
  return guarded([&] {
    const std::span<const int32_t> ids = values(tokens, n, "tokens");
    ridge::check_tokens(ids, shared(model).info.vocab_size);
    const std::string text = shared(model).model.detokenize(ids, (flags & RIDGE_PARSE_SPECIAL) != 0);
    write_result(given(out, "out"), std::span<const char>(text), "bytes");
  });
}

ridge_status ridge_piece(const ridge_model* model, int32_t token, int flags, ridge_text* out) {
  return guarded([&] {
    ridge::check_tokens({&token, 1}, shared(model).info.vocab_size);
    const std::string text = shared(model).model.piece(token, (flags & RIDGE_PARSE_SPECIAL) != 0);
    write_result(given(out, "out"), std::span<const char>(text), "bytes");
  });
}

int ridge_is_end(const ridge_model* model, int32_t token) { return model && shared(model).model.is_end(token) ? 1 : 0; }

ridge_status ridge_chat_prompt(const ridge_model* model, const char* messages, const ridge_chat_options* options,
                               ridge_text* text, ridge_tokens* tokens) {
  return guarded([&] {
    const ridge_chat_options read = read_struct(options, {});
    chat_prompt(*given(model, "model").shared, conversation(messages, read), text_or(read.chat_template, ""), text,
                tokens);
  });
}
