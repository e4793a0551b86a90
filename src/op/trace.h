// Which ops ran, when and for how long: filled only during a profile. Attribution of a step is made from it
// (lab/model/profile.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "op/cpu.h"

namespace ridge {

/// Counters of the processor, over all threads; 0 when counters are off.
struct OpCounters {
  int64_t cycles = 0, instructions = 0;
  int64_t cache_misses = 0;  ///< of the last level: lines that came from memory
  OpCounters& operator+=(const OpCounters& other) {
    cycles += other.cycles;
    instructions += other.instructions;
    cache_misses += other.cache_misses;
    return *this;
  }
  OpCounters operator-(const OpCounters& other) const {
    return {cycles - other.cycles, instructions - other.instructions, cache_misses - other.cache_misses};
  }
};

/// One op as it ran.
struct OpCall {
  std::string_view op;      ///< gemv, gemm, attention, append, norm, rope, activation, embed, other
  std::string what;         ///< "8960x1536 q4_0"; empty where the op says it all
  std::string_view kernel;  ///< row of the op's table; empty where there is one only
  int layer = -1;           ///< -1 outside the layers
  Work work;
  double start_us = 0, us = 0;  ///< since the trace was made
  OpCounters counters;
};

/// Calls in the order they ended. One thread, the one that calls the ops, writes it.
class OpTrace {
 public:
  OpTrace();
  double now_us() const;
  void clear() { calls.clear(); }

  std::vector<OpCall> calls;
  int layer = -1;                             ///< of the calls to come
  std::function<OpCounters()> read_counters;  ///< totals so far; empty: counters are off

 private:
  double origin_us_;
};

/// Times the rest of its scope as one call when the context has a trace; costs a branch when it has none. Scopes do not
/// nest: an op that calls another leaves the timing to it.
class TracedOp {
 public:
  /// `what` is called, and must return std::string, only with a trace.
  template <class What>
  TracedOp(CpuContext& context, std::string_view op, std::string_view kernel, const Work& work, const What& what)
      : trace_(context.trace) {
    if (trace_) begin(op, kernel, work, what());
  }
  TracedOp(CpuContext& context, std::string_view op, std::string_view kernel, const Work& work)
      : TracedOp(context, op, kernel, work, [] { return std::string(); }) {}
  ~TracedOp() {
    if (trace_) end();
  }
  TracedOp(const TracedOp&) = delete;
  TracedOp& operator=(const TracedOp&) = delete;

 private:
  void begin(std::string_view op, std::string_view kernel, const Work& work, std::string what);
  void end();
  OpTrace* trace_;
  OpCall call_;
};

}  // namespace ridge
