// Split-KV decode attention. A work item is (kv head, range of keys): it reads each cached row once for all the query
// heads that share it, keeps its own softmax state, and the states are merged per head at the end.
#pragma once

#include "op/attn/tile_simd.h"

namespace ridge {
namespace {

/// Walks positions [begin, end) of a side in tiles that lie inside one segment and calls body(position, count, rows).
template <class Body>
inline void for_each_tile(const KvSide& side, int kv_head, int begin, int end, int head_dim, float* buffer,
                          const Body& body) {
  const int stride = padded_dim(head_dim);
  for (int s = 0; s < side.n_segments; ++s) {
    const KvSegment& segment = side.segments[size_t(s)];
    const int last = std::min(end, segment.first + segment.count);
    const DecodeRows decode = decode_rows(*segment.format, head_dim);
    for (int position = std::max(begin, segment.first); position < last; position += kTile) {
      const int count = std::min(kTile, last - position);
      const std::byte* rows =
          segment.rows + kv_head * segment.head_stride + (position - segment.first) * segment.row_bytes;
      // The next tile is on its way while this one is used.
      for (int64_t line = 0; line < kTile * segment.row_bytes; line += 64)
        __builtin_prefetch(rows + kTile * segment.row_bytes + line);
      decode(*segment.format, segment.coding(kv_head), rows, segment.row_bytes, count, head_dim, buffer);
      widen_rows(buffer, count, head_dim, stride);
      body(position, count, buffer);
    }
  }
}

void run_attn_decode(CpuContext& context, const AttnDecode& a) {
  const int group = a.n_heads / a.n_kv_heads, stride = padded_dim(a.head_dim), n_threads = context.pool.size();
  // Enough items to balance the threads, few enough that merging stays invisible.
  const int chosen = int(std::clamp<int64_t>(int64_t(a.n_keys) * a.n_kv_heads / (4 * n_threads), 128, 2048));
  const int wanted = std::min(a.n_keys, a.split > 0 ? a.split : chosen);
  const int split = (wanted + kTile - 1) / kTile * kTile;
  const int n_splits = (a.n_keys + split - 1) / split;
  const int score_stride = split + 2 * kTile;

  // Per thread: a tile of rows, padded queries, scores. Per item and head: top score, sum, output.
  const int64_t thread_floats = int64_t(kTile) * stride + int64_t(group) * stride + int64_t(group) * score_stride;
  float* thread_scratch = context.scratch[0].ensure<float>(n_threads * thread_floats);
  const int64_t part_floats = stride + 2;
  float* parts = context.scratch[1].ensure<float>(int64_t(a.n_heads) * n_splits * part_floats);

  context.pool.for_each(int64_t(a.n_kv_heads) * n_splits, [&](int64_t item, int thread) {
    const int kv_head = int(item / n_splits), part = int(item % n_splits);
    const int begin = part * split, end = std::min(a.n_keys, begin + split);
    float* rows = thread_scratch + thread * thread_floats;
    float* q = rows + int64_t(kTile) * stride;
    float* scores = q + int64_t(group) * stride;
    for (int j = 0; j < group; ++j) {
      __builtin_memcpy(q + j * stride, a.q + (int64_t(kv_head) * group + j) * a.head_dim,
                       sizeof(float) * size_t(a.head_dim));
      for (int d = a.head_dim; d < stride; ++d) q[j * stride + d] = 0;
    }
    // 1. Scores of all keys of the range for every head of the group.
    for_each_tile(a.k, kv_head, begin, end, a.head_dim, rows, [&](int position, int count, const float* keys) {
      for (int j = 0; j < group; ++j) {
        float tile[kTile];
        tile_scores(q + j * stride, keys, stride, a.scale, tile);
        __builtin_memcpy(scores + int64_t(j) * score_stride + position - begin, tile, sizeof(float) * size_t(count));
      }
    });
    // 2. Softmax over the range.
    const int n = end - begin, n_padded = (n + Simd::kLanes - 1) / Simd::kLanes * Simd::kLanes;
    for (int j = 0; j < group; ++j) {
      float* score = scores + int64_t(j) * score_stride;
      for (int i = n; i < n_padded; ++i) score[i] = kMasked;
      float* state = parts + ((int64_t(kv_head) * group + j) * n_splits + part) * part_floats;
      state[0] = largest(score, n_padded);
      state[1] = exponentials(score, n_padded, state[0]);
    }
    // 3. Weighted values. The query rows are free again: they hold the sums, side by side.
    for (int64_t i = 0; i < int64_t(group) * stride; ++i) q[i] = 0;
    for_each_tile(a.v, kv_head, begin, end, a.head_dim, rows, [&](int position, int count, const float* values) {
      tile_values(group, scores + position - begin, score_stride, values, count, stride, q);
    });
    for (int j = 0; j < group; ++j)
      __builtin_memcpy(parts + ((int64_t(kv_head) * group + j) * n_splits + part) * part_floats + 2, q + j * stride,
                       sizeof(float) * size_t(stride));
  });

  // Merge: out = sum_i w_i o_i / sum_i w_i l_i with w_i = exp(top_i - top).
  for (int head = 0; head < a.n_heads; ++head) {
    const float* states = parts + int64_t(head) * n_splits * part_floats;
    float top = states[0], total = 0;
    for (int s = 1; s < n_splits; ++s) top = std::max(top, states[s * part_floats]);
    float* out = a.out + int64_t(head) * a.head_dim;
    for (int d = 0; d < a.head_dim; ++d) out[d] = 0;
    for (int s = 0; s < n_splits; ++s) {
      const float* state = states + s * part_floats;
      const float weight = __builtin_expf(state[0] - top);
      total += weight * state[1];
      for (int d = 0; d < a.head_dim; ++d) out[d] += weight * state[2 + d];
    }
    const float inverse = 1.0f / total;
    for (int d = 0; d < a.head_dim; ++d) out[d] *= inverse;
  }
}

}  // namespace
}  // namespace ridge
