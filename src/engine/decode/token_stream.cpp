#include "engine/decode/token_stream.h"

#include <algorithm>
#include <chrono>
#include <climits>

#include "base/seconds.h"

namespace ridge {

std::string_view stop_reason_name(StopReason reason) {
  constexpr std::string_view kNames[] = {"end token", "stop string", "token limit", "context full", "interrupted"};
  return kNames[size_t(reason)];
}

std::string StopFilter::push(std::string_view text) {
  held_ += text;
  size_t at = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t found = stop.empty() ? std::string::npos : held_.find(stop);
    if (found < at) {
      at = found;
      matched_ = &stop;
    }
  }
  const size_t n_final = matched_ ? at : held_.size() - longest_open_match();
  std::string out = held_.substr(0, n_final);
  held_.erase(0, matched_ ? held_.size() : n_final);
  return out;
}

/// Length of the longest end of held_ that begins some stop string.
size_t StopFilter::longest_open_match() const {
  size_t longest = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(held_.size(), stop.size()); n > longest; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) longest = n;
  return longest;
}

TokenStream::TokenStream(Vocabulary vocabulary, const GenerateOptions& options, const OnText& on_text,
                         GenerateResult& result, OnText on_mark)
    : vocabulary_(std::move(vocabulary)),
      options_(options),
      on_text_(on_text),
      on_mark_(std::move(on_mark)),
      result_(result),
      filter_(options.stop) {
  if (options.max_tokens < -1) throw Error(ErrorKind::usage, "the number of tokens to generate must be -1 or more");
  result.reason = StopReason::max_tokens;
  wants_more_ = options.max_tokens != 0;
}

void TokenStream::emit(const std::string& text) {
  if (text.empty()) return;
  result_.text += text;
  interrupted_ = !on_text_(text) || interrupted_;
}

/// Emits held-back text before the mark: a mark parts texts.
void TokenStream::emit_mark(const std::string& mark) {
  emit(filter_.push(utf8_.finish()));
  if (filter_.matched()) return;
  emit(filter_.finish());
  interrupted_ = !on_mark_(mark) || interrupted_;
}

bool TokenStream::stop(StopReason reason) {
  result_.reason = reason;
  return wants_more_ = false;
}

bool TokenStream::push(int32_t token) {
  result_.tokens.push_back(token);
  if (!options_.ignore_eos && vocabulary_.is_end(token)) return stop(StopReason::end_token);
  const std::string mark = on_mark_ && vocabulary_.mark ? vocabulary_.mark(token) : std::string();
  if (!mark.empty()) emit_mark(mark);
  else emit(filter_.push(utf8_.push(vocabulary_.piece(token))));
  if (filter_.matched()) {
    result_.stop = *filter_.matched();
    return stop(StopReason::stop_string);
  }
  if (interrupted_) return stop(StopReason::interrupted);
  if (options_.max_tokens >= 0 && int(result_.tokens.size()) >= options_.max_tokens)
    return stop(StopReason::max_tokens);
  return true;
}

void TokenStream::finish() {
  if (result_.reason == StopReason::stop_string) return;
  // A limit may cut through a character: its begin is no text. A model that ends there wrote a broken one.
  const std::string broken = utf8_.finish();
  if (result_.reason == StopReason::end_token) emit(filter_.push(broken));
  if (!filter_.matched()) emit(filter_.finish());
}

GenerateResult generate(Session& session, const Model& model, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<bool(std::string_view)>& on_text) {
  const std::span<const int32_t> unread = prompt.subspan(size_t(options.n_held));
  const auto mark_of = [&](int32_t token) {
    const bool wanted = std::ranges::find(options.marks, token) != options.marks.end();
    return wanted ? model.piece(token, true) : std::string();
  };
  GenerateResult result;
  TokenStream stream({.piece = [&](int32_t t) { return options.ids ? std::to_string(t) + " " : model.piece(t); },
                      .is_end = [&](int32_t t) { return model.is_end(t); },
                      .mark = mark_of},
                     options, on_text, result, options.on_mark);
  auto start = std::chrono::steady_clock::now();
  result.n_prompt = int(unread.size());
  if (options.read) result.n_prompt = options.read(unread);
  else session.prefill(unread);
  result.prefill_seconds = seconds_since(start);
  if (result.n_prompt < int(unread.size())) {
    result.reason = StopReason::interrupted;
    return result;
  }

  start = std::chrono::steady_clock::now();
  if (stream.wants_more()) {
    std::optional<StopReason> ended;  // by no token's meaning
    const auto take = [&](int32_t token) {
      if (!stream.push(token)) return false;
      if (options.rule && options.rule->complete()) ended = StopReason::end_token;
      else if (options.interrupted && options.interrupted()) ended = StopReason::interrupted;
      return !ended;
    };
    const int most = options.max_tokens < 0 ? INT_MAX : options.max_tokens;
    result.n_decoded = session.generate(options.sampler, prompt, most, take, options.rule) - 1;
    if (ended) result.reason = *ended;
    else if (stream.wants_more()) result.reason = StopReason::context_full;
  }
  result.decode_seconds = seconds_since(start);
  stream.finish();
  return result;
}

}  // namespace ridge
