// Attention over a cache against exact attention: real queries, keys and values of a model on a text go through the
// cache's own store, and the attention output is compared with the exact one. Both are computed in double, by plain
// softmax.
//
// The absolute error alone would flatter a cache whose output shrinks to nothing, so cosine and norm ratio stand beside
// it. How large the scores are and how far cached rows are from exact ones stand there too: together they say why a
// cache costs what it costs. Layers may have heads, windows and scales of their own. They may read another layer's K
// and V, or keep latent rows: K and V in one, whose output stays in the latent space. Every part is asked twice: as the
// model is, and with an outlier channel planted in K (a channel times 20, the query's divided by 20: the exact scores
// stay what they were, only coding gets harder).
#pragma once

#include "lab/quality/quality.h"
#include "model/kv_metric.h"
#include "op/cache/host_memory.h"

namespace ridge::lab {

/// Rows that one layer's attention starts from, over one window: K and V of all positions, Q of the last ones.
struct LayerRows {
  int n_keys = 0;
  int n_queries = 0;        ///< the last n_queries positions
  std::vector<float> q;     // [n_queries, n_heads * head_dim]
  std::vector<float> k, v;  // [n_keys, n_kv_heads * head_dim]; of latent rows both are the row
};

struct AttentionShape {
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;
  float scale = 0;    ///< on the scores; 0: 1 / sqrt(head_dim)
  int window = 0;     ///< > 0: a query sees the newest so many positions only
  int value_dim = 0;  ///< > 0: latent rows, of which the first so many values are V; V has no cached rows
  int n_out() const { return value_dim > 0 ? value_dim : head_dim; }  ///< values of a head's output
};
/// Shape of a layer's attention.
AttentionShape attention_shape(const LayerPlan& layer);

/// Queries, keys and values of every layer when the model runs over `tokens` with an f16 cache. A layer that reads
/// another layer's K and V has them too.
std::vector<LayerRows> capture_attention(const Model& model, std::span<const int32_t> tokens, int n_queries);

/// Sums over queries and heads, from which the figures follow; add up over layers and windows.
struct AttentionError {
  double error2 = 0, exact2 = 0, actual2 = 0, dot = 0;  ///< of the outputs
  double logit_error2 = 0;  ///< of the scores, less their mean per query: softmax ignores it
  double logit2 = 0;        ///< of the exact scores, less their mean per query
  int64_t n_logits = 0;
  double key_error2 = 0, key2 = 0, value_error2 = 0, value2 = 0;  ///< of the rows themselves, once for each kv head
  double query = 0, key = 0, top_weight = 0;  ///< sums over n_queries of |scale q|, the mean |k| and the largest weight
  int64_t n_queries = 0;

  AttentionError& operator+=(const AttentionError& other);
  double relative_l2() const;  ///< |actual - exact| / |exact|
  double cosine() const;
  double norm_ratio() const;  ///< |actual| / |exact|
  double rms_logit_error() const;
  double rms_logit() const;          ///< how far a query's exact scores spread
  double key_relative_l2() const;    ///< |cached k - k| / |k|
  double value_relative_l2() const;  ///< |cached v - v| / |v|
  double mean_query() const;         ///< length of a query times the scale of scores
  double mean_key() const;           ///< length of a key
  double mean_top_weight() const;    ///< the largest weight of a query's softmax
};

/// The rows through layer `layer` of a memory, which is to keep them, with room for them in slot 0 and all pages,
/// against the exact answer.
AttentionError attention_error(CpuContext& context, const AttentionShape& shape, int layer, const LayerRows& rows,
                               HostKvMemory& memory);

inline constexpr float kOutlier = 20;
/// Multiplies one channel of every key by kOutlier and divides it in every query.
void plant_outlier(const AttentionShape& shape, LayerRows& rows);
/// The metric of a layer's K for such queries.
void plant_outlier(const AttentionShape& shape, std::span<float> k_forms);

struct AttentionOptions {
  int n_ctx = 512;  ///< tokens per window
  int n_windows = 2;
  int n_queries = 32;  ///< of each window, the last ones
  std::string device = "cpu";
  std::vector<KvChoice> candidates;
};

struct AttentionResult {
  AttentionOptions options;
  KvChoice kv;
  std::vector<AttentionError> layers, layers_outlier;
};
/// Every format without exact rows, and rotor-3 by rotation and centring.
std::vector<KvChoice> default_attention_list(int head_dim);

using AttentionHooks = StudyHooks<AttentionResult>;  // progress in (window, candidate) pairs
/// All candidates over the same rows. Stopped early, the result has the windows that were finished, and none is handed
/// over.
std::vector<AttentionResult> run_attention(const Model& model, const Corpus& corpus, const AttentionOptions& options,
                                           const AttentionHooks& hooks);

Columns<AttentionError> attention_error_columns();
Columns<AttentionResult> columns_of(const AttentionResult& result);
/// Markdown, one line per row: all layers together, as the model is and with the outlier.
std::string attention_table(std::span<const Row> rows);

}  // namespace ridge::lab
