// Causal attention on the device over rows of a cache, prefill and decode alike. The rules of which rows a query
// sees are attn.h's; q and out are in cache space as there.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "op/attn/retention.h"

namespace ridge {

/// One side (K or V). A query that sees n positions reads `coded` below retention.coded_end(n) and `exact` from there.
/// Row is float, or uint16_t for f16.
template <class Row>
struct DeviceKvRows {
  const Row* coded = nullptr;  ///< [n_seq, n_kv_heads, n_coded, head_dim]: positions [0, n_coded), sinks exact
  int n_coded = 0;
  const Row* exact = nullptr;  ///< [n_seq, n_kv_heads, n_keys - exact_first, head_dim]
  int exact_first = 0;
  KvRetention retention;
  bool rounds = false;  ///< rows come from a format no finer than f16: a kernel may round them to f16
};
using DeviceKvSide = DeviceKvRows<float>;

/// n_tokens queries a sequence, at positions [n_keys - n_tokens, n_keys).
template <class Row>
struct DeviceAttnOver {
  int n_seq = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;  ///< a multiple of 4, at most 256
  int n_tokens = 0;
  int n_keys = 0;
  float scale = 0;
  const float* q = nullptr;  ///< [n_seq, n_tokens, n_heads, head_dim]
  DeviceKvRows<Row> k, v;
  float* out = nullptr;  ///< as q
};
using DeviceAttn = DeviceAttnOver<float>;

/// Several queries a sequence, both sides marked `rounds`, and prefill_attn() has a kernel: tensor cores, queries, rows
/// and weights rounded to halves (prefill_cuda.h has the bounds). Otherwise products and sums are floats.
void device_attn(gpu::StreamHandle stream, const DeviceAttn& a);

}  // namespace ridge
