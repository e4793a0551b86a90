// Prompt attention by warpgroups (wide_prefill_cuda.cu): a part of prefill_attn().
#pragma once

#include "op/attn/attn_cuda.h"

namespace ridge {

inline constexpr int kWidePrefillQueries = 128;  // of a block
/// Whether heads of this size have it, where gpu::device_has_warpgroups().
constexpr bool has_wide_prefill(int head_dim) { return head_dim == 64 || head_dim == 128; }
/// As prefill_attn(), but for the join of parts; blocks are of kWidePrefillQueries.
void wide_prefill_attn(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list);

}  // namespace ridge
