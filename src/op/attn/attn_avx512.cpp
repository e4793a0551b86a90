// Attention kernels (op/attn/decode_simd.h, prefill_simd.h) for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/attn/kernels.h"

namespace ridge {
namespace {
inline DecodeRows decode_rows(const KvFormat& format, int head_dim) { return decode_rows_avx512(format, head_dim); }
}  // namespace
}  // namespace ridge

#include "op/attn/decode_simd.h"
#include "op/attn/prefill_simd.h"

namespace ridge {

void attn_decode_avx512(CpuContext& context, const AttnDecode& a) { run_attn_decode<NoIntegers>(context, a); }
void attn_prefill_avx512(CpuContext& context, const AttnPrefill& a) { run_attn_prefill(context, a); }

}  // namespace ridge
