// Parts of prompt attention's work, and rows of outputs on their way out of cache space. Device code but for the
// launch.
#pragma once

#include "gpu/launch.h"
#include "op/attn/attn_cuda.h"
#include "op/cache/rotate_warp.h"

namespace ridge::prefill {

/// The queries of a warp or a block: query i is head i % group of token i / group. Those past the last one repeat it
/// and are not stored.
struct Queries {
  int first, n, group;  // the first; all of the (span, kv head)

  __device__ int at(int i) const { return min(first + i, n - 1); }
  __device__ int token(int i) const { return at(i) / group; }
};

/// A row of outputs, channels lane + 32 j, out of cache space to where it belongs.
template <int kPer>
__device__ __forceinline__ void store_row(const DeviceAttention& a, const StepRow* span, int kv_head,
                                          const Queries& queries, int i, const RotationRow<kPer>& table, int lane,
                                          float (&x)[kPer]) {
  rotate_row(a.v.rotation, table, false, lane, x);
  if (a.v.centre)
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] += a.v.centre_of(span[0].slot, kv_head)[lane + 32 * j];
  const int at = queries.at(i), token = at / queries.group;
  const int head = kv_head * queries.group + at - token * queries.group;
  float* const out = a.out + (int64_t(span[token].row) * a.n_heads + head) * (32 * kPer) + lane;
#pragma unroll
  for (int j = 0; j < kPer; ++j) out[32 * j] = x[j];
}

/// Results of a part of the units: rows [place + query of the block, kv head].
struct PartRows {
  float* out;     // [rows, head_dim], not yet divided by the total
  float2* state;  // [rows] top and total
};

inline PartRows part_rows(const DeviceAttention& a, const PrefillList& list) {
  auto* const out = reinterpret_cast<float*>(list.scratch);
  return {out, reinterpret_cast<float2*>(out + int64_t(list.part_rows) * a.k.n_kv_heads * a.k.head_dim)};
}

/// Both sides hold kind f16 and nothing else.
inline bool comes_as_f16(const DeviceAttention& a) {
  const auto plain = [](const KvTiles& t) { return t.kind == TileKind::f16 && t.ring_tiles == 0 && t.n_sinks == 0; };
  return plain(a.k) && plain(a.v) && a.k.turn.n_pairs == 0;
}

/// The parts of each query together.
void join_parts(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list, const PartRows& parts);

}  // namespace ridge::prefill
