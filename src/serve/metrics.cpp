#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace ridge::serve {
namespace {

constexpr size_t kRecentSteps = 256;

}  // namespace

void Histogram::observe(double seconds) {
  ++count_;
  sum_ += seconds;
  const auto bound = std::ranges::lower_bound(kBounds, seconds);
  if (bound != kBounds.end()) ++below_[size_t(bound - kBounds.begin())];
}

std::string Histogram::text(std::string_view name, std::string_view help) const {
  std::string text = fmt::format("# HELP {} {}\n# TYPE {} histogram\n", name, help, name);
  int64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i)
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], below += below_[i]);
  return text + fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count_, sum_);
}

void OpTimes::take(OpTrace& trace, double pass_seconds) {
  ++passes;
  seconds += pass_seconds;
  for (const OpCall& call : trace.calls) ops[call.layer][call.op] += 1e-6 * call.us;
  trace.clear();
}

void Totals::count_end(FinishReason reason, const Usage& usage, double seconds) {
  ++(reason == FinishReason::cancelled ? cancelled : reason == FinishReason::failed ? failed : finished);
  prompt_tokens += usage.n_prompt - usage.n_cached;
  cached_tokens += usage.n_cached;
  generated_tokens += usage.n_generated;
  queue.observe(usage.queue_seconds);
  request.observe(seconds);
  if (on_end) on_end(*this);
}

void Totals::count_step(const StepRecord& record) {
  ++steps;
  decode_rows += record.n_decode;
  proposed_tokens += record.n_proposed;
  accepted_tokens += record.n_accepted;
  steps_ahead += record.ahead;
  step_seconds += record.seconds;
  for (size_t i = 0; i < kStepParts.size(); ++i) part_seconds[i] += record.parts[i];
  step.observe(record.seconds);
  recent.push_back(record);
  if (recent.size() > kRecentSteps) recent.pop_front();
}

}  // namespace ridge::serve
