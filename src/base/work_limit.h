// A bound on the time of one piece of work: what reads requests looks at it as it goes on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "ridge/error.h"

namespace ridge {

/// Error that WorkLimit::check() throws.
class WorkEnded : public Error {
 public:
  explicit WorkEnded(bool is_stopping);
  const bool stopping;  ///< the program ends; else the time is over
};

/// While it lives, work on this thread ends when the time is over or `stopping` is set. Threads without one work on.
class WorkLimit {
 public:
  WorkLimit(std::chrono::milliseconds time, const std::atomic<bool>& stopping);
  ~WorkLimit();
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

  /// For loops over data from outside: cheap, the clock is read now and then. Throws WorkEnded.
  static void check() {
    if (current_ != nullptr && (++current_->n_checks_ & 255) == 0) current_->look();
  }
  /// Steps of work so far.
  uint32_t n_checks() const { return n_checks_; }

 private:
  void look() const;

  static thread_local WorkLimit* current_;
  WorkLimit* const outer_ = current_;
  const std::atomic<bool>& stopping_;
  const std::chrono::steady_clock::time_point end_;
  uint32_t n_checks_ = 0;
};

}  // namespace ridge
