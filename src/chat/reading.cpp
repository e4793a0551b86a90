#include "chat/reading.h"

#include <algorithm>
#include <chrono>

#include "base/interrupt.h"
#include "base/progress.h"
#include "engine/engine.h"

namespace ridge::chat {

double tokens_per_second(int n, double seconds) { return seconds > 0 ? n / seconds : 0; }

std::string ReadingNotes::line(size_t n_read, size_t n, double seconds) {
  if (seconds < next_s_ || n_read == 0 || n_read >= n) return {};
  next_s_ = 2 * seconds;
  return fmt::format("prompt   {} of {} tokens read, {} left\n", n_read, n,
                     short_duration(seconds / double(n_read) * double(n - n_read)));
}

int read_tokens(Session& session, const Model& model, std::span<const int32_t> tokens, const ReadingOptions& options) {
  const auto n_step = size_t(options.n_step > 0 ? options.n_step : model.engine().default_ubatch());
  Progress progress("prompt", options.shows_progress && tokens.size() > n_step);
  ReadingNotes notes;
  const auto start = std::chrono::steady_clock::now();
  size_t n = 0;
  while (n < tokens.size() && !interrupted()) {
    progress.set(int64_t(n), int64_t(tokens.size()), "tokens");
    const size_t step = std::min(tokens.size() - n, n_step);
    session.prefill(tokens.subspan(n, step));
    n += step;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (options.shows_progress && !progress.shown())
      fmt::print(stderr, "{}", notes.line(n, tokens.size(), seconds.count()));
  }
  return int(n);
}

}  // namespace ridge::chat
