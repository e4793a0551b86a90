// One forward pass: tokens in, logits out, the cache grown.
#pragma once

#include <functional>

#include "model/kv_cache.h"
#include "model/weights.h"

namespace ridge {

/// Activations of one step of up to n_ubatch tokens. Allocated once; every op writes into these.
struct ForwardState {
  ForwardState(const Config& config, int n_ubatch);

  int n_ubatch;
  AlignedBuffer x, h;      // [n_ubatch, d_model]  residual stream; normed input or block output
  AlignedBuffer q, attn;   // [n_ubatch, n_heads * head_dim]
  AlignedBuffer k, v;      // [n_ubatch, n_kv_heads * head_dim]
  AlignedBuffer gate, up;  // [n_ubatch, d_ff]
  AlignedBuffer logits;    // [n_ubatch or 1, vocab_size], grown on demand

  /// Sees the rows that a layer's attention starts from, after RoPE and before the cache: q [n, n_heads * head_dim], k
  /// and v [n, n_kv_heads * head_dim]. Empty: not called.
  std::function<void(int layer, View2<const float> q, View2<const float> k, View2<const float> v)> on_attention;
};

/// Which positions of a batch get logits.
enum class LogitRows : uint8_t { none, last, all };

/// Runs `tokens` (at most n_ubatch, ids valid) at positions cache.n_past onwards. Returns the logits [n, vocab_size] of
/// the rows asked for, inside `state`; cache.n_past advances.
View2<float> forward(CpuContext& context, const Config& config, const Weights& weights, const Rope& rope,
                     std::span<const int32_t> tokens, LogitRows rows, KvCache& cache, ForwardState& state);

/// Bytes and flops of one decode step at n_keys cached positions (the new one included), from the ops' declared work.
Work decode_work(const Config& config, const Weights& weights, const KvCache& cache, int n_keys);

}  // namespace ridge
