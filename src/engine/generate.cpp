// The generation loop: prefill, sample, stream text, stop.
#include <chrono>
#include <climits>

#include "engine/token_stream.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  constexpr std::string_view kNames[] = {"end token", "stop string", "token limit", "context full", "interrupted"};
  return kNames[size_t(reason)];
}

GenerateResult generate(Session& session, const Model& model, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<bool(std::string_view)>& on_text) {
  GenerateResult result{.n_prompt = int(prompt.size())};
  TokenStream stream({.piece = [&](int32_t token) { return model.piece(token); },
                      .is_end = [&](int32_t token) { return model.is_end(token); }},
                     options, on_text, result);
  const auto start = std::chrono::steady_clock::now();
  session.prefill(prompt);
  result.prefill_seconds = seconds_since(start);

  const auto decode_start = std::chrono::steady_clock::now();
  if (stream.wants_more()) {
    const int n = session.draw(options.sampler, prompt, INT_MAX, [&](int32_t token) { return stream.push(token); });
    result.n_decoded = n - 1;
    if (stream.wants_more()) result.reason = StopReason::context_full;
  }
  result.decode_seconds = seconds_since(decode_start);
  stream.finish();
  return result;
}

}  // namespace ridge
