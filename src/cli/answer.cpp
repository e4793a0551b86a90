#include "cli/answer.h"

#include <algorithm>
#include <chrono>
#include <climits>

#include "base/progress.h"
#include "cli/interrupt.h"
#include "engine/token_stream.h"

namespace ridge::cli {
namespace {

/// The engine's own steps (SessionOptions::n_ubatch).
constexpr int kCpuStep = 512, kGpuStep = 2048;

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double tokens_per_second(int n, double seconds) { return seconds > 0 ? n / seconds : 0; }

std::string ReadingNotes::line(size_t n_read, size_t n, double seconds) {
  if (seconds < next_s_ || n_read == 0 || n_read >= n) return {};
  next_s_ = 2 * seconds;
  return fmt::format("prompt   {} of {} tokens read, {} left\n", n_read, n,
                     short_duration(seconds / double(n_read) * double(n - n_read)));
}

int read_tokens(Session& session, const Model& model, std::span<const int32_t> tokens, int n_step,
                bool shows_progress) {
  if (n_step == 0) n_step = model.info().device == "cpu" ? kCpuStep : kGpuStep;
  Progress progress("prompt", shows_progress && tokens.size() > size_t(n_step));
  ReadingNotes notes;
  const auto start = std::chrono::steady_clock::now();
  size_t n = 0;
  while (n < tokens.size() && !interrupted()) {
    progress.set(int64_t(n), int64_t(tokens.size()), "tokens");
    const size_t step = std::min(tokens.size() - n, size_t(n_step));
    session.prefill(tokens.subspan(n, step));
    n += step;
    if (shows_progress && !progress.shown()) fmt::print(stderr, "{}", notes.line(n, tokens.size(), since(start)));
  }
  return int(n);
}

GenerateResult answer(Session& session, const Model& model, std::span<const int32_t> prompt,
                      const AnswerOptions& options, const std::function<void(std::string_view)>& on_text) {
  const std::span<const int32_t> rest = prompt.subspan(size_t(options.n_held));
  GenerateResult result;
  const std::function<bool(std::string_view)> take = [&](std::string_view text) {
    on_text(text);
    return !interrupted();
  };
  const std::function<bool(std::string_view)> take_mark = [&](std::string_view mark) {
    options.on_mark(mark);
    return !interrupted();
  };
  const auto mark_of = [&](int32_t t) {
    const bool wanted = std::ranges::find(options.marks, t) != options.marks.end();
    return wanted ? model.piece(t, true) : std::string();
  };
  TokenStream stream({.piece = [&](int32_t t) { return options.ids ? std::to_string(t) + " " : model.piece(t); },
                      .is_end = [&](int32_t t) { return model.is_end(t); },
                      .mark = mark_of},
                     options.generate, take, result, options.on_mark ? take_mark : nullptr);
  auto start = std::chrono::steady_clock::now();
  result.n_prompt = read_tokens(session, model, rest, options.n_step, options.shows_progress);
  result.prefill_seconds = since(start);
  if (result.n_prompt < int(rest.size())) {
    result.reason = StopReason::interrupted;
    return result;
  }

  start = std::chrono::steady_clock::now();
  if (stream.wants_more()) {
    bool stopped = false;  // a token that completes no text asks nobody
    const int n = session.draw(options.generate.sampler, prompt, INT_MAX, [&](int32_t token) {
      const bool more = stream.push(token);
      stopped = more && interrupted();
      return more && !stopped;
    });
    result.n_decoded = n - 1;
    if (stopped) result.reason = StopReason::interrupted;
    else if (stream.wants_more()) result.reason = StopReason::context_full;
  }
  result.decode_seconds = since(start);
  stream.finish();
  return result;
}

}  // namespace ridge::cli
