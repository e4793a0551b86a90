// Split-KV decode attention. A work item is (kv head, range of keys): it reads each cached row once for all the query
// heads that share it, keeps its own softmax state, and the states are merged per head at the end.
//
// Rows become floats (decode_rows) unless the ISA's file has integer kernels for their format: `Integers` below.
#pragma once

#include "op/attn/ahead.h"
#include "op/attn/tile_simd.h"

namespace ridge {
namespace {

/// How far ahead of a tile memory is asked for: one tile of a small format takes less time than memory needs to answer.
constexpr int kTilesAhead = 2;

/// Calls body(rows, position, count) for the tiles of at most `tile` rows of [begin, end) inside a segment, with the
/// rows of a later one to ask for.
template <class Body>
inline void for_each_tile(const KvSegment& segment, int kv_head, int begin, int end, int tile, const Body& body) {
  const int last = std::min(end, segment.first + segment.count);
  for (int position = std::max(begin, segment.first); position < last; position += tile) {
    const std::byte* rows =
        segment.rows + kv_head * segment.head_stride + (position - segment.first) * segment.row_bytes;
    const int count = std::min(tile, last - position);
    const int skip = std::min(kTilesAhead * tile, last - position);
    Ahead ahead(rows + skip * segment.row_bytes, std::min(tile, last - position - skip) * segment.row_bytes);
    body(rows, position, count, ahead);
  }
}

/// What has no integer kernels. An object belongs to one item of a thread.
struct NoIntegers {
  static constexpr int64_t thread_bytes(int) { return 0; }
  NoIntegers(std::byte*, const AttnDecode&, int) {}
  bool scores(const KvSegment&, int, int, const float*, float*, int64_t) { return false; }
  bool values(const KvSegment&, int, int, const float*, int64_t) { return false; }
  void add_to(float*, int64_t) const {}
};

template <class Integers>
void run_attn_decode(CpuContext& context, const AttnDecode& a) {
  const int group = a.n_heads / a.n_kv_heads, stride = padded_dim(a.head_dim), n_threads = context.pool.size();
  // Enough items to balance the threads, few enough that merging stays invisible.
  const int chosen = int(std::clamp<int64_t>(int64_t(a.n_keys) * a.n_kv_heads / (4 * n_threads), 128, 2048));
  const int wanted = std::min(a.n_keys, a.split > 0 ? a.split : chosen);
  const int split = (wanted + kTile - 1) / kTile * kTile;
  const int n_splits = (a.n_keys + split - 1) / split;
  const int score_stride = split + 2 * kTile;

  // Per thread: a tile of rows, padded queries, scores. Per item and head: output, top score, sum.
  const int64_t thread_floats = int64_t(kTile) * stride + int64_t(group) * stride + int64_t(group) * score_stride;
  float* thread_scratch = context.scratch[0].ensure<float>(n_threads * thread_floats);
  const int64_t part_floats = stride + Simd::kLanes;
  float* parts = context.scratch[1].ensure<float>(int64_t(a.n_heads) * n_splits * part_floats);
  const int64_t int_bytes = Integers::thread_bytes(group);
  std::byte* int_scratch = context.scratch[2].ensure<std::byte>(n_threads * int_bytes);

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
    Integers integers(int_scratch + thread * int_bytes, a, kv_head);
    // 1. Scores of all keys of the range for every head of the group.
    for (int s = 0; s < a.k.n_segments; ++s) {
      const KvSegment& segment = a.k.segments[size_t(s)];
      if (integers.scores(segment, begin, end, q, scores, score_stride)) continue;
      const DecodeRows decode = decode_rows(*segment.format, a.head_dim);
      for_each_tile(
          segment, kv_head, begin, end, kTile, [&](const std::byte* coded, int position, int count, Ahead& ahead) {
            decode(*segment.format, segment.coding(kv_head), coded, segment.row_bytes, count, a.head_dim, rows);
            widen_rows(rows, count, a.head_dim, stride);
            for (int j = 0; j < group; ++j) {
              ahead.ask(j + 1, group);
              // Writes whole tiles: what lies behind `count` is overwritten by the next one, or is padding.
              tile_scores(q + j * stride, rows, stride, a.scale, scores + int64_t(j) * score_stride + position - begin);
            }
          });
    }
    // 2. Softmax over the range.
    const int n = end - begin, n_padded = (n + Simd::kLanes - 1) / Simd::kLanes * Simd::kLanes;
    for (int j = 0; j < group; ++j) {
      float* score = scores + int64_t(j) * score_stride;
      for (int i = n; i < n_padded; ++i) score[i] = kMasked;
      float* state = parts + ((int64_t(kv_head) * group + j) * n_splits + part) * part_floats;
      state[stride] = largest(score, n_padded);
      state[stride + 1] = exponentials(score, n_padded, state[stride]);
    }
    // 3. Weighted values. The query rows are free again: they hold the sums, side by side.
    for (int64_t i = 0; i < int64_t(group) * stride; ++i) q[i] = 0;
    for (int s = 0; s < a.v.n_segments; ++s) {
      const KvSegment& segment = a.v.segments[size_t(s)];
      if (integers.values(segment, begin, end, scores, score_stride)) continue;
      const DecodeRows decode = decode_rows(*segment.format, a.head_dim);
      for_each_tile(
          segment, kv_head, begin, end, kTile, [&](const std::byte* coded, int position, int count, Ahead& ahead) {
            decode(*segment.format, segment.coding(kv_head), coded, segment.row_bytes, count, a.head_dim, rows);
            widen_rows(rows, count, a.head_dim, stride);
            for (int j = 0, heads; j < group; j += heads) {
              heads = rows_at_once(group - j);
              ahead.ask(j + heads, group);
              tile_values(heads, scores + int64_t(j) * score_stride + position - begin, score_stride, rows, count,
                          stride, q + int64_t(j) * stride);
            }
          });
    }
    integers.add_to(q, stride);
    for (int j = 0; j < group; ++j)
      __builtin_memcpy(parts + ((int64_t(kv_head) * group + j) * n_splits + part) * part_floats, q + j * stride,
                       sizeof(float) * size_t(stride));
  });

  // Merge: out = sum_i w_i o_i / sum_i w_i l_i with w_i = exp(top_i - top).
  for (int head = 0; head < a.n_heads; ++head) {
    float* states = parts + int64_t(head) * n_splits * part_floats;
    float top = states[stride], total = 0;
    for (int s = 1; s < n_splits; ++s) top = std::max(top, states[s * part_floats + stride]);
    for (int s = 0; s < n_splits; ++s) {
      const float* state = states + s * part_floats;
      const float weight = __builtin_expf(state[stride] - top);
      total += weight * state[stride + 1];
      for (int d = 0; d < stride; d += Simd::kLanes) {
        const Simd::F before = s == 0 ? Simd::zero() : Simd::load(states + d);
        Simd::store(states + d, Simd::fma(Simd::set1(weight), Simd::load(state + d), before));
      }
    }
    float* out = a.out + int64_t(head) * a.head_dim;
    for (int d = 0; d < a.head_dim; ++d) out[d] = states[d] / total;
  }
}

}  // namespace
}  // namespace ridge
