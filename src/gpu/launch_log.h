// Which op each launch belongs to, so that the times of kernels can be attributed; and the same as NVTX ranges, for
// Nsight. Costs next to nothing while no log is open.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::gpu {

/// An op as the host queued it.
struct LoggedOp {
  std::string_view op;  ///< gemv, gemm, attention, append, ... as in op/trace.h
  std::string what;
  int layer = -1;
  int64_t read_bytes = 0, write_bytes = 0, flops = 0;
};
/// A kernel of the op, by the name of its launch.
struct LoggedLaunch {
  std::string_view kernel;
  int op = -1;  ///< index into LaunchLog::ops; -1: launched outside of any OpRange
};

struct LaunchLog {
  std::vector<LoggedOp> ops;
  std::vector<LoggedLaunch> launches;  ///< in order
  void append(const LaunchLog& other);
};

/// Log to which launches and ranges of this thread are written; null: none.
LaunchLog* launch_log();

/// Makes `log` the launch log of this thread for its scope. Ranges inside become NVTX ranges "layer 3/attention ..."
/// too.
class LogLaunches {
 public:
  explicit LogLaunches(LaunchLog* log);
  ~LogLaunches();
  LogLaunches(const LogLaunches&) = delete;
  LogLaunches& operator=(const LogLaunches&) = delete;

 private:
  LaunchLog* before_;
};

/// The launches of its scope are of one op. Ranges do not nest.
class OpRange {
 public:
  /// `make` returns the LoggedOp; called only while a log is open.
  template <class Make>
  explicit OpRange(const Make& make) : log_(launch_log()) {
    if (log_) begin(make());
  }
  ~OpRange() {
    if (log_) end();
  }
  OpRange(const OpRange&) = delete;
  OpRange& operator=(const OpRange&) = delete;

 private:
  void begin(LoggedOp op);
  void end();
  LaunchLog* log_;
};

/// Called by launch().
void log_launch(const char* kernel);

}  // namespace ridge::gpu
