// Cost of a coded cache in a decode pass, beside f16: attention over it, coding one new row, and the error of its rows.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lab/op/op_bench.h"

namespace ridge::lab {

/// Relative L2 error, |decoded - row| / |row|, of random normal rows through a side's rotation and format, rounded to
/// nearest. Rows of the window and of the sinks, which stay exact, are not counted.
double codec_error(const KvSideConfig& side, int head_dim, uint64_t seed);

/// One shape and coded cache. Times are medians of a call in microseconds; NaN where a row is missing or failed.
struct CodingCost {
  OpRow attention;    ///< over the coded cache
  double f16_us = 0;  ///< attention over an f16 cache of the same shape
  double coded_us = 0, coding_us = 0;
  double k_error = 0, v_error = 0;

  double sum_us() const { return coded_us + coding_us; }
};
/// Every coded cache of `attention` with its f16 row there, and the append of one row to each sequence in `append`.
std::vector<CodingCost> coding_costs(std::span<const OpRow> attention, std::span<const OpRow> append, uint64_t seed);

/// The fields of the attention's row with the times and errors beside them.
Columns<CodingCost> coding_columns();

}  // namespace ridge::lab
