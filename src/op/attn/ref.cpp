// The oracle of attention: plain softmax in double, one query and one row at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "op/attn/kernels.h"
#include "op/cache/append.h"

namespace ridge {

void attention_ref(CpuContext& context, const Attention& a) {
  struct Query {
    const KvSpan* span;
    int i;
  };
  std::vector<Query> queries;
  for (const KvSpan& span : a.spans)
    for (int i = 0; i < span.n_rows; ++i) queries.push_back({&span, i});
  const int dim = a.k.head_dim;
  context.pool.for_each(int64_t(queries.size()) * a.n_heads, [&](int64_t item, int) {
    const auto [span, i] = queries[size_t(item / a.n_heads)];
    const int head = int(item % a.n_heads), kv_head = head / a.group(), n = span->n_past + i + 1,
              first = a.first_key(n);
    const float* const from = &a.q(span->first_row + i, int64_t(head) * dim);
    std::vector<float> q(from, from + dim), row(q), centre(q);
    double of_centre = 0;  // what the centre of a tile takes from a score
    a.k.rotation.forward(q.data());
    std::vector<double> weight(size_t(n - first), 0.0), sum(size_t(dim), 0.0);
    const bool has_sink = a.sink_logits != nullptr;
    double top = has_sink ? a.sink_logits[head] : -INFINITY;
    for (int p = first; p < n; ++p) {
      if (a.k.centre && (p == first || p % kTilePositions == 0)) {
        std::ranges::fill(centre, 0.0f);
        a.k.move_row(span->slot, kv_head, p / kTilePositions, 1, centre.data());
        of_centre = 0;
        for (int d = 0; d < dim; ++d)
          if (a.k.turn.turns(d)) of_centre += double(from[d]) * centre[size_t(d)];
      }
      read_cached_row(a.k, *span, kv_head, p, n, row.data());
      double dot = of_centre;
      for (size_t d = 0; d < q.size(); ++d) dot += double(q[d]) * row[d];
      weight[size_t(p - first)] = dot * a.scale;
      top = std::max(top, weight[size_t(p - first)]);
    }
    double total = has_sink ? std::exp(a.sink_logits[head] - top) : 0;
    for (double& w : weight) total += w = std::exp(w - top);
    for (int p = first; p < n; ++p) {
      read_cached_row(a.v, *span, kv_head, p, n, row.data());
      for (size_t d = 0; d < q.size(); ++d) sum[d] += weight[size_t(p - first)] * row[d];
    }
    float* const out = &a.out(span->first_row + i, int64_t(head) * dim);
    for (size_t d = 0; d < q.size(); ++d) out[d] = float(sum[d] / total);
    a.v.rotation.backward(out);
    a.v.add_still_centre(span->slot, kv_head, out);
  });
}

}  // namespace ridge
