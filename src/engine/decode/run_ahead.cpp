#include "engine/decode/run_ahead.h"

#include <chrono>
#include <vector>

#include "base/result.h"

namespace ridge {

RunAhead::RunAhead(DeviceSteps& steps, int n_numbers, int depth) : steps_(steps), n_numbers_(n_numbers), depth_(depth) {
  RIDGE_CHECK(n_numbers > 0 && depth > 0, "{} numbers, {} steps ahead", n_numbers, depth);
}

void RunAhead::wait_for(int64_t step, std::span<int32_t> numbers) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point ask = Clock::now() + std::chrono::milliseconds(1);
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (steps_.read(step, numbers)) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    if (Clock::now() < ask) continue;
    // A device that has failed delivers nothing more; asking it costs a call into the driver.
    if (steps_.idle() && !steps_.read(step, numbers))
      throw_error(ErrorKind::failure, "the device ended step {} without delivering its tokens", step);
    ask = Clock::now() + std::chrono::milliseconds(1);
  }
}

void RunAhead::run(const std::function<bool()>& may_launch,
                   const std::function<bool(std::span<const int32_t>)>& on_numbers) {
  std::vector<int32_t> numbers(static_cast<size_t>(n_numbers_));
  next_ = n_launched_;
  try {
    for (bool more = true; more; ++next_) {
      while (n_queued() < depth_ && may_launch()) steps_.launch(n_launched_++);
      if (n_queued() == 0) break;
      wait_for(next_, numbers);
      ++n_taken_;
      more = on_numbers(numbers);
    }
  } catch (...) {
    try {
      steps_.finish();
    } catch (const Error&) {  // the first error is the one to tell
    }
    throw;
  }
  steps_.finish();
}

}  // namespace ridge
