#include "base/work_limit.h"

namespace ridge {

thread_local WorkLimit* WorkLimit::current_ = nullptr;

WorkEnded::WorkEnded(bool is_stopping)
    : Error(is_stopping ? ErrorKind::failure : ErrorKind::usage,
            is_stopping ? "the server is stopping" : "reading the request takes too long (make it smaller or simpler)"),
      stopping(is_stopping) {}

WorkLimit::WorkLimit(std::chrono::milliseconds time, const std::atomic<bool>& stopping)
    : stopping_(stopping), end_(std::chrono::steady_clock::now() + time) {
  current_ = this;
}

WorkLimit::~WorkLimit() { current_ = outer_; }

void WorkLimit::look() const {
  if (stopping_) throw WorkEnded(true);
  if (std::chrono::steady_clock::now() >= end_) throw WorkEnded(false);
}

}  // namespace ridge
