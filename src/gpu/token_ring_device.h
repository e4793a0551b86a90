// The device's end of gpu/token_ring.h.
#pragma once

#include "gpu/launch.h"
#include "gpu/token_ring.h"

namespace ridge::gpu {

/// Sends the token of the next step of sequence `seq`; once a step, by one thread.
__device__ inline void put_token(const TokenRingView& ring, int seq, int32_t token) {
  const uint32_t step = ring.steps[seq];
  ring.steps[seq] = step + 1;
  // Volatile: goes to the host's memory now, not when the kernel ends.
  *static_cast<volatile uint64_t*>(ring.words + int64_t(step % uint32_t(ring.n_slots)) * ring.n_seq + seq) =
      uint64_t(step + 1) << 32 | uint32_t(token);
}

}  // namespace ridge::gpu
