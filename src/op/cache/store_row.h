// Rows on their way into tiles of rows: one thread and the host's own code. Device code for *_exact.cu.
#pragma once

#include "op/cache/exact_rows.h"

namespace ridge {

/// Codes a row into its page. Returns how many values were saturated. `decoded` has room for a row.
__device__ inline int code_row(const KvTiles& t, const StepRow& of, const int32_t* pages, int head, int position,
                               const float* row, float* decoded) {
  std::byte* const to = t.coded_row(pages, head, position);
  const KvCoding coding = t.coding(of.slot, head);
  const int saturated = encode_row(t.format, KvFormatTypes(), row, t.head_dim, coding, to);
  float norm2 = 0, error2 = 0;
  decode_row(t.format, KvFormatTypes(), to, t.head_dim, coding, decoded);
  for (int d = 0; d < t.head_dim; ++d) {
    const float error = row[d] - decoded[d];
    norm2 += row[d] * row[d];
    error2 += error * error;
  }
  add_counts(t.counts[pages[position / kPagePositions]], norm2, error2);
  return saturated;
}

/// A row of K or V in cache space to its place, centred here. `room` has room for a row.
__device__ inline void store_row(const KvTiles& t, const StepRow& of, const int32_t* pages, int head, float* row,
                                 float* room) {
  auto* const coded = reinterpret_cast<std::byte*>(room);
  const int position = of.position;
  const bool at_once = t.retention.window == 0 && position >= t.retention.calibration;
  int saturated = 0;
  if (position < t.retention.calibration) round_to_exact(t, position, row, coded);
  if (t.centre) {  // zero until it is set
    const float* const centre = t.centre_of(of.slot, head);
    for (int d = 0; d < t.head_dim; ++d) row[d] -= centre[d];
  }
  if (t.ring_tiles > 0 || t.n_sinks > 0) saturated += round_to_exact(t, position, row, coded);
  if (position < t.n_sinks || (t.ring_tiles > 0 && !at_once)) write_exact_row<true>(t, of, head, position, row);
  if (at_once) saturated += code_row(t, of, pages, head, position, row, room);
  add_saturated(t.saturated, saturated);
}

}  // namespace ridge
