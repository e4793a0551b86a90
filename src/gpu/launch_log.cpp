#include "gpu/launch_log.h"

#include <fmt/format.h>

#if defined(RIDGE_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else  // nobody to show ranges to
inline void nvtxRangePushA(const char*) {}
inline void nvtxRangePop() {}
#endif

namespace ridge::gpu {
namespace {

thread_local LaunchLog* current_log = nullptr;
thread_local int current_op = -1;

}  // namespace

void LaunchLog::append(const LaunchLog& other) {
  const int first = int(ops.size());
  ops.insert(ops.end(), other.ops.begin(), other.ops.end());
  for (const LoggedLaunch& launch : other.launches)
    launches.push_back({launch.kernel, launch.op < 0 ? -1 : first + launch.op});
}

LaunchLog* launch_log() { return current_log; }

LogLaunches::LogLaunches(LaunchLog* log) : before_(current_log) { current_log = log; }
LogLaunches::~LogLaunches() { current_log = before_; }

void OpRange::begin(LoggedOp op) {
  const std::string place = op.layer < 0 ? "" : fmt::format("layer {}/", op.layer);
  nvtxRangePushA(fmt::format("{}{} {}", place, op.op, op.what).c_str());
  current_op = int(log_->ops.size());
  log_->ops.push_back(std::move(op));
}

void OpRange::end() {
  current_op = -1;
  nvtxRangePop();
}

void log_launch(const char* kernel) {
  if (current_log) current_log->launches.push_back({kernel, current_op});
}

}  // namespace ridge::gpu
