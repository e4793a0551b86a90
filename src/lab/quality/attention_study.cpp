#include "lab/quality/attention_study.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/engine.h"
#include "format/list.h"
#include "lab/quality/quality_report.h"
#include "op/cache/append.h"

namespace ridge::lab {
namespace {

/// A side's rows of one kv head as the model has them, [n_keys, head_dim].
std::vector<float> read_head(const KvTiles& tiles, const KvSpan& span, int kv_head) {
  std::vector<float> rows(size_t(span.n_keys()) * size_t(tiles.head_dim));
  for (int i = 0; i < span.n_keys(); ++i) {
    float* const row = rows.data() + int64_t(i) * tiles.head_dim;
    read_cached_row(tiles, span, kv_head, i, span.n_keys(), row);
    tiles.rotation.backward(row);
    tiles.move_row(span.slot, kv_head, i / kTilePositions, 1, row);
  }
  return rows;
}

/// Rows of one kv head, [n_keys, head_dim], out of rows that were never in a cache.
std::vector<float> take_head(const std::vector<float>& rows, int kv_head, int n_keys, const AttentionShape& shape) {
  std::vector<float> head;
  for (int i = 0; i < n_keys; ++i) {
    const float* row = rows.data() + (int64_t(i) * shape.n_kv_heads + kv_head) * shape.head_dim;
    head.insert(head.end(), row, row + shape.head_dim);
  }
  return head;
}

/// Values of a head: the first n_out of each row, [n_keys, n_out].
std::vector<float> values_of(const std::vector<float>& rows, const AttentionShape& shape) {
  std::vector<float> values;
  for (auto row = rows.begin(); row != rows.end(); row += shape.head_dim)
    values.insert(values.end(), row, row + shape.n_out());
  return values;
}

/// Scores of one query over the keys [first, n), the largest of their weights and the output they give.
struct Attended {
  std::vector<double> logits;
  std::vector<double> out;
  double top_weight = 0;
};
Attended attend(const float* q, const std::vector<float>& keys, const std::vector<float>& values, int first, int n,
                const AttentionShape& shape) {
  const int head_dim = shape.head_dim, n_out = shape.n_out();
  Attended a{.logits = std::vector<double>(size_t(n - first)), .out = std::vector<double>(size_t(n_out))};
  const double scale = shape.scale > 0 ? double(shape.scale) : 1 / std::sqrt(double(head_dim));
  for (int i = first; i < n; ++i) {
    double dot = 0;
    for (int d = 0; d < head_dim; ++d) dot += double(q[d]) * keys[size_t(i) * size_t(head_dim) + size_t(d)];
    a.logits[size_t(i - first)] = scale * dot;
  }
  const double top = *std::max_element(a.logits.begin(), a.logits.end());
  double total = 0;
  for (int i = first; i < n; ++i) {
    const double weight = std::exp(a.logits[size_t(i - first)] - top);
    total += weight;
    for (int d = 0; d < n_out; ++d) a.out[size_t(d)] += weight * values[size_t(i) * size_t(n_out) + size_t(d)];
  }
  for (double& x : a.out) x /= total;
  a.top_weight = 1 / total;
  return a;
}

/// Sums of squares of (actual - exact) and of exact.
void add_squares(const std::vector<float>& actual, const std::vector<float>& exact, double& error2, double& exact2) {
  for (size_t i = 0; i < exact.size(); ++i) {
    const double e = exact[i], difference = actual[i] - e;
    error2 += difference * difference;
    exact2 += e * e;
  }
}

double length(const float* row, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double(row[i]) * row[i];
  return std::sqrt(sum);
}

View2<float> matrix(std::vector<float>& values, int rows) {
  return {values.data(), rows, int64_t(values.size()) / rows};
}

/// Channel for the planted outlier; with latent rows one that is not part of the values.
size_t outlier_channel(const AttentionShape& shape) {
  const int first = shape.value_dim;
  return size_t(first + (shape.head_dim - first) / 3);
}

AttentionError compare_logits(const std::vector<double>& actual, const std::vector<double>& exact) {
  double sum = 0, sum2 = 0, of_exact = 0, of_exact2 = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = actual[i] - exact[i];
    sum += error;
    sum2 += error * error;
    of_exact += exact[i];
    of_exact2 += exact[i] * exact[i];
  }
  const auto n = double(exact.size());
  return {.logit_error2 = std::max(0.0, sum2 - sum * sum / n),
          .logit2 = std::max(0.0, of_exact2 - of_exact * of_exact / n),
          .n_logits = int64_t(exact.size())};
}

/// Errors of all layers together, and those of each.
Row errors_of(const std::vector<AttentionError>& layers) {
  AttentionError all;
  for (const AttentionError& layer : layers) all += layer;
  Row row = attention_error_columns().fields(all);
  row["layers"] = list_of(layers, attention_error_columns());
  return row;
}

}  // namespace

AttentionError& AttentionError::operator+=(const AttentionError& other) {
  error2 += other.error2, exact2 += other.exact2, actual2 += other.actual2, dot += other.dot;
  logit_error2 += other.logit_error2, logit2 += other.logit2, n_logits += other.n_logits;
  key_error2 += other.key_error2, key2 += other.key2, value_error2 += other.value_error2, value2 += other.value2;
  query += other.query, key += other.key, top_weight += other.top_weight, n_queries += other.n_queries;
  return *this;
}
double AttentionError::relative_l2() const { return std::sqrt(error2 / exact2); }
double AttentionError::cosine() const { return dot / std::sqrt(actual2 * exact2); }
double AttentionError::norm_ratio() const { return std::sqrt(actual2 / exact2); }
double AttentionError::rms_logit_error() const { return std::sqrt(logit_error2 / double(n_logits)); }
double AttentionError::rms_logit() const { return std::sqrt(logit2 / double(n_logits)); }
double AttentionError::key_relative_l2() const { return std::sqrt(key_error2 / key2); }
double AttentionError::value_relative_l2() const { return std::sqrt(value_error2 / value2); }
double AttentionError::mean_query() const { return query / double(n_queries); }
double AttentionError::mean_key() const { return key / double(n_queries); }
double AttentionError::mean_top_weight() const { return top_weight / double(n_queries); }

AttentionShape attention_shape(const LayerPlan& layer) {
  const AttentionPlan& a = layer.attention;
  return {a.n_heads, a.n_kv_heads, a.head_dim, a.scale, a.window, layer.latent.rank};
}

std::vector<LayerRows> capture_attention(const Model& model, std::span<const int32_t> tokens, int n_queries) {
  constexpr int kBatch = 512;
  Engine& engine = model.engine();
  const int n = int(tokens.size()), first_query = std::max(0, n - n_queries);
  std::vector<LayerRows> layers(engine.plan().layers.size(), LayerRows{.n_keys = n, .n_queries = n - first_query});
  const std::vector<KvLayerConfig> f16 = layer_configs({}, engine.plan());
  const std::unique_ptr<SequencePool> pool = engine.open_pool(f16, pages_for(f16, n), 1, n);
  const std::unique_ptr<Outputs> outputs = engine.backend().make_outputs();
  const SeqId seq = pool->open().or_throw();
  engine.backend().watch(
      [&](int layer, View2<const float> q, View2<const float> k, View2<const float> v) {
        LayerRows& rows = layers[size_t(layer)];
        rows.k.insert(rows.k.end(), k.data, k.data + k.rows * k.cols);
        rows.v.insert(rows.v.end(), v.data, v.data + v.rows * v.cols);
        for (int64_t i = 0; i < q.rows; ++i)
          if (pool->length(seq) + i >= first_query) rows.q.insert(rows.q.end(), q.row(i).begin(), q.row(i).end());
      },
      nullptr);
  for (int at = 0; at < n; at += kBatch) {
    const SeqTokens step{seq, std::min(kBatch, n - at)};
    pool->reserve(seq, step.n_tokens).or_throw();
    engine.backend().run(
        {.tokens = tokens.subspan(size_t(at), size_t(step.n_tokens)), .seqs = {&step, 1}, .logits = LogitRows::none},
        *pool, *outputs);
  }
  engine.backend().watch(nullptr, nullptr);
  for (size_t i = 0; i < layers.size(); ++i)
    if (const int from = engine.plan().layers[i].attention.kv_layer; from >= 0)
      layers[i].k = layers[size_t(from)].k, layers[i].v = layers[size_t(from)].v;
  return layers;
}

AttentionError attention_error(CpuContext& context, const AttentionShape& shape, int layer, const LayerRows& rows,
                               HostKvMemory& memory) {
  const int dim = shape.head_dim, n = rows.n_keys, group = shape.n_heads / shape.n_kv_heads;
  const KvTiles &k = memory.tiles(layer, KvSide::k), &v = memory.tiles(layer, KvSide::v);
  std::vector<int32_t> pages(static_cast<size_t>(memory.n_pages()));
  std::iota(pages.begin(), pages.end(), 0);
  const KvSpan all{.n_rows = n, .pages = pages.data()};
  std::vector<float> k_rows = rows.k, v_rows = rows.v;
  memory.clear_slot(0);
  for (const KvSpan& part :
       cut_span(all, most_rows_at_once(k, v), k.retention.calibration > 0 || v.retention.calibration > 0))
    kv_append(context, k, v, {&part, 1}, matrix(k_rows, n), matrix(v_rows, n));
  const int n_out = shape.n_out();
  std::vector<float> out(rows.q.size() / size_t(dim) * size_t(n_out));
  std::vector<double> exact_out(out.size());
  std::vector<AttentionError> parts(size_t(shape.n_kv_heads));
  context.pool.for_each(shape.n_kv_heads, [&](int64_t kv_head, int) {
    const std::vector<float> exact_keys = take_head(rows.k, int(kv_head), n, shape),
                             exact_values = values_of(take_head(rows.v, int(kv_head), n, shape), shape),
                             keys = read_head(k, all, int(kv_head)),
                             values = shape.value_dim > 0 ? values_of(keys, shape) : read_head(v, all, int(kv_head));
    AttentionError& part = parts[size_t(kv_head)];
    add_squares(keys, exact_keys, part.key_error2, part.key2);
    add_squares(values, exact_values, part.value_error2, part.value2);
    double mean_key = 0;
    for (int i = 0; i < n; ++i) mean_key += length(exact_keys.data() + int64_t(i) * dim, dim) / n;
    const double scale = shape.scale > 0 ? double(shape.scale) : 1 / std::sqrt(double(dim));
    for (int i = 0; i < rows.n_queries; ++i)
      for (int head = int(kv_head) * group; head < (int(kv_head) + 1) * group; ++head) {
        const auto row = size_t(int64_t(i) * shape.n_heads + head), at = row * size_t(dim);
        const int visible = n - rows.n_queries + i + 1;
        const int first = shape.window > 0 ? std::max(0, visible - shape.window) : 0;
        const Attended exact = attend(rows.q.data() + at, exact_keys, exact_values, first, visible, shape);
        const Attended actual = attend(rows.q.data() + at, keys, values, first, visible, shape);
        part += compare_logits(actual.logits, exact.logits);
        part += {.query = scale * length(rows.q.data() + at, dim),
                 .key = mean_key,
                 .top_weight = exact.top_weight,
                 .n_queries = 1};
        std::copy(exact.out.begin(), exact.out.end(), exact_out.begin() + int64_t(row) * n_out);
        std::copy(actual.out.begin(), actual.out.end(), out.begin() + int64_t(row) * n_out);
      }
  });

  AttentionError error;
  for (const AttentionError& part : parts) error += part;
  for (size_t i = 0; i < out.size(); ++i) {
    const double a = out[i], e = exact_out[i];
    error.error2 += (a - e) * (a - e);
    error.exact2 += e * e;
    error.actual2 += a * a;
    error.dot += a * e;
  }
  if (!std::isfinite(error.error2) || !std::isfinite(error.logit_error2))
    throw Error(ErrorKind::bad_file, "rows of attention are not finite (no statistics from such a model)");
  return error;
}

void plant_outlier(const AttentionShape& shape, LayerRows& rows) {
  const auto dim = size_t(shape.head_dim);
  for (size_t at = outlier_channel(shape); at < rows.k.size(); at += dim) rows.k[at] *= kOutlier;
  for (size_t at = outlier_channel(shape); at < rows.q.size(); at += dim) rows.q[at] /= kOutlier;
}

void plant_outlier(const AttentionShape& shape, std::span<float> k_forms) {
  const auto dim = size_t(shape.head_dim), channel = outlier_channel(shape);
  for (size_t form = 0; form < k_forms.size(); form += dim * dim)
    for (size_t d = 0; d < dim; ++d) {  // the diagonal is divided twice
      k_forms[form + channel * dim + d] /= kOutlier;
      k_forms[form + d * dim + channel] /= kOutlier;
    }
}

std::vector<KvChoice> default_attention_list(int head_dim) {
  std::string list = "f16";
  for (const KvFormat& format : kv_formats())
    if (head_dim % format.group == 0 && format.bits_per_value(head_dim) < 16)
      list += fmt::format(",{}:window=0:sinks=0", format.name);
  if (const auto rotor = find_kv_format("rotor-3"); rotor && head_dim % (*rotor)->group == 0)
    for (const char* part : {":hadamard", ":planar", ":none", ":hadamard:centre=on", ":planar:centre=on"})
      list += fmt::format(",rotor-3{}:window=0:sinks=0:scale=norm:rounding=nearest", part);
  return parse_kv_list(list).or_throw();
}

std::vector<AttentionResult> run_attention(const Model& model, const Corpus& corpus, const AttentionOptions& options,
                                           const AttentionHooks& hooks) {
  const ModelInfo& info = model.info();
  std::vector<AttentionShape> shapes;
  std::vector<int> kept_by;  // a layer: the layer that keeps its K and V
  for (const LayerPlan& layer : model.engine().plan().layers) {
    if (layer.mixer != MixerKind::attention && layer.mixer != MixerKind::latent)
      throw_error(ErrorKind::usage, "the study of attention knows no mixer {}", mixer_name(layer.mixer));
    if (layer.latent.index.top_k > 0)
      throw_error(ErrorKind::usage, "the study of attention knows no queries that choose their keys");
    shapes.push_back(attention_shape(layer));
    kept_by.push_back(layer.attention.kept_by(int(kept_by.size())));
  }
  const auto bos = info.add_bos ? model.bos() : std::nullopt;
  const Windows windows = plan_windows(int64_t(corpus.tokens.size()), options.n_ctx, options.n_windows, bos).or_throw();
  Engine& engine = model.engine();
  std::vector<AttentionResult> results;
  for (const KvChoice& kv : options.candidates)
    results.push_back({.options = options,
                       .kv = kv,
                       .layers = std::vector<AttentionError>(size_t(info.n_layers)),
                       .layers_outlier = std::vector<AttentionError>(size_t(info.n_layers))});
  int64_t done = 0;
  for (int window = 0; window < windows.n_chunks; ++window) {
    const std::vector<LayerRows> layers =
        capture_attention(model, windows.chunk(corpus.tokens, window), options.n_queries);
    std::vector<LayerRows> outliers = layers;
    for (size_t i = 0; i < outliers.size(); ++i) plant_outlier(shapes[i], outliers[i]);
    std::vector<AttentionResult> so_far = results;
    for (AttentionResult& result : so_far) {
      const std::vector<KvLayerConfig> sides =
          layer_configs(session_options(result.kv, options.n_ctx, 1), engine.plan());
      const int n_pages = std::max(1, pages_for(sides, options.n_ctx)), n_layers = int(layers.size());
      const std::unique_ptr<HostKvMemory> memory = engine.open_host_memory(sides, n_pages, 1);
      KvMetric outlier_metric;
      const KvMetric* const metric = engine.kv_metric(sides);
      if (metric) outlier_metric = *metric;
      for (int i = 0; metric && i < n_layers; ++i) {
        const std::span<const float> forms = outlier_metric.layer(KvSide::k, i);
        plant_outlier(shapes[size_t(i)],
                      {outlier_metric.k.data() + (forms.data() - outlier_metric.k.data()), forms.size()});
      }
      HostKvMemory outlier_memory(sides, metric_views(metric ? &outlier_metric : nullptr, n_layers),
                                  select_round_row(engine.context(), common_head_dim(sides)), n_pages, 1);
      for (int i = 0; i < n_layers; ++i) {
        const auto at = size_t(i);
        result.layers[at] += attention_error(engine.context(), shapes[at], kept_by[at], layers[at], *memory);
        result.layers_outlier[at] +=
            attention_error(engine.context(), shapes[at], kept_by[at], outliers[at], outlier_memory);
      }
      if (hooks.on_progress) hooks.on_progress(++done, int64_t(windows.n_chunks) * int64_t(results.size()));
      if (hooks.stop && hooks.stop()) return results;
    }
    results = std::move(so_far);
  }
  if (hooks.on_result) std::ranges::for_each(results, hooks.on_result);
  return results;
}

Columns<AttentionError> attention_error_columns() {
  return {
      {"relative_l2", "-", "error of the output over its length", &AttentionError::relative_l2},
      {"cosine", "-", "of the output with the exact one", &AttentionError::cosine},
      {"norm_ratio", "-", "length of the output over the exact one's", &AttentionError::norm_ratio},
      {"rms_logit_error", "-", "of the scores", &AttentionError::rms_logit_error},
      {"rms_logit", "-", "how far exact scores spread", &AttentionError::rms_logit},
      {"key_relative_l2", "-", "error of cached keys over their length", &AttentionError::key_relative_l2},
      {"value_relative_l2", "-", "error of cached values over their length", &AttentionError::value_relative_l2},
      {"mean_query", "-", "length of a query times the scale of scores", &AttentionError::mean_query},
      {"mean_key", "-", "length of a key", &AttentionError::mean_key},
      {"mean_top_weight", "-", "largest weight of a query's softmax", &AttentionError::mean_top_weight},
  };
}

Columns<AttentionResult> columns_of(const AttentionResult&) {
  return {
      {"n_ctx", "tokens", "of a window", [](auto& r) { return r.options.n_ctx; }},
      {"n_windows", "windows", "of the text", [](auto& r) { return r.options.n_windows; }},
      {"n_queries", "tokens", "of a window, the last ones", [](auto& r) { return r.options.n_queries; }},
      {"kv", "-", "cache formats", [](auto& r) { return kv_text(r.kv); }},
      {"outlier_factor", "-", "of the planted channel", [](auto&) { return kOutlier; }},
      {"attention", "-", "errors, see below; `layers`: of each", [](auto& r) { return errors_of(r.layers); }},
      {"attention_outlier", "-", "the same with the outlier", [](auto& r) { return errors_of(r.layers_outlier); }},
  };
}

std::string attention_table(std::span<const Row> rows) {
  std::string text =
      "| KV cache K/V | relative L2 | cosine | norm ratio | RMS logit error | with a K outlier: relative L2 | cosine | "
      "norm ratio | RMS logit error |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  const auto cells = [](const Row& e) {
    return fmt::format(" {:.4f} | {:.5f} | {:.4f} | {:.4f} |", number_in(e, "relative_l2"), number_in(e, "cosine"),
                       number_in(e, "norm_ratio"), number_in(e, "rms_logit_error"));
  };
  for (const Row& row : rows)
    text +=
        "| " + row["kv"].get<std::string>() + " |" + cells(row["attention"]) + cells(row["attention_outlier"]) + "\n";
  return text;
}

}  // namespace ridge::lab
