// The kernel of integer GEMVs.
#pragma once

#include "op/gemv/int_sums.h"

namespace ridge {

/// x / divisor for x < 2^32 / divisor.
struct IntDivisor {
  unsigned divisor, inverse;  // 2^32 / divisor, rounded up; of 1 unused

  explicit IntDivisor(int64_t d = 1) : divisor(unsigned(d)), inverse(unsigned(((int64_t(1) << 32) + d - 1) / d)) {}
  __device__ int quotient(int x) const { return divisor == 1 ? x : int(uint64_t(unsigned(x)) * inverse >> 32); }
};

/// Things dealt out as evenly as they can be: the first `longer` shares have one more than `each`.
struct IntShares {
  int each, longer;

  IntShares(int64_t n_things, int n_shares) : each(int(n_things / n_shares)), longer(int(n_things % n_shares)) {}
  __device__ int begin(int share) const { return share * each + min(share, longer); }
  __device__ int count(int share) const { return each + (share < longer); }
};

/// A block has the activations of whole rows, or of one part of them (IntPlan::split), and every warp reads one stretch
/// of the weights.
void launch_int_stream(IntKind kind, const IntJob& job, const IntPlan& plan, gpu::StreamHandle stream, bool overlap);

}  // namespace ridge
