// One line of progress with an ETA, rewritten in place on a terminal's stderr; nothing on a pipe or when quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ridge {

/// "1h02m", "3m07s", "12s"; "?" for what is not a time.
std::string short_duration(double seconds);

/// The line without control codes: "label [#####.....] 50% 3/6 detail, 12s left". `total` <= 0 leaves the bar out.
std::string progress_line(std::string_view label, int64_t done, int64_t total, double seconds, std::string_view detail,
                          int width);

class Progress {
 public:
  /// Shows only when `enabled` and stderr is a terminal that can rewrite a line (TERM is not "dumb"). Time counts from
  /// the first set().
  Progress(std::string label, bool enabled);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool shown() const { return shown_; }
  /// `done` of `total` (0: not known); redraws at most ten times a second.
  void set(int64_t done, int64_t total, std::string_view detail);
  /// So many more.
  void add(int64_t steps, int64_t total, std::string_view detail) { set(done_ + steps, total, detail); }
  /// Removes the line, so that a log line can be written; the next set() draws it again.
  void clear();
  /// The next set() begins anew.
  void restart();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool shown_;
  int64_t done_ = 0;
  bool drawn_ = false;
  std::optional<Clock::time_point> start_;
  Clock::time_point last_{};
};

}  // namespace ridge
