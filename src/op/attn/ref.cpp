// The oracles of attention: plain softmax in double, one row decoded at a time.
#include <cmath>
#include <vector>

#include "op/attn/kernels.h"

namespace ridge {
namespace {

/// softmax(q . k) . v for one query over n keys; row(side, position, out) gives a cached row as floats.
template <class KeyRow, class ValueRow>
void attend(int n_keys, int head_dim, double scale, const float* q, KeyRow key, ValueRow value, float* out) {
  std::vector<float> row(size_t(head_dim), 0.0f);
  std::vector<double> weight(size_t(n_keys), 0.0), sum(size_t(head_dim), 0.0);
  double top = -INFINITY, total = 0;
  for (int t = 0; t < n_keys; ++t) {
    key(t, row.data());
    double dot = 0;
    for (int d = 0; d < head_dim; ++d) dot += double(q[d]) * row[size_t(d)];
    weight[size_t(t)] = dot * scale;
    top = std::max(top, weight[size_t(t)]);
  }
  for (double& w : weight) total += w = std::exp(w - top);
  for (int t = 0; t < n_keys; ++t) {
    value(t, row.data());
    for (int d = 0; d < head_dim; ++d) sum[size_t(d)] += weight[size_t(t)] * row[size_t(d)];
  }
  for (int d = 0; d < head_dim; ++d) out[d] = float(sum[size_t(d)] / total);
}

}  // namespace

void attn_decode_ref(CpuContext& context, const AttnDecode& a) {
  const auto row_of = [&](const KvSide& side, int kv_head) {
    return [&side, kv_head, &a](int position, float* out) {
      int s = 0;
      while (position >= side.segments[size_t(s)].first + side.segments[size_t(s)].count) ++s;
      const KvSegment& segment = side.segments[size_t(s)];
      segment.format->decode(
          segment.rows + kv_head * segment.head_stride + (position - segment.first) * segment.row_bytes, a.head_dim,
          segment.coding(kv_head), out);
    };
  };
  context.pool.for_each(a.n_heads, [&](int64_t head, int) {
    const int kv_head = int(head) / (a.n_heads / a.n_kv_heads);
    attend(a.n_keys, a.head_dim, a.scale, a.q + head * a.head_dim, row_of(a.k, kv_head), row_of(a.v, kv_head),
           a.out + head * a.head_dim);
  });
}

void attn_prefill_ref(CpuContext& context, const AttnPrefill& a) {
  const auto row_of = [&](const PrefillSide& side, int kv_head, int n_visible) {
    const int coded_end = side.retention.coded_end(n_visible);
    return [&side, kv_head, coded_end, &a](int position, float* out) {
      const int64_t dim = a.head_dim;
      const float* exact = nullptr;
      if (position < side.sinks) exact = side.sink_rows + (int64_t(kv_head) * side.sink_stride + position) * dim;
      else if (position >= coded_end)
        exact = side.exact + (int64_t(kv_head) * (a.n_keys - side.exact_first) + position - side.exact_first) * dim;
      if (exact) std::copy(exact, exact + dim, out);
      else
        side.format->decode(side.rows + kv_head * side.head_stride + position * side.row_bytes, a.head_dim,
                            side.coding(kv_head), out);
    };
  };
  context.pool.for_each(int64_t(a.n_tokens) * a.n_heads, [&](int64_t item, int) {
    const int token = int(item / a.n_heads), head = int(item % a.n_heads);
    const int kv_head = head / (a.n_heads / a.n_kv_heads), n_visible = a.n_keys - a.n_tokens + token + 1;
    attend(n_visible, a.head_dim, a.scale, &a.q(token, int64_t(head) * a.head_dim), row_of(a.k, kv_head, n_visible),
           row_of(a.v, kv_head, n_visible), &a.out(token, int64_t(head) * a.head_dim));
  });
}

}  // namespace ridge
