// Causal attention on the device over float rows of a cache, prefill and decode alike. The rules of which rows a query
// sees are attn.h's; q and out are in cache space as there.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/attn/retention.h"

namespace ridge {

/// One side (K or V). A query that sees n positions reads `coded` below retention.coded_end(n) and `exact` from there.
struct DeviceKvSide {
  const float* coded = nullptr;  ///< [n_seq, n_kv_heads, n_coded, head_dim]: positions [0, n_coded), sinks exact
  int n_coded = 0;
  const float* exact = nullptr;  ///< [n_seq, n_kv_heads, n_keys - exact_first, head_dim]
  int exact_first = 0;
  KvRetention retention;
};

/// n_tokens queries a sequence, at positions [n_keys - n_tokens, n_keys).
struct DeviceAttn {
  int n_seq = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;  ///< a multiple of 4, at most 256
  int n_tokens = 0;
  int n_keys = 0;
  float scale = 0;
  const float* q = nullptr;  ///< [n_seq, n_tokens, n_heads, head_dim]
  DeviceKvSide k, v;
  float* out = nullptr;  ///< as q
};

void device_attn(gpu::StreamHandle stream, const DeviceAttn& a);

}  // namespace ridge
