// Sessions, sampling and generating of the C API.
#include <algorithm>
#include <chrono>
#include <functional>

#include "base/seconds.h"
#include "capi/handles.h"
#include "engine/decode/token_stream.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"

namespace ridge::capi {
namespace {

SharedSession& shared(const ridge_session* session) { return *given(session, "session").shared; }

/// The session behind a change of its tokens that leaves no logits.
Session& changed(const ridge_session* session) {
  shared(session).has_logits = false;
  return shared(session).session;
}

std::span<const int32_t> prompt_of(const ridge_tokens* prompt) {
  return values<const int32_t>(given(prompt, "prompt").data, prompt->n, "prompt");
}

/// Hands rows of n_cols to the caller.
auto rows_to(ridge_rows_callback on_rows, void* user, int n_cols) {
  given(on_rows, "on_rows");
  return [=](int first, int n_rows, const float* rows) {
    if (on_rows(user, size_t(first), size_t(n_rows), size_t(n_cols), rows) == 0)
      throw Error(ErrorKind::interrupted, "the callback asked to stop");
  };
}

ridge_sampler_options sampler_defaults() {
  const SamplerOptions d;
  return {sizeof(ridge_sampler_options),
          d.temperature,
          d.top_k,
          d.top_p,
          d.min_p,
          d.repeat_penalty,
          d.repeat_last_n,
          d.seed};
}
SamplerOptions sampler_options(const ridge_sampler_options* options) {
  const ridge_sampler_options o = read_struct(options, sampler_defaults());
  return {.temperature = o.temperature,
          .top_k = o.top_k,
          .top_p = o.top_p,
          .min_p = o.min_p,
          .repeat_penalty = o.repeat_penalty,
          .repeat_last_n = o.repeat_last_n,
          .seed = o.seed};
}

ridge_generate_options generate_defaults() {
  ridge_generate_options options{};
  options.max_tokens = -1;
  return options;
}
GenerateOptions generate_options(const ridge_generate_options* options) {
  const ridge_generate_options o = read_struct(options, generate_defaults());
  GenerateOptions made{
      .max_tokens = o.max_tokens, .ignore_eos = o.ignore_end != 0, .sampler = sampler_options(o.sampler)};
  for (const char* const stop : values(o.stop, o.n_stop, "stop")) made.stop.emplace_back(&given(stop, "stop"));
  return made;
}

ridge_generation generation(const GenerateResult& result, std::span<const int32_t> tokens) {
  ridge_generation out{};
  out.stop = ridge_stop(result.reason);
  out.tokens = tokens.data();
  out.n_tokens = tokens.size();
  out.n_prompt = result.n_prompt;
  out.prefill_seconds = result.prefill_seconds;
  out.decode_seconds = result.decode_seconds;
  return out;
}

/// Reads the prompt; none where the session has logits to go on from.
void read_prompt(SharedSession& s, std::span<const int32_t> prompt) {
  if (prompt.empty() && s.has_logits) return;
  s.has_logits = false;
  s.session.prefill(prompt);
  s.has_logits = true;
}

void generate_text(SharedSession& s, std::span<const int32_t> prompt, GenerateOptions options,
                   const std::function<bool(std::string_view)>& on_text, ridge_generation* result) {
  options.read = [&](std::span<const int32_t> unread) {
    read_prompt(s, unread);
    s.has_logits = false;
    return int(unread.size());
  };
  if (!s.model->info.has_tokenizer) options.ids = true;
  const GenerateResult made = generate(s.session, s.model->model, prompt, options, on_text);
  s.generated = made.tokens;
  if (result) write_struct(result, generation(made, s.generated), "result");
}

}  // namespace
}  // namespace ridge::capi

using namespace ridge::capi;
using ridge::ErrorKind;

struct ridge_sampler {
  ridge::Sampler sampler;
  size_t vocab_size;
};

/// A text that is pulled: a few tokens at a time, until there is a piece to hand on.
struct ridge_stream {
  ridge_stream(std::shared_ptr<SharedSession> of, std::span<const int32_t> prompt, ridge::GenerateOptions with)
      : shared(std::move(of)),
        options(std::move(with)),
        known(prompt.begin(), prompt.end()),
        text({.piece = [this](int32_t t) { return piece_of(t); },
              .is_end = [this](int32_t t) { return shared->model->model.is_end(t); }},
             options, on_text, result) {
    read_prompt(*shared, prompt);
    shared->has_logits = false;
    result.n_prompt = int(prompt.size());
    result.prefill_seconds = ridge::seconds_since(start);
  }

  std::string piece_of(int32_t token) const {
    return shared->model->info.has_tokenizer ? shared->model->model.piece(token) : std::to_string(token) + " ";
  }
  /// More tokens, one on a CPU; false where the context is full. A GPU runs ahead of what it hands on.
  bool step() {
    ridge::Session& session = shared->session;
    if (!result.tokens.empty()) {
      if (session.n_past() == session.n_ctx()) return false;
      session.decode(result.tokens.back());
    }
    ridge::SamplerOptions sampler = options.sampler;
    sampler.n_sampled = result.tokens.size();
    const size_t n_known = std::min(known.size(), size_t(std::max(1, sampler.repeat_last_n)));
    const int n_most = shared->model->model.engine().on_device() ? 8 : 1;
    session.generate(sampler, std::span(known).last(n_known), n_most, [&](int32_t token) {
      known.push_back(token);
      return text.push(token);
    });
    return true;
  }
  const std::string& next() {
    const auto began = std::chrono::steady_clock::now();
    piece.clear();
    while (piece.empty() && !ended) {
      bool full = false;
      if (text.wants_more() && !(full = !step())) continue;
      if (full) result.reason = ridge::StopReason::context_full;
      text.finish();
      ended = true;
    }
    result.decode_seconds += ridge::seconds_since(began);
    return piece;
  }

  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::shared_ptr<SharedSession> shared;
  ridge::GenerateOptions options;
  ridge::GenerateResult result;
  std::string piece;
  std::vector<int32_t> known;  // the prompt and what came behind it
  bool ended = false;
  std::function<bool(std::string_view)> on_text = [this](std::string_view more) {
    piece += more;
    return true;
  };
  ridge::TokenStream text;
};

void ridge_session_options_init(ridge_session_options* options, size_t size) { init_struct(options, size, {}); }
void ridge_sampler_options_init(ridge_sampler_options* options, size_t size) {
  init_struct(options, size, sampler_defaults());
}
void ridge_generate_options_init(ridge_generate_options* options, size_t size) {
  init_struct(options, size, generate_defaults());
}

ridge_status ridge_session_create(const ridge_model* model, const ridge_session_options* options,
                                  ridge_session** session) {
  return guarded([&] {
    given(session, "session") = nullptr;
    const ridge_session_options read = read_struct(options, {});
    const ridge::KvChoice kv = ridge::parse_kv_choice(text_or(read.kv, "f16")).or_throw();
    *session = new ridge_session{std::make_shared<SharedSession>(
        given(model, "model").shared, ridge::session_options(kv, read.n_ctx, read.n_ubatch))};
  });
}

void ridge_session_free(ridge_session* session) { delete session; }

int32_t ridge_session_n_past(const ridge_session* session) { return session ? shared(session).session.n_past() : 0; }
int32_t ridge_session_n_ctx(const ridge_session* session) { return session ? shared(session).session.n_ctx() : 0; }

ridge_status ridge_session_kv_info(const ridge_session* session, ridge_kv_info* info) {
  return guarded([&] {
    const ridge::KvReport report = shared(session).session.kv_report();
    ridge_kv_info filled{};
    filled.k_bits = report.k.bits_per_value;
    filled.v_bits = report.v.bits_per_value;
    filled.bytes_per_token = report.bytes_per_token();
    filled.allocated_bytes = report.k.allocated_bytes + report.v.allocated_bytes;
    write_struct(info, filled, "info");
  });
}

ridge_status ridge_prefill(ridge_session* session, const int32_t* tokens, size_t n, const float** logits) {
  return guarded([&] {
    const std::span<const float> row = changed(session).prefill(values(tokens, n, "tokens"));
    shared(session).has_logits = true;
    if (logits) *logits = row.data();
  });
}

ridge_status ridge_decode(ridge_session* session, int32_t token, const float** logits) {
  return ridge_prefill(session, &token, 1, logits);
}

ridge_status ridge_prefill_logits(ridge_session* session, const int32_t* tokens, size_t n, ridge_rows_callback on_rows,
                                  void* user) {
  return guarded([&] {
    const int n_cols = shared(session).model->info.vocab_size;
    changed(session).prefill(values(tokens, n, "tokens"), rows_to(on_rows, user, n_cols));
    shared(session).has_logits = true;
  });
}

ridge_status ridge_prefill_hidden(ridge_session* session, const int32_t* tokens, size_t n, ridge_rows_callback on_rows,
                                  void* user) {
  return guarded([&] {
    const int n_cols = shared(session).model->info.d_model;
    changed(session).embed(values(tokens, n, "tokens"), rows_to(on_rows, user, n_cols));
    shared(session).has_logits = true;
  });
}

ridge_status ridge_session_reset(ridge_session* session) {
  return guarded([&] { changed(session).reset(); });
}
ridge_status ridge_session_truncate(ridge_session* session, int32_t n) {
  return guarded([&] { changed(session).truncate(n); });
}
ridge_status ridge_session_shift(ridge_session* session, int32_t n_keep, int32_t n_discard) {
  return guarded([&] { changed(session).shift(n_keep, n_discard); });
}
ridge_status ridge_session_copy(ridge_session* session, const ridge_session* from) {
  return guarded([&] {
    SharedSession& source = shared(from);
    if (&source != &shared(session)) changed(session).copy_from(source.session);
  });
}
ridge_status ridge_session_save(const ridge_session* session, const char* path) {
  return guarded([&] { shared(session).session.save(&given(path, "path")); });
}
ridge_status ridge_session_load(ridge_session* session, const char* path) {
  return guarded([&] { changed(session).restore(&given(path, "path")); });
}

ridge_status ridge_sampler_create(const ridge_model* model, const ridge_sampler_options* options,
                                  ridge_sampler** sampler) {
  return guarded([&] {
    given(sampler, "sampler") = nullptr;
    const int vocab_size = given(model, "model").shared->info.vocab_size;
    *sampler = new ridge_sampler{ridge::Sampler(sampler_options(options), vocab_size), size_t(vocab_size)};
  });
}
void ridge_sampler_free(ridge_sampler* sampler) { delete sampler; }

ridge_status ridge_sampler_sample(ridge_sampler* sampler, const float* logits, int32_t* token) {
  return guarded([&] {
    ridge_sampler& s = given(sampler, "sampler");
    given(token, "token") = s.sampler.sample(values(logits, s.vocab_size, "logits"));
  });
}
ridge_status ridge_sampler_accept(ridge_sampler* sampler, const int32_t* tokens, size_t n) {
  return guarded([&] {
    ridge_sampler& s = given(sampler, "sampler");
    const std::span<const int32_t> ids = values(tokens, n, "tokens");
    ridge::check_tokens(ids, int(s.vocab_size));
    s.sampler.accept(ids);
  });
}

ridge_status ridge_generate(ridge_session* session, const ridge_tokens* prompt, const ridge_generate_options* options,
                            ridge_text_callback on_text, void* user, ridge_generation* result) {
  return guarded([&] {
    if (result) check_size(result->size, sizeof *result);
    generate_text(
        shared(session), prompt_of(prompt), generate_options(options),
        [&](std::string_view text) { return !on_text || on_text(user, text.data(), text.size()) != 0; }, result);
  });
}

ridge_status ridge_stream_create(ridge_session* session, const ridge_tokens* prompt,
                                 const ridge_generate_options* options, ridge_stream** stream) {
  return guarded([&] {
    given(stream, "stream") = nullptr;
    shared(session);
    *stream = new ridge_stream(session->shared, prompt_of(prompt), generate_options(options));
  });
}
ridge_status ridge_stream_next(ridge_stream* stream, const char** text, size_t* n) {
  return guarded([&] {
    given(n, "n") = 0;
    const std::string& piece = given(stream, "stream").next();
    given(text, "text") = piece.c_str();
    *n = piece.size();
  });
}
ridge_status ridge_stream_result(const ridge_stream* stream, ridge_generation* result) {
  return guarded([&] {
    const ridge::GenerateResult& made = given(stream, "stream").result;
    write_struct(result, generation(made, made.tokens), "result");
  });
}
void ridge_stream_free(ridge_stream* stream) { delete stream; }
