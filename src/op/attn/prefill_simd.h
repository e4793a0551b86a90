// Causal prefill attention over the cache, online softmax. A work item is (kv head, block of tokens): every tile of
// rows is decoded once for all the queries of the block. A query sees a row coded or exact by its own position alone
// (KvRetention), so the result equals token-by-token decode.
#pragma once

#include "op/attn/tile_simd.h"

namespace ridge {
namespace {

constexpr int kBlockTokens = 16;

/// Rows of positions [first, first + count) of a side as floats, coded or exact; sinks are always exact.
inline void load_prefill_tile(const PrefillSide& side, DecodeRows decode, int kv_head, int first, int count,
                              int head_dim, int n_keys, bool exact, float* rows) {
  const int64_t dim = head_dim;
  const auto copy = [&](const float* from, int n, int at) {
    __builtin_memcpy(rows + at * dim, from, sizeof(float) * size_t(n * dim));
  };
  if (exact) {
    const int from = std::max(first, side.sinks);
    if (from < first + count)
      copy(side.exact + (int64_t(kv_head) * (n_keys - side.exact_first) + from - side.exact_first) * dim,
           first + count - from, from - first);
  } else {
    decode(*side.format, side.coding(kv_head), side.rows + kv_head * side.head_stride + first * side.row_bytes,
           side.row_bytes, count, head_dim, rows);
  }
  if (first < side.sinks)
    copy(side.sink_rows + (int64_t(kv_head) * side.sink_stride + first) * dim, std::min(side.sinks - first, count), 0);
}

/// Calls body(token_begin, token_end, rows) for the tokens of [t0, t1) that see this tile exact, then for those that
/// see it coded: as positions grow, a tile goes from exact to coded once.
template <class Body>
inline void for_both_views(const AttnPrefill& a, const PrefillSide& side, DecodeRows decode, int kv_head, int first,
                           int t0, int t1, float* rows, int stride, const Body& body) {
  const int first_key = a.n_keys - a.n_tokens;
  const int last = std::min(first + kTile, first_key + t1);  // keys past the last query of the block are never seen
  int split = t0;
  while (split < t1 && side.retention.coded_end(first_key + split + 1) < std::min(last, first_key + split + 1)) ++split;
  for (const bool exact : {true, false}) {
    const int begin = exact ? t0 : split, end = exact ? split : t1;
    if (begin == end) continue;
    load_prefill_tile(side, decode, kv_head, first, last - first, a.head_dim, a.n_keys, exact, rows);
    widen_rows(rows, last - first, a.head_dim, stride);
    body(begin, end, rows);
  }
}

void run_attn_prefill(CpuContext& context, const AttnPrefill& a) {
  const int group = a.n_heads / a.n_kv_heads, stride = padded_dim(a.head_dim), n_rows = kBlockTokens * group;
  const int first_key = a.n_keys - a.n_tokens;
  const int n_blocks = (a.n_tokens + kBlockTokens - 1) / kBlockTokens;
  const DecodeRows decode_k = decode_rows(*a.k.format, a.head_dim), decode_v = decode_rows(*a.v.format, a.head_dim);

  // Per thread: tile rows; per query row: q, output, scores of a tile, top and sum.
  const int64_t row_floats = 2 * int64_t(stride) + kTile + 2;
  const int64_t thread_floats = int64_t(kTile) * stride + n_rows * row_floats;
  float* scratch = context.scratch[0].ensure<float>(context.pool.size() * thread_floats);
  for (int64_t i = 0; i < context.pool.size() * thread_floats; ++i) scratch[i] = 0;

  context.pool.for_each(int64_t(n_blocks) * a.n_kv_heads, [&](int64_t item, int thread) {
    // Late blocks see the most keys: hand them out first.
    const int block = n_blocks - 1 - int(item / a.n_kv_heads), kv_head = int(item % a.n_kv_heads);
    const int t0 = block * kBlockTokens, t1 = std::min(a.n_tokens, t0 + kBlockTokens);
    float* rows = scratch + thread * thread_floats;
    float* q = rows + int64_t(kTile) * stride;
    float* out = q + int64_t(n_rows) * stride;
    float* scores = out + int64_t(n_rows) * stride;
    float* tops = scores + int64_t(n_rows) * kTile;
    float* sums = tops + n_rows;
    for (int t = t0; t < t1; ++t)
      for (int j = 0; j < group; ++j) {
        const int r = (t - t0) * group + j;
        __builtin_memcpy(q + int64_t(r) * stride, &a.q(t, (int64_t(kv_head) * group + j) * a.head_dim),
                         sizeof(float) * size_t(a.head_dim));
        for (int d = 0; d < stride; ++d) out[int64_t(r) * stride + d] = 0;
        tops[r] = kMasked;
        sums[r] = 0;
      }
    for (int first = 0; first < first_key + t1; first += kTile) {
      // Tokens before this one do not reach the tile.
      const int from = std::max(t0, first - first_key);
      for_both_views(a, a.k, decode_k, kv_head, first, from, t1, rows, stride,
                     [&](int begin, int end, const float* keys) {
                       for (int r = (begin - t0) * group; r < (end - t0) * group; ++r)
                         tile_scores(q + int64_t(r) * stride, keys, stride, a.scale, scores + int64_t(r) * kTile);
                     });
      for (int r = (from - t0) * group; r < (t1 - t0) * group; ++r) {
        float* score = scores + int64_t(r) * kTile;
        const int n_visible = first_key + t0 + r / group + 1 - first;
        for (int i = n_visible; i < kTile; ++i) score[i] = kMasked;
        const float top = std::max(tops[r], largest(score, kTile));
        if (top > tops[r]) {
          const float fade = __builtin_expf(tops[r] - top);
          sums[r] *= fade;
          for (int d = 0; d < stride; d += Simd::kLanes) {
            float* o = out + int64_t(r) * stride + d;
            Simd::store(o, Simd::mul(Simd::load(o), Simd::set1(fade)));
          }
          tops[r] = top;
        }
        sums[r] += exponentials(score, kTile, top);
      }
      const int count = std::min(kTile, first_key + t1 - first);
      for_both_views(a, a.v, decode_v, kv_head, first, from, t1, rows, stride,
                     [&](int begin, int end, const float* values) {
                       const int r = (begin - t0) * group;
                       tile_values((end - begin) * group, scores + int64_t(r) * kTile, kTile, values, count, stride,
                                   out + int64_t(r) * stride);
                     });
    }
    for (int t = t0; t < t1; ++t)
      for (int j = 0; j < group; ++j) {
        const int r = (t - t0) * group + j;
        float* to = &a.out(t, (int64_t(kv_head) * group + j) * a.head_dim);
        for (int d = 0; d < a.head_dim; ++d) to[d] = out[int64_t(r) * stride + d] / sums[r];
      }
  });
}

}  // namespace
}  // namespace ridge
