// The generation loop: prefill, sample, stream text, stop.
#include <algorithm>
#include <chrono>

#include "io/tokenizer.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Streams text, holding back what may still become a stop string.
class StopFilter {
 public:
  explicit StopFilter(const std::vector<std::string>& stops) : stops_(stops) {}

  /// Adds text; returns what is final. After a match, matched() names the stop string and nothing more comes out.
  std::string push(std::string_view text) {
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
  std::string finish() { return std::exchange(held_, {}); }
  const std::string* matched() const { return matched_; }

 private:
  /// Length of the longest end of held_ that begins some stop string.
  size_t longest_open_match() const {
    size_t longest = 0;
    for (const std::string& stop : stops_)
      for (size_t n = std::min(held_.size(), stop.size()); n > longest; --n)
        if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) longest = n;
    return longest;
  }

  const std::vector<std::string>& stops_;
  std::string held_;
  const std::string* matched_ = nullptr;
};

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::end_token: return "end token";
    case StopReason::stop_string: return "stop string";
    case StopReason::max_tokens: return "token limit";
    case StopReason::context_full: return "context full";
    case StopReason::interrupted: return "interrupted";
  }
  return "?";
}

GenerateResult generate(Session& session, const Model& model, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<bool(std::string_view)>& on_text) {
  if (options.max_tokens < -1) throw Error(ErrorKind::usage, "the number of tokens to generate must be -1 or more");
  Sampler sampler(options.sampler, model.info().vocab_size);
  sampler.accept(prompt);
  GenerateResult result{.n_prompt = int(prompt.size())};
  io::Utf8Stream utf8;
  StopFilter filter(options.stop);
  bool stopped = false;
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    stopped = !on_text(text) || stopped;
  };

  const auto start = std::chrono::steady_clock::now();
  std::span<const float> logits = session.prefill(prompt);
  result.prefill_seconds = seconds_since(start);

  const auto decode_start = std::chrono::steady_clock::now();
  result.reason = StopReason::max_tokens;
  while (options.max_tokens < 0 || int(result.tokens.size()) < options.max_tokens) {
    const int32_t token = sampler.sample(logits);
    result.tokens.push_back(token);
    if (!options.ignore_eos && model.is_end(token)) {
      result.reason = StopReason::end_token;
      break;
    }
    emit(filter.push(utf8.push(model.piece(token))));
    if (filter.matched()) {
      result.reason = StopReason::stop_string;
      result.stop = *filter.matched();
      break;
    }
    if (stopped) {
      result.reason = StopReason::interrupted;
      break;
    }
    if (options.max_tokens >= 0 && int(result.tokens.size()) >= options.max_tokens) break;
    if (session.n_past() >= session.n_ctx()) {
      result.reason = StopReason::context_full;
      break;
    }
    logits = session.decode(token);
    ++result.n_decoded;
  }
  result.decode_seconds = seconds_since(decode_start);
  if (result.reason != StopReason::stop_string) {
    emit(filter.push(utf8.finish()));
    if (!filter.matched()) emit(filter.finish());
  }
  return result;
}

}  // namespace ridge
