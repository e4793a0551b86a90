#include "model/kv_metric.h"

#include <cmath>

namespace ridge {
namespace {

constexpr int64_t kMetricSamples =
    1024;                       // channels of d_model a form is made from: all of a small model, every n-th of a large
constexpr int kPositions = 64;  // positions RoPE is averaged over

/// X [n_rows, n] of floats as a matrix.
Linear float_matrix(const std::vector<float>& x, int64_t n_rows, int64_t n) {
  return {.format = find_weight_format("f32").or_throw(),
          .n_out = n_rows,
          .n_in = n,
          .rows = reinterpret_cast<const std::byte*>(x.data())};
}

/// form += X X^T for X [dim, n].
void add_gram(CpuContext& context, std::vector<float>& x, int64_t dim, int64_t n, std::vector<double>& form) {
  std::vector<float> gram(size_t(dim * dim), 0.0f);
  linear(context, float_matrix(x, dim, n), View2<const float>(x.data(), dim, n), View2<float>(gram.data(), dim, dim));
  for (size_t i = 0; i < gram.size(); ++i) form[i] += gram[i];
}

/// RMSNorm of a head with weight w (qwen3): the head has norm sqrt(dim) whatever its input, then w.
void norm_form(std::span<const float> w, std::vector<double>& form) {
  const size_t dim = w.size();
  double trace = 0;
  for (size_t i = 0; i < dim; ++i) trace += form[i * dim + i];
  const double factor = trace > 0 ? double(dim) / trace : 0;
  for (size_t i = 0; i < dim; ++i)
    for (size_t j = 0; j < dim; ++j) form[i * dim + j] *= factor * w[i] * w[j];
}

/// Every row of form [dim, dim] turned as a head at `position`, from value `first` on.
void turn_rows(const Rope& rope, double position, int64_t dim, int64_t first, std::vector<double>& form) {
  const auto n_pairs = int64_t(rope.frequency.size());
  const bool halves = rope.pairs == RopePairs::halves;
  const int64_t step = halves ? 1 : 2, apart = halves ? n_pairs : 1;
  for (int64_t i = 0; i < n_pairs; ++i) {
    const double c = std::cos(position * rope.frequency[size_t(i)]), s = std::sin(position * rope.frequency[size_t(i)]);
    for (int64_t row = 0; row < dim; ++row) {
      double& a = form[size_t(row * dim + first + i * step)];
      double& b = form[size_t(row * dim + first + i * step + apart)];
      const double turned = a * c - b * s;
      b = a * s + b * c;
      a = turned;
    }
  }
}

void transpose(int64_t dim, std::vector<double>& form) {
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < i; ++j) std::swap(form[size_t(i * dim + j)], form[size_t(j * dim + i)]);
}

/// form <- mean over positions of R_p form R_p^T.
void average_positions(CpuContext& context, const Rope& rope, int n_ctx, int64_t dim, int64_t first,
                       std::vector<double>& form) {
  std::vector<std::vector<double>> turned(kPositions, form);
  context.pool.for_each(kPositions, [&](int64_t p, int) {
    const double position = double(p) * (n_ctx - 1) / (kPositions - 1);
    turn_rows(rope, position, dim, first, turned[size_t(p)]);
    transpose(dim, turned[size_t(p)]);
    turn_rows(rope, position, dim, first, turned[size_t(p)]);
  });
  for (size_t i = 0; i < form.size(); ++i) {
    form[i] = 0;
    for (const std::vector<double>& one : turned) form[i] += one[i] / kPositions;
  }
}

/// Mean diagonal 1 (a form of zeros becomes the identity), stored as floats.
void store_form(const std::vector<double>& form, int64_t dim, float* out) {
  double trace = 0;
  for (int64_t i = 0; i < dim; ++i) trace += form[size_t(i * dim + i)];
  const bool usable = std::isfinite(trace) && trace > 0;
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < dim; ++j)
      out[i * dim + j] = usable ? float(form[size_t(i * dim + j)] * double(dim) / trace) : float(i == j);
}

/// Rows first, first + step, ... of a matrix as floats, [count, n_in].
std::vector<float> decode_rows(CpuContext& context, const Linear& w, int64_t first, int64_t count, int64_t step) {
  std::vector<float> rows(size_t(count * w.n_in), 0.0f);
  const int64_t row_bytes = w.format->row_bytes(w.n_in);
  context.pool.for_each(count, [&](int64_t i, int) {
    float* const row = rows.data() + i * w.n_in;
    w.format->decode(w.rows + (first + i * step) * row_bytes, w.n_in, row);
    if (!w.order && w.scale == 1) return;
    const std::vector<float> stored(row, row + w.n_in);
    for (int64_t at = 0; at < w.n_in; ++at) row[w.order ? w.order[at] : at] = w.scale * stored[size_t(at)];
  });
  return rows;
}

/// The matrix with rows to decode: itself, or, where only panels exist (synthetic models), its columns as the matmuls
/// with unit vectors, kept in `storage`.
Linear with_rows(CpuContext& context, const Linear& w, std::vector<float>& storage) {
  if (w.rows) return w;
  constexpr int64_t kBatch = 256;
  storage.resize(size_t(w.n_out * w.n_in));
  std::vector<float> units(size_t(kBatch * w.n_in), 0.0f), columns(size_t(kBatch * w.n_out), 0.0f);
  for (int64_t first = 0; first < w.n_in; first += kBatch) {
    const int64_t n = std::min(kBatch, w.n_in - first);
    std::fill(units.begin(), units.end(), 0.0f);
    for (int64_t i = 0; i < n; ++i) units[size_t(i * w.n_in + first + i)] = 1;
    linear(context, w, View2<const float>(units.data(), n, w.n_in), View2<float>(columns.data(), n, w.n_out));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < w.n_out; ++r) storage[size_t(r * w.n_in + first + i)] = columns[size_t(i * w.n_out + r)];
  }
  return float_matrix(storage, w.n_out, w.n_in);
}

/// The form of K of one kv head.
std::vector<double> key_form(CpuContext& context, const Config& c, const LayerWeights& layer, const Linear& q,
                             const Rope& rope, int kv_head) {
  const int64_t dim = c.head_dim, group = c.n_heads / c.n_kv_heads;
  const int64_t step = std::max<int64_t>(1, c.d_model / kMetricSamples), n = (c.d_model + step - 1) / step;
  std::vector<double> form(size_t(dim * dim), 0.0);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const std::vector<float> rows = decode_rows(context, q, h * (c.q_rows(0) / c.n_heads), dim, 1);
    std::vector<float> sampled(size_t(dim * n), 0.0f);
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t i = 0; i < n; ++i)
        sampled[size_t(d * n + i)] =
            rows[size_t(d * c.d_model + i * step)] * (layer.attn_norm.empty() ? 1 : layer.attn_norm[size_t(i * step)]);
    std::vector<double> head(size_t(dim * dim), 0.0);
    add_gram(context, sampled, dim, n, head);
    if (c.qkv_bias)
      for (int64_t i = 0; i < dim; ++i)
        for (int64_t j = 0; j < dim; ++j)
          head[size_t(i * dim + j)] +=
              double(layer.q_bias[size_t(h * dim + i)]) * layer.q_bias[size_t(h * dim + j)] / double(step);
    if (c.qk_norm) norm_form({layer.q_norm.data() + (c.qk_norm_whole ? h * dim : 0), size_t(dim)}, head);
    for (size_t i = 0; i < form.size(); ++i) form[i] += head[i];
  }
  average_positions(context, rope, c.n_ctx_train, dim, 0, form);
  return form;
}

/// The forms of V of all kv heads: rows of W_o are read once.
std::vector<std::vector<double>> value_forms(CpuContext& context, const Config& c, const Linear& o) {
  const int64_t dim = c.head_dim, group = c.n_heads / c.n_kv_heads;
  const int64_t step = std::max<int64_t>(1, c.d_model / kMetricSamples), n = (c.d_model + step - 1) / step;
  const std::vector<float> rows = decode_rows(context, o, 0, n, step);
  std::vector<std::vector<double>> forms(size_t(c.n_kv_heads), std::vector<double>(size_t(dim * dim), 0.0));
  std::vector<float> columns(size_t(dim * n), 0.0f);
  for (int64_t h = 0; h < c.n_heads; ++h) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t d = 0; d < dim; ++d) columns[size_t(d * n + i)] = rows[size_t(i * c.n_heads * dim + h * dim + d)];
    add_gram(context, columns, dim, n, forms[size_t(h / group)]);
  }
  return forms;
}

/// Columns [n_rows, n] of x [n, n_rows].
std::vector<float> columns_of(View2<const float> x) {
  std::vector<float> columns(size_t(x.rows * x.cols));
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t d = 0; d < x.cols; ++d) columns[size_t(d * x.rows + i)] = x(i, d);
  return columns;
}

/// The form of latent rows: of the queries as they come into the latent space, and of what leaves it through v_b and
/// W_o.
std::vector<double> latent_form(CpuContext& context, const Config& c, const LayerWeights& layer, const Rope& rope) {
  const int64_t dim = c.head_dim, query_dim = c.query_dim();
  const Linear& q = c.q_rank > 0 ? layer.q_b : layer.q;
  const std::vector<float>& norm = c.q_rank > 0 ? layer.q_a_norm : layer.attn_norm;
  const auto floats = [](std::vector<float>& of, int64_t rows, int64_t cols) {
    of.assign(size_t(rows * cols), 0.0f);
    return View2<float>(of.data(), rows, cols);
  };
  std::vector<float> input_values, query_values, row_values, part_values, o_rows;
  int64_t step = std::max<int64_t>(1, q.n_in / kMetricSamples), n = (q.n_in + step - 1) / step;
  const View2<float> inputs = floats(input_values, n, q.n_in), queries = floats(query_values, n, q.n_out);
  for (int64_t i = 0; i < n; ++i) inputs(i, i * step) = norm[size_t(i * step)];
  linear(context, q, inputs, queries);
  std::vector<double> keys(size_t(dim * dim), 0.0), values = keys;
  View2<float> rows = floats(row_values, n, dim);
  for (int64_t h = 0; h < c.n_heads; ++h) {
    const View2<float> of_head(queries.data + h * query_dim, n, c.nope_dim, queries.stride);
    linear(context, layer.k_b[size_t(h)], of_head, View2<float>(rows.data, n, c.kv_rank, dim));
    for (int64_t i = 0; i < n; ++i) std::copy_n(&of_head(i, c.nope_dim), c.rope_dim, &rows(i, c.kv_rank));
    std::vector<float> columns = columns_of(rows);
    add_gram(context, columns, dim, n, keys);
  }
  average_positions(context, rope, c.n_ctx_train, dim, c.kv_rank, keys);

  step = std::max<int64_t>(1, c.d_model / kMetricSamples), n = (c.d_model + step - 1) / step;
  const std::vector<float> o = decode_rows(context, with_rows(context, layer.o, o_rows), 0, n, step);
  rows = floats(row_values, n, dim);  // nothing leaves by the part that RoPE turns
  for (int64_t h = 0; h < c.n_heads; ++h) {
    const std::vector<float> v_b =
        decode_rows(context, with_rows(context, layer.v_b[size_t(h)], part_values), 0, c.value_dim, 1);
    const std::vector<float> turned = columns_of({v_b.data(), c.value_dim, c.kv_rank});
    linear(context, float_matrix(turned, c.kv_rank, c.value_dim),
           View2<const float>(o.data() + h * c.value_dim, n, c.value_dim, int64_t(c.n_heads) * c.value_dim),
           View2<float>(rows.data, n, c.kv_rank, dim));
    std::vector<float> columns = columns_of(rows);
    add_gram(context, columns, dim, n, values);
  }
  std::vector<float> k_form(keys.size()), v_form(keys.size());
  store_form(keys, dim, k_form.data());
  store_form(values, dim, v_form.data());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = double(k_form[i]) + v_form[i];
  return keys;
}

}  // namespace

KvMetric make_kv_metric(CpuContext& context, const Config& config, const Weights& weights, const ModelPlan& plan) {
  KvMetric metric{.first = {0}};
  for (int i = 0; i < config.n_layers; ++i) {
    const LayerWeights& layer = weights.layers[size_t(i)];
    metric.first.push_back(metric.k.size());
    if (!config.has_layer(i) || !config.attends(i) || !config.has_kv(i)) continue;
    const Config c = config.of_layer(i);
    const Rope& rope = plan.ropes[size_t(plan.layers[size_t(i)].attention.rope)];
    const int64_t dim = c.head_dim, size = dim * dim;
    const auto first = ssize(metric.k);
    metric.first.back() = size_t(first + c.n_kv_heads * size);
    metric.k.resize(size_t(first + c.n_kv_heads * size));
    if (c.kv_rank > 0) {
      store_form(latent_form(context, c, layer, rope), dim, metric.k.data() + first);
      continue;
    }
    metric.v.resize(metric.k.size());
    std::vector<float> q_rows, o_rows;
    const Linear q = with_rows(context, layer.q, q_rows), o = with_rows(context, layer.o, o_rows);
    const std::vector<std::vector<double>> values = value_forms(context, c, o);
    for (int h = 0; h < c.n_kv_heads; ++h) {
      const int64_t at = first + h * size;
      store_form(key_form(context, c, layer, q, rope, h), dim, metric.k.data() + at);
      store_form(values[size_t(h)], dim, metric.v.data() + at);
    }
  }
  context.scratch = {};  // steps need less
  return metric;
}

}  // namespace ridge
