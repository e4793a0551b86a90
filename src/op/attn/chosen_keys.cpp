#include "op/attn/chosen_keys.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "op/attn/kernels.h"
#include "op/cache/append.h"
#include "op/trace.h"

namespace ridge {
namespace {

constexpr int kTask = 64;  // positions of a parallel task
constexpr int kMostDim = 1024;

/// In sums of a fixed order.
float dot(const float* a, const float* b, int n) {
  float sums[8] = {};
  for (int i = 0; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  for (int i = n / 8 * 8; i < n; ++i) sums[i % 8] += a[i] * b[i];
  return std::accumulate(sums, sums + 8, 0.0f);
}

int pages_of(int top_k) { return (top_k + kPagePositions - 1) / kPagePositions; }

}  // namespace

std::vector<int32_t> choose_keys(CpuContext& context, const KeyIndex& index, const KvSpan& span, int row, int n) {
  const int dim = index.keys.head_dim;
  RIDGE_CHECK(index.keys.n_kv_heads == 1 && dim <= kMostDim && index.top_k < n, "{} heads of {}, {} of {} positions",
              index.keys.n_kv_heads, dim, index.top_k, n);
  const int64_t read = kv_read_bytes(index.keys, n);
  const TracedOp traced(context, "index", {}, {read, 4 * n, 2 * int64_t(n) * index.n_heads * dim});
  std::vector<float> scores(size_t(n), 0.0f);
  context.pool.for_each((n + kTask - 1) / kTask, [&](int64_t task, int) {
    float key[kMostDim];
    for (int p = int(task) * kTask; p < std::min(n, int(task + 1) * kTask); ++p) {
      read_cached_row(index.keys, span, 0, p, n, key);
      float sum = 0;
      for (int h = 0; h < index.n_heads; ++h)
        sum += index.weights(row, h) * std::max(0.0f, dot(&index.q(row, int64_t(h) * dim), key, dim));
      scores[size_t(p)] = std::isnan(sum) ? -INFINITY : sum;
    }
  });
  std::vector<int32_t> chosen(size_t(n), 0);
  std::iota(chosen.begin(), chosen.end(), 0);
  const auto is_better = [&](int32_t a, int32_t b) {
    const float x = scores[size_t(a)], y = scores[size_t(b)];
    return x > y || (x == y && a < b);
  };
  std::ranges::nth_element(chosen, chosen.begin() + index.top_k, is_better);
  chosen.resize(size_t(index.top_k));
  std::ranges::sort(chosen);
  return chosen;
}

int64_t chosen_rows_floats(int top_k, int head_dim) {
  return int64_t(pages_of(top_k)) * kPagePositions * head_dim + kKvPadBytes / int64_t(sizeof(float));
}

KvLayerConfig chosen_rows_config(int head_dim) {
  const KvSideConfig f32 = default_kv_side(*find_kv_format("f32").or_throw(), KvSide::v);
  return {.k = f32, .v = f32, .n_kv_heads = 1, .head_dim = head_dim, .v_is_k = true};
}

void attention_over_chosen(CpuContext& context, const Attention& a, const KeyIndex& index, std::span<float> rows) {
  const int dim = a.k.head_dim, top_k = index.top_k;
  RIDGE_CHECK(a.k.n_kv_heads == 1 && a.v.side == KvSide::k && ssize(rows) >= chosen_rows_floats(top_k, dim),
              "{} kv heads, {} floats for {} rows of {}", a.k.n_kv_heads, rows.size(), top_k, dim);
  std::vector<KvSpan> all;  // of queries that attend to everything
  for (KvSpan span : a.spans) {
    span.n_rows = std::clamp(top_k - span.n_past, 0, span.n_rows);
    if (span.n_rows > 0) all.push_back(span);
  }
  if (!all.empty()) {
    Attention of_all = a;
    of_all.spans = all;
    attention(context, of_all);
  }
  std::vector<int32_t> pages(size_t(pages_of(top_k)), 0);
  std::iota(pages.begin(), pages.end(), 0);
  KvSpan query{.n_rows = 1, .n_past = top_k - 1, .pages = pages.data()};
  Attention of_chosen = a;
  of_chosen.k = KvLayout(chosen_rows_config(dim), KvSide::k, false).tiles;
  of_chosen.k.pages = reinterpret_cast<std::byte*>(rows.data());
  of_chosen.v = of_chosen.k;
  of_chosen.spans = {&query, 1};
  for (const KvSpan& span : a.spans)
    for (int i = std::clamp(top_k - span.n_past, 0, span.n_rows); i < span.n_rows; ++i) {
      const int n = span.n_past + i + 1;
      const std::vector<int32_t> chosen = choose_keys(context, index, span, span.first_row + i, n);
      context.pool.for_each((top_k + kTask - 1) / kTask, [&](int64_t task, int) {
        for (int64_t j = task * kTask; j < std::min<int64_t>(top_k, (task + 1) * kTask); ++j) {
          float* const to = rows.data() + j * dim;
          read_cached_row(a.k, span, 0, chosen[size_t(j)], n, to);
          a.k.rotation.backward(to);
          a.k.move_row(span.slot, 0, chosen[size_t(j)] / kTilePositions, 1, to);
        }
      });
      query.first_row = span.first_row + i;
      attention(context, of_chosen);
    }
}

}  // namespace ridge
