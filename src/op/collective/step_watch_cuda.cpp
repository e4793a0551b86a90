#include "op/collective/step_watch_cuda.h"

#include <cstdio>
#include <cstdlib>

#include "base/result.h"

namespace ridge {
namespace {

constexpr std::chrono::milliseconds kLook{20};
constexpr std::chrono::seconds kUntilSeen{5}, kUntilDestroyed{60};

}  // namespace

StepWatch::StepWatch(StepWatchOptions options) : options_(std::move(options)), thread_([this] { run(); }) {}

StepWatch::~StepWatch() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

StepWatch::Part::Part(StepWatch& watch, std::string what, double seconds) : watch_(watch) {
  const std::scoped_lock lock(watch.mutex_);
  watch.what_ = std::move(what);
  watch.seconds_ = seconds;
  watch.progress_ = Clock::now();
}

StepWatch::Part::~Part() {
  const std::scoped_lock lock(watch_.mutex_);
  watch_.what_.clear();
  watch_.progress_ = Clock::now();
}

void StepWatch::mark(gpu::StreamHandle stream) {
  const std::scoped_lock lock(mutex_);
  if (spare_.empty()) spare_.push_back(std::make_unique<gpu::Event>(false));
  spare_.back()->record(stream);
  if (marks_.empty()) progress_ = Clock::now();
  marks_.push_back(std::move(spare_.back()));
  spare_.pop_back();
}

void StepWatch::check() {
  if (!failed_) return;
  const std::scoped_lock lock(mutex_);
  seen_ = true;
  changed_.notify_all();
  throw Error(ErrorKind::failure, failure_);
}

std::string StepWatch::look(std::unique_lock<std::mutex>& lock) {
  while (!marks_.empty()) {
    const gpu::Event& first = *marks_.front();  // nobody else takes it away
    lock.unlock();
    bool done = true;
    try {
      done = first.done();
    } catch (const Error&) {  // of a kernel: the thread that waits for it will tell
    }
    lock.lock();
    if (!done) break;
    spare_.push_back(std::move(marks_.front()));
    marks_.pop_front();
    progress_ = Clock::now();
  }
  if (marks_.empty() && what_.empty()) return {};
  if (std::string trouble = options_.trouble(); !trouble.empty()) return trouble;
  const double seconds = what_.empty() ? options_.timeout_s : seconds_;
  if (std::chrono::duration<double>(Clock::now() - progress_).count() <= seconds) return {};
  return options_.late(what_.empty() ? "the end of a step that GPUs share" : what_, seconds);
}

void StepWatch::end_all(std::unique_lock<std::mutex>& lock) {
  failed_ = true;
  lock.unlock();
  options_.end();
  lock.lock();
  changed_.wait_for(lock, kUntilSeen, [this] { return stop_ || seen_; });
  if (seen_) changed_.wait_for(lock, kUntilDestroyed, [this] { return stop_; });
  if (stop_) return;
  fmt::print(stderr, "error: {}\n", failure_);
  std::fflush(stderr);
  std::_Exit(int(ErrorKind::failure));
}

void StepWatch::run() {
  try {
    gpu::use_device(options_.device);
  } catch (const Error&) {  // the thread that works on it will tell
  }
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, kLook, [this] { return stop_; });
    if (stop_) return;
    failure_ = look(lock);
    if (!failure_.empty()) return end_all(lock);
  }
}

}  // namespace ridge
