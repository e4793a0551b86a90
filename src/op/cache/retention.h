// Which cached positions a query sees coded and which exact.
#pragma once

#include "base/host_device.h"

namespace ridge {

/// Which rows of a position a query sees: decided by the query's own position only, so prefill equals decode.
struct KvRetention {
  int window = 0;       ///< newest positions kept exact (0: none)
  int tile = 1;         ///< positions are coded this many at a time
  int calibration = 0;  ///< positions that must be present before anything is coded

  /// Positions [0, coded_end(n)) are coded when the cache holds n positions.
  RIDGE_HD int coded_end(int n) const {
    if (n < calibration || n < window) return 0;
    return (n - window) / tile * tile;
  }
};

}  // namespace ridge
