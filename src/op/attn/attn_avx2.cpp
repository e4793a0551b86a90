// Attention kernels in floats (op/attn/attn_simd.h) for avx2.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/attn/kernels.h"

namespace ridge {
namespace {
inline DecodeRows decode_rows(const KvFormat& format, int head_dim) { return decode_rows_avx2(format, head_dim); }
}  // namespace
}  // namespace ridge

#include "op/attn/attn_simd.h"

namespace ridge {

void attention_avx2(CpuContext& context, const Attention& a) { run_attention<NoIntegers>(context, a); }
ScratchBytes attention_avx2_scratch(const Attention& a, int64_t n_times, int n_threads) {
  return AttentionScratch<NoIntegers>(a, n_times, n_threads).bytes();
}

}  // namespace ridge
