// Prompt attention by warpgroups (wide_prefill_cuda.cu): a part of prefill_attn().
#pragma once

#include "op/attn/attn_cuda.h"

namespace ridge {

inline constexpr int kWidePrefillQueries = 128;  // of a block
/// Whether the current device has the products for heads of this size.
bool has_wide_prefill(int head_dim);
/// As prefill_attn(), but for the join of parts; blocks are of kWidePrefillQueries.
void wide_prefill_attn(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list);

}  // namespace ridge
