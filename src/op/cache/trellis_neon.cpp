#include "op/cache/rounding.h"
#include "op/simd/neon.h"

namespace ridge {
namespace {

inline void move_states(const int32_t* from, const float* in, float* out) {
  for (int s = 0; s < 16; ++s) out[s] = in[from[s]];
}

}  // namespace
}  // namespace ridge

// move_states() must come first.
#include "op/cache/trellis_simd.h"

namespace ridge {

void code_trellis_neon(const float* u, const float* factor, int dim, TrellisRow& out) {
  run_code_trellis(u, factor, dim, out);
}

}  // namespace ridge
