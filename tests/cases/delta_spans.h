// What a step of states on a device must know of its spans.
#pragma once

#include <algorithm>
#include <span>

#include "op/delta/delta_cuda.h"

namespace ridge {

struct SpanCounts {
  int most = 1;       ///< rows of one span
  int n_chunked = 0;  ///< spans that have chunks
  int n_chunks = 0;   ///< behind the last one's number

  explicit SpanCounts(std::span<const DeltaSpan> spans) {
    for (const DeltaSpan& span : spans) {
      most = std::max(most, span.n);
      if (span.chunk < 0) continue;
      n_chunked += 1;
      n_chunks = std::max(n_chunks, span.chunk + (span.n + kDeltaChunk - 1) / kDeltaChunk);
    }
  }
};

}  // namespace ridge
