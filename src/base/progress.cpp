#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ridge {
namespace {

bool terminal_on_stderr() {
  const char* const term = std::getenv("TERM");
  return isatty(STDERR_FILENO) && term && std::string_view(term) != "dumb";
}

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto whole = int64_t(std::ceil(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string progress_line(std::string_view label, int64_t done, int64_t total, double seconds, std::string_view detail,
                          int width) {
  std::string line(label);
  if (total > 0) {
    constexpr int kBar = 20;
    const double part = std::clamp(double(done) / double(total), 0.0, 1.0);
    const int filled = int(part * kBar);
    line += fmt::format(" [{:#<{}}{:.<{}}] {:3.0f}% {}/{}", "", filled, "", kBar - filled, 100 * part, done, total);
  } else {
    line += fmt::format(" {}", done);
  }
  if (!detail.empty()) line += fmt::format(" {}", detail);
  // The first moments say nothing about the rest.
  if (total > 0 && done > 0 && done < total && seconds > 0.5)
    line += fmt::format(", {} left", short_duration(seconds / double(done) * double(total - done)));
  if (int(line.size()) >= width) line.resize(size_t(std::max(0, width - 1)));
  return line;
}

Progress::Progress(std::string label, bool enabled)
    : label_(std::move(label)), shown_(enabled && terminal_on_stderr()) {}

void Progress::set(int64_t done, int64_t total, std::string_view detail) {
  done_ = done;
  if (!shown_) return;
  const auto now = Clock::now();
  if (!start_) start_ = now;
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - *start_).count();
  fmt::print(stderr, "\r{}\x1b[K", progress_line(label_, done, total, seconds, detail, terminal_width()));
  std::fflush(stderr);
}

void Progress::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

void Progress::restart() {
  clear();
  done_ = 0;
  start_.reset();
}

}  // namespace ridge
