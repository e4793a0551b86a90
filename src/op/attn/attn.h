// Attention over a KV cache in any format. The cache is read in cache space: rows are rotated and centred (see
// model/kv_cache.h), Q comes rotated, the output is un-rotated by the caller. Kernels know nothing of either.
#pragma once

#include <array>
#include <optional>

#include "base/view.h"
#include "format/list.h"
#include "op/attn/retention.h"
#include "op/cpu.h"

namespace ridge {

/// Consecutive positions of one side of a cache, stored in one format. Row of (head h, position first + i) starts at
/// rows + h * head_stride + i * row_bytes.
struct KvSegment {
  const KvFormat* format = nullptr;
  const std::byte* rows = nullptr;
  int64_t row_bytes = 0;
  int64_t head_stride = 0;  // bytes
  int first = 0;
  int count = 0;
  const float* head_scale = nullptr;  ///< [n_kv_heads], where the format has head_scale

  KvCoding coding(int kv_head) const { return {.fixed = head_scale ? head_scale[kv_head] : 0.0f}; }
};

/// One side (K or V) of a layer: segments cover positions [0, n_keys) in order. At most: sinks, coded, two ring parts.
struct KvSide {
  std::array<KvSegment, 4> segments;
  int n_segments = 0;
};

/// A side of n_keys rows that are nowhere, for asking which kernels serve a problem and what it moves.
KvSide kv_side_without_rows(const KvFormat& format, int head_dim, int n_keys);

/// One token's queries against n_keys cached rows.
struct AttnDecode {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_keys = 0;
  float scale = 0;           ///< on the scores, usually 1 / sqrt(head_dim)
  const float* q = nullptr;  ///< [n_heads, head_dim]
  KvSide k, v;
  float* out = nullptr;  ///< [n_heads, head_dim]
  int split = 0;  ///< keys per work item; 0 lets the kernel choose. The result does not depend on it beyond rounding.
};

/// One side of a layer during prefill: coded rows of all positions below coded_end(n_keys), and the exact values of
/// positions [exact_first, n_keys) as floats.
struct PrefillSide {
  const KvFormat* format = nullptr;
  const std::byte* rows = nullptr;
  int64_t row_bytes = 0;
  int64_t head_stride = 0;  // bytes
  KvRetention retention;
  int sinks = 0;                     ///< positions [0, sinks) are always exact
  int sink_stride = 0;               ///< rows per head in sink_rows
  const float* sink_rows = nullptr;  ///< [n_kv_heads, sink_stride, head_dim]
  const float* exact = nullptr;      ///< [n_kv_heads, n_keys - exact_first, head_dim]
  int exact_first = 0;
  const float* head_scale = nullptr;  ///< [n_kv_heads], where the format has head_scale

  KvCoding coding(int kv_head) const { return {.fixed = head_scale ? head_scale[kv_head] : 0.0f}; }
};

/// n_tokens queries at positions [n_keys - n_tokens, n_keys), causal.
struct AttnPrefill {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_tokens = 0;
  int n_keys = 0;
  float scale = 0;
  View2<const float> q;  ///< [n_tokens, n_heads * head_dim]
  PrefillSide k, v;
  View2<float> out;  ///< [n_tokens, n_heads * head_dim]
};

/// Bytes and flops of one decode step's attention: each cached row read once per kv head.
Work attn_decode_work(const AttnDecode& a);
/// The same of a prompt: coded rows once, exact rows once as floats; flops of the pairs that causality leaves.
Work attn_prefill_work(const AttnPrefill& a);

struct AttnDecodeVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)(const AttnDecode& a);
  void (*run)(CpuContext& context, const AttnDecode& a);
  bool rounds = false;  ///< multiplies integers: queries, weights and levels as int_rounding() says
};
struct AttnPrefillVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)(const AttnPrefill& a);
  void (*run)(CpuContext& context, const AttnPrefill& a);
};
std::span<const AttnDecodeVariant> attn_decode_variants();
std::span<const AttnPrefillVariant> attn_prefill_variants();

/// How a kernel that `rounds` treats rows of a format. All errors are random in sign from value to value.
struct IntRounding {
  double query_steps = 0;   ///< of a head's largest |q|
  double weight_steps = 0;  ///< of the largest weight (probability times scale) of 64 keys; the bottom is 0
  double level_error = 0;   ///< root mean square, relative to the root mean square of the levels
};
/// Formats of 8 bits and less; none for other formats or head sizes: their rows meet floats in every kernel.
std::optional<IntRounding> int_rounding(const KvFormat& format, int head_dim);

void attn_decode(CpuContext& context, const AttnDecode& a);
void attn_prefill(CpuContext& context, const AttnPrefill& a);

}  // namespace ridge
