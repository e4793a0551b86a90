// The new tokens of a step as kernels on a device see them.
#pragma once

#include <cstdint>

namespace ridge {

/// A new token. 16 bytes, read in one piece.
struct alignas(16) StepRow {
  int32_t row = 0;       ///< of the step's matrices
  int32_t position = 0;  ///< in its sequence
  int32_t slot = -1;     ///< of its sequence: sinks, centre and pages; below 0: padding, which nothing is done for
  int32_t ring = -1;     ///< slot of the ring that has its exact rows: its sequence's own, or a prompt's (RingCopy)
};

/// Pointers to device memory, so that a recorded launch serves every step.
struct StepRows {
  int n = 0;
  int most = 1;                    ///< rows of one sequence, at most
  const StepRow* rows = nullptr;   ///< [n]; those of one sequence are consecutive and in order of position
  const int32_t* pages = nullptr;  ///< [n_slots, page_pitch]: the list of pages of every slot's sequence
  int page_pitch = 0;
};

/// A sequence whose positions [n_past, n) have come.
struct alignas(16) StepSpan {
  int32_t slot = -1, ring = -1, n_past = 0, n = 0;
};

}  // namespace ridge
