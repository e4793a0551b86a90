#include "op/cache/rounding.h"
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/cache/rounding_simd.h"

namespace ridge {

void round_row_neon(const float* u, const float* metric, int dim, const float* levels, int count, RoundedRow& out) {
  run_round_row(u, metric, dim, levels, count, out);
}

}  // namespace ridge
