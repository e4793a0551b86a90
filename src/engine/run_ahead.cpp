#include "engine/run_ahead.h"

#include <chrono>
#include <vector>

#include "base/result.h"

namespace ridge {

RunAhead::RunAhead(DeviceSteps& steps, int n_seq, int depth) : steps_(steps), n_seq_(n_seq), depth_(depth) {
  RIDGE_CHECK(n_seq > 0 && depth > 0, "{} sequences, {} steps ahead", n_seq, depth);
}

void RunAhead::wait_for(int64_t step, std::span<int32_t> tokens) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point ask = Clock::now() + std::chrono::milliseconds(1);
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (steps_.read(step, tokens)) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    if (Clock::now() < ask) continue;
    // A device that has failed delivers nothing more; asking it costs a call into the driver.
    if (steps_.idle() && !steps_.read(step, tokens))
      throw_error(ErrorKind::failure, "the device ended step {} without delivering its tokens", step);
    ask = Clock::now() + std::chrono::milliseconds(1);
  }
}

RunAheadResult RunAhead::run(int64_t n_steps, const std::function<bool(std::span<const int32_t>)>& on_tokens) {
  RunAheadResult result;
  std::vector<int32_t> tokens(static_cast<size_t>(n_seq_));
  const auto finish = [&] {
    n_before_ += result.n_launched;
    steps_.finish();
  };
  try {
    bool more = true;
    while (more && result.n_taken < n_steps) {
      for (; result.n_launched < n_steps && result.n_launched - result.n_taken < depth_; ++result.n_launched)
        steps_.launch(n_before_ + result.n_launched);
      wait_for(n_before_ + result.n_taken, tokens);
      ++result.n_taken;
      more = on_tokens(tokens);
    }
  } catch (...) {
    try {
      finish();
    } catch (const Error&) {  // the first error is the one to tell
    }
    throw;
  }
  finish();
  return result;
}

}  // namespace ridge
