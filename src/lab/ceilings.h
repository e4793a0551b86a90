// The machine's memory ceilings, measured by our own kernels: read, write, copy and triad bandwidth.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lab/results.h"
#include "op/stream/stream.h"

namespace ridge::lab {

/// Quartiles of repeated measurements.
struct Spread {
  double median = 0, lower = 0, upper = 0, min = 0, max = 0;
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

struct CeilingOptions {
  int n_threads = 0;
  std::string isa;    ///< limit, empty for the best
  int64_t bytes = 0;  ///< of one buffer; 0 chooses
  int repeats = 11;
  double max_seconds = 10;  ///< per stream; at least three repeats are done
  bool read_only = false;
  std::function<bool()> stop;
};

struct Ceilings {
  std::string kernel;
  int n_threads = 0;
  StreamSize size;
  std::vector<StreamResult> streams;

  /// The roof for read-mostly work, GB/s (10^9): the best repeat, as other tenants only ever take away.
  double read_gb_s() const;
};

/// Measures; throws Error(no_memory) when the buffers do not fit.
Ceilings measure_ceilings(const CeilingOptions& options);

/// Bandwidths as rows carry them.
Row stream_rows(std::span<const StreamResult> streams);
Row to_row(const Ceilings& ceilings);

}  // namespace ridge::lab
