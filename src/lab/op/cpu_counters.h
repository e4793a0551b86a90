// The processor's own counters over all threads of this process, where the system lets us read them.
#pragma once

#include <memory>

#include "base/result.h"
#include "op/trace.h"

namespace ridge::lab {

class CpuCounters {
 public:
  /// Counts every thread that exists now: make it after the thread pool. The failure says what forbids it.
  static Result<CpuCounters> open();
  CpuCounters(CpuCounters&& other) noexcept;
  CpuCounters& operator=(CpuCounters&& other) noexcept;
  ~CpuCounters();

  /// Totals since open(), user mode only. A few microseconds.
  OpCounters read() const;

 private:
  struct Threads;
  explicit CpuCounters(std::unique_ptr<Threads> threads);
  std::unique_ptr<Threads> threads_;
};

}  // namespace ridge::lab
