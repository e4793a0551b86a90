#include "op/trace.h"

#include <chrono>

namespace ridge {
namespace {

double clock_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

OpTrace::OpTrace() : origin_us_(clock_us()) {}
double OpTrace::now_us() const { return clock_us() - origin_us_; }

void TracedOp::begin(std::string_view op, std::string_view kernel, const Work& work, std::string what) {
  call_ = {.op = op, .what = std::move(what), .kernel = kernel, .layer = trace_->layer, .work = work};
  if (trace_->read_counters) call_.counters = trace_->read_counters();
  call_.start_us = trace_->now_us();
}

void TracedOp::end() {
  call_.us = trace_->now_us() - call_.start_us;
  if (trace_->read_counters) call_.counters = trace_->read_counters() - call_.counters;
  trace_->calls.push_back(std::move(call_));
}

}  // namespace ridge
