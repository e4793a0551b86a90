// The machine's ceilings, measured by our own kernels: read, write, copy and triad bandwidth of memory, read bandwidth
// of the caches, and multiply-adds in registers.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lab/rows/columns.h"
#include "lab/rows/machine.h"
#include "op/stream/stream.h"

namespace ridge::lab {

/// Quartiles of repeated measurements.
struct Spread {
  double median = 0, lower = 0, upper = 0, min = 0, max = 0;
  /// "790.1 - 840.2"
  std::string quartiles(int digits) const { return fmt::format("{:.{}f} - {:.{}f}", lower, digits, upper, digits); }
};
/// NaN and negative values make everything NaN; an empty span gives zeroes.
Spread spread(std::vector<double> samples);

/// How large the buffers should be, and why.
struct StreamSize {
  int64_t bytes = 0;  ///< of one buffer
  std::string why;
};
/// At least 4 x the last-level cache and 1 GiB, cut down to an eighth of the available memory.
StreamSize choose_stream_size(int64_t cache_bytes, int64_t available_bytes);

struct StreamResult {
  std::string name;  ///< read, write, write-nt, copy, copy-nt, triad
  int64_t bytes_moved =
      0;  ///< per repeat, what the kernel loads and stores; the line fetched before a store not counted
  Spread gb_s;
  int repeats = 0;
};

/// Reading what a cache holds, over and over: on the CPU every thread its own buffer.
struct CacheResult {
  int level = 0;
  int64_t bytes = 0;  ///< a thread's buffer; a GPU's whole
  StreamResult stream;
};
/// A thread's buffer for a level: half of its share of the cache, whole kStreamUnits; 0 when there is no such level or
/// the level below holds it.
int64_t cache_buffer_bytes(const MachineInfo& machine, int level, int n_threads);

/// Multiply-adds, 10^9 operations a second, two a multiply-add.
struct RateResult {
  std::string number;   ///< "int8", "f32", "bf16", "f16"
  std::string kernel;   ///< empty when the device has no such arithmetic
  std::string why_not;  ///< then why
  Spread gop_s;
  int repeats = 0;

  bool is_none() const { return kernel.empty(); }
  /// Operations a byte at which arithmetic takes as long as reading it at `gb_s`; NaN without one of them.
  double ridge_op_per_byte(double gb_s) const;
};

struct CeilingOptions {
  int n_threads = 0;
  std::string isa;    ///< limit, empty for the best
  int64_t bytes = 0;  ///< of one buffer; 0 chooses
  int repeats = 11;
  double max_seconds = 10;  ///< per stream; at least three repeats are done
  bool read_only = false;   ///< only memory bandwidth ...
  bool rates = false;       ///< ... and the rates
  std::function<bool()> stop;
};

/// Measurements common to CPUs and GPUs.
struct Bandwidths {
  StreamSize size;
  std::vector<StreamResult>
      streams;  ///< of a GPU "read 512x8 4" (op/stream/stream_cuda.h), "write", "copy", "copy-driver"
  std::vector<CacheResult> caches;  ///< of a GPU L2, by the reading kernel that is fastest there
  std::vector<RateResult> rates;
};

struct Ceilings : Bandwidths {
  std::string kernel;
  int n_threads = 0;

  /// The memory bandwidth of read-mostly work, GB/s (10^9): the best repeat, as other tenants only ever take away.
  double read_gb_s() const;
};

/// Measures; throws Error(no_memory) when the buffers do not fit, Error(gate) when a kernel's result is wrong.
Ceilings measure_ceilings(const CeilingOptions& options);

Columns<StreamResult> stream_columns();
/// The ridge points are those of a memory bandwidth.
Columns<RateResult> rate_columns(double read_gb_s = 0);
Columns<CacheResult> cache_columns(std::string_view bytes_key);
/// Columns that ceilings of a CPU and of a GPU share; `bytes_key`: what CacheResult::bytes is called.
template <class T>
Columns<T> bandwidth_columns(std::string_view bytes_key) {
  return {
      {"buffer_bytes", "bytes", "of one buffer", [](auto& c) { return c.size.bytes; }},
      {"buffer_rule", "-", "why so many", [](auto& c) { return c.size.why; }},
      {"streams", "-", "a list, see below", [](auto& c) { return list_of(c.streams, stream_columns()); }},
      {"caches", "-", "a list, see below", [=](auto& c) { return list_of(c.caches, cache_columns(bytes_key)); }},
      {"rates", "-", "a list, see below", [](auto& c) { return list_of(c.rates, rate_columns(c.read_gb_s())); }},
  };
}
Columns<Ceilings> ceiling_columns();

}  // namespace ridge::lab
