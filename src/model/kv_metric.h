// Metric of errors in cached rows, by their cost to the model: one quadratic form per layer, side and kv head, from the
// weights alone.
//
// An error e in a key changes the score of a query q by <q, e>, so its mean square is e^T E[q q^T] e: the metric of K
// is the second moment of the queries. With inputs of unit mean square in every channel (RMSNorm makes them so) a query
// is W_q diag(g) x, its second moment W_q diag(g^2) W_q^T (+ b b^T), and RoPE turns it by the query's position: the
// metric is the mean over positions of the trained context, summed over the query heads that share the kv head. An
// error e in a value leaves through W_o: its metric is sum over the same heads of W_o,h^T W_o,h.
//
// Encoders that round with a metric (KvRounding::weighted) choose codes so that the errors of a row cancel where they
// would be seen. A latent row is read as K and as V: its metric is the sum of both, each of mean diagonal 1. Nothing
// changes for the reader of the cache: the metric costs nothing per cached token.
#pragma once

#include <algorithm>
#include <vector>

#include "model/plan.h"
#include "model/weights.h"
#include "op/cache/tile_order.h"

namespace ridge {

struct KvMetric {
  // Forms of the layers that attend here, one after the other, [n_kv_heads, head_dim, head_dim] each: symmetric, mean
  // diagonal 1, not rotated; v empty with latent rows.
  std::vector<float> k, v;
  std::vector<size_t>
      first;  // [n_layers + 1]: where a layer's forms begin; empty ones where other ranks have the layer

  /// The forms of one layer, [n_kv_heads, head_dim, head_dim]; none where it does not attend, and of a V without rows.
  std::span<const float> layer(KvSide side, int i) const {
    if (side == KvSide::v && v.empty()) return {};
    return std::span(side == KvSide::k ? k : v).subspan(first[size_t(i)], first[size_t(i) + 1] - first[size_t(i)]);
  }
};

/// Takes about n_layers * n_heads * head_dim^2 * 4096 flops: at most kMetricSamples of the d_model channels are used.
KvMetric make_kv_metric(CpuContext& context, const Config& config, const Weights& weights, const ModelPlan& plan);

}  // namespace ridge
