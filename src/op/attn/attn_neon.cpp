// Attention kernels in floats (op/attn/attn_simd.h) for NEON.
#include "op/simd/neon.h"
// The Simd struct above must come first.
#include "op/attn/kernels.h"

namespace ridge {
namespace {
inline DecodeRows decode_rows(const KvFormat& format, int head_dim) { return decode_rows_neon(format, head_dim); }
}  // namespace
}  // namespace ridge

#include "op/attn/attn_simd.h"

namespace ridge {

void attention_neon(CpuContext& context, const Attention& a) { run_attention<NoIntegers>(context, a); }
ScratchBytes attention_neon_scratch(const Attention& a, int64_t n_times, int n_threads) {
  return AttentionScratch<NoIntegers>(a, n_times, n_threads).bytes();
}

}  // namespace ridge
