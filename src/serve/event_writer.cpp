#include "serve/event_writer.h"

namespace ridge::serve {

bool EventWriter::push(std::string_view data, std::string_view name) {
  const std::lock_guard lock(mutex_);
  backlog_ += http::sse_event(data, name);
  return flush() && backlog_.size() <= kMaxBacklog;
}

void EventWriter::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  flush();
}

bool EventWriter::flush() {
  if (!backlog_.empty()) {
    switch (stream_->send(backlog_)) {
      case http::Sent::ok: backlog_.clear(); break;
      case http::Sent::gone: return false;
      case http::Sent::full:
        if (waits_) return true;
        waits_ = true;
        stream_->on_ready([self = shared_from_this()] {
          const std::lock_guard lock(self->mutex_);
          self->waits_ = false;
          self->flush();
        });
        return true;
    }
  }
  if (finished_) stream_->finish();
  return true;
}

}  // namespace ridge::serve
